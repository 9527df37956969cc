#include "dashboard/server/routes.h"

#include <algorithm>

#include "dashboard/server/request.h"
#include "runtime/base/status.h"

namespace argosy::dashboard {
namespace {

bool IsLetterOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// The route when `method` is one of `allow` ("GET, POST"), which a GET also grants to HEAD.
Route Allow(std::string_view method, std::string_view allow, Route route) {
  std::string_view wanted = method == "HEAD" ? "GET" : method;
  for (std::string_view rest = allow; !rest.empty();) {
    size_t comma = rest.find(", ");
    if (rest.substr(0, comma) == wanted) return route;
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 2);
  }
  return {.endpoint = Endpoint::kMethodNotAllowed, .allow = std::string(allow)};
}

Route MatchJob(std::string_view method, std::string_view rest) {
  if (rest.empty()) return Allow(method, "GET, POST", {.endpoint = Endpoint::kJobs});
  size_t slash = rest.find('/');
  std::string id = PercentDecode(rest.substr(0, slash));
  if (id.empty()) return {};
  if (slash == rest.npos) return Allow(method, "GET, DELETE", {.endpoint = Endpoint::kJob, .id = id});
  std::string_view action = rest.substr(slash);
  if (action == "/stop") return Allow(method, "POST", {.endpoint = Endpoint::kJobStop, .id = id});
  if (action == "/logs") return Allow(method, "GET", {.endpoint = Endpoint::kJobLogs, .id = id});
  if (action == "/logs/tail") return Allow(method, "GET", {.endpoint = Endpoint::kJobLogTail, .id = id});
  return {};
}

}  // namespace

std::string PercentDecode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    int high = 0, low = 0;
    if (text[i] == '%' && i + 2 < text.size() && (high = HexValue(text[i + 1])) >= 0 &&
        (low = HexValue(text[i + 2])) >= 0) {
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::string QueryValue(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    size_t end = query.find('&');
    std::string_view pair = query.substr(0, end);
    size_t equals = pair.find('=');
    if (pair.substr(0, equals) == name && equals != pair.npos) return PercentDecode(pair.substr(equals + 1));
    query = end == query.npos ? std::string_view() : query.substr(end + 1);
  }
  return {};
}

Route MatchRoute(std::string_view method, std::string_view path) {
  std::string_view rest = path;
  if (TakePrefix(rest, "/api/jobs/")) return MatchJob(method, rest);
  if (path == "/api/version") return Allow(method, "GET", {.endpoint = Endpoint::kVersion});
  if (path == "/api/gcs_healthz") return Allow(method, "GET", {.endpoint = Endpoint::kHealth});
  if (path == "/api/component_activities") return Allow(method, "GET", {.endpoint = Endpoint::kActivities});
  if (path == "/metrics") return Allow(method, "GET", {.endpoint = Endpoint::kMetrics});
  if (path == "/api/argosy/cluster") return Allow(method, "GET", {.endpoint = Endpoint::kCluster});
  if (path == "/api/argosy/login") return Allow(method, "POST", {.endpoint = Endpoint::kLogIn});
  if (path == "/api/argosy/logout") return Allow(method, "POST", {.endpoint = Endpoint::kLogOut});
  if (TakePrefix(rest, "/api/packages/")) {
    size_t slash = rest.find('/');
    if (slash == rest.npos || slash == 0 || slash + 1 == rest.size()) return {};
    return Allow(method, "GET, PUT",
                 {.endpoint = Endpoint::kPackage,
                  .id = PercentDecode(rest.substr(slash + 1)),
                  .protocol = PercentDecode(rest.substr(0, slash))});
  }
  if (path == "/api" || TakePrefix(rest, "/api/")) return {};
  return Allow(method, "GET", {.endpoint = Endpoint::kStatic});
}

absl::Status CheckSubmissionId(std::string_view id) {
  bool ok = !id.empty() && id.size() <= 128 && (IsLetterOrDigit(id.front()) || id.front() == '_') &&
            std::all_of(id.begin(), id.end(), [](char c) { return IsLetterOrDigit(c) || c == '_' || c == '-' || c == '.'; });
  if (ok) return absl::OkStatus();
  return InvalidArgument(
      "submission_id \"{}\" cannot be used: 1 to 128 letters, digits, '_', '-' or '.' are allowed, beginning with a letter, "
      "digit or '_'",
      id.substr(0, 200));
}

absl::Status CheckPackage(std::string_view protocol, std::string_view name) {
  if (protocol != "gcs") {
    return InvalidArgument("package protocol \"{}\" is not served here: only gcs://NAME.zip and gcs://NAME.whl are",
                           protocol.substr(0, 100));
  }
  bool ok = name.size() > 4 && name.size() <= 255 && name.front() != '.' &&
            (name.substr(name.size() - 4) == ".zip" || name.substr(name.size() - 4) == ".whl") &&
            std::all_of(name.begin(), name.end(), [](char c) {
              return IsLetterOrDigit(c) || c == '_' || c == '-' || c == '.' || c == '+' || c == '!';
            });
  if (ok) return absl::OkStatus();
  return InvalidArgument(
      "package name \"{}\" cannot be used: a plain file name of letters, digits, '_', '-', '.', '+', '!' that ends in .zip or "
      ".whl is allowed",
      name.substr(0, 300));
}

}  // namespace argosy::dashboard
