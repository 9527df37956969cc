#include "dashboard/server/access.h"

#include <algorithm>

#include "runtime/base/status.h"

namespace argosy::dashboard {
namespace {

constexpr std::string_view kBearer = "bearer ";

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [&](char x, char y) { return lower(x) == lower(y); });
}

std::string CookieValue(std::string_view cookies, std::string_view name) {
  while (!cookies.empty()) {
    size_t end = cookies.find(';');
    std::string_view pair = cookies.substr(0, end);
    while (!pair.empty() && pair.front() == ' ') pair.remove_prefix(1);
    size_t equals = pair.find('=');
    if (equals != pair.npos && pair.substr(0, equals) == name) return std::string(pair.substr(equals + 1));
    cookies = end == cookies.npos ? std::string_view() : cookies.substr(end + 1);
  }
  return {};
}

// Another page may make its own name point at us (DNS rebinding); then Host and Origin agree. An address or "localhost" as
// the name cannot be rebound.
bool HostCannotBeRebound(std::string_view host) {
  if (!host.empty() && host.front() == '[') return true;
  host = host.substr(0, host.find(':'));
  if (host == "localhost") return true;
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
}

}  // namespace

std::string Credential(const RequestHead& head) {
  for (const std::string* header : {&head.authorization, &head.ray_authorization}) {
    if (header->empty()) continue;
    std::string_view value = *header;
    if (EqualsIgnoringCase(value.substr(0, kBearer.size()), kBearer)) value.remove_prefix(kBearer.size());
    return std::string(value);
  }
  return CookieValue(head.cookie, kTokenCookie);
}

bool IsSameOrigin(const RequestHead& head) {
  if (head.host.empty()) return false;
  return head.origin == "http://" + head.host || head.origin == "https://" + head.host;
}

bool IsOpenToAll(Endpoint endpoint) {
  return endpoint == Endpoint::kHealth || endpoint == Endpoint::kStatic || endpoint == Endpoint::kLogIn;
}

std::optional<Response> Refusal(const RequestHead& head, Endpoint endpoint, const Token& token) {
  if (!IsOpenToAll(endpoint) && !token.IsEmpty()) {
    std::string credential = Credential(head);
    if (credential.empty()) return TextResponse(401, "Unauthorized: Missing authentication token");
    if (!token.Matches(credential)) return TextResponse(403, "Forbidden: Invalid authentication token");
  }
  if (head.is_upgrade && !head.origin.empty() && !IsSameOrigin(head)) {
    return TextResponse(403, fmt::format("Forbidden: WebSockets are not open to pages of {}", head.origin.substr(0, 200)));
  }
  bool changes = head.method != "GET" && head.method != "HEAD";
  bool browser = head.user_agent.rfind("Mozilla", 0) == 0 || head.has_browser_header;
  if (changes && browser) {
    bool ours = IsSameOrigin(head) && (head.fetch_site.empty() || head.fetch_site == "same-origin") &&
                (!token.IsEmpty() || HostCannotBeRebound(head.host));
    if (!ours) return TextResponse(405, fmt::format("'{}' method not allowed for browser traffic.", head.method));
  }
  return std::nullopt;
}

}  // namespace argosy::dashboard
