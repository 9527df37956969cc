#include "dashboard/server/static_files.h"

#include <filesystem>
#include <functional>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "spdlog/spdlog.h"

namespace argosy::dashboard {
namespace {

constexpr char kNotBuilt[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Argosy</title></head><body>"
    "<h1>The page's files are not built</h1>"
    "<p>The Jobs API of this head works; its page was not found. Build it, then start the head again:</p>"
    "<pre>cd dashboard/web &amp;&amp; npm ci &amp;&amp; npm run build</pre>"
    "<p>or name a built copy with the environment variable ARGOSY_WEB_DIR.</p></body></html>\n";

// Nothing is loaded from, sent to, or framed by another origin.
constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

std::string ContentType(const std::string& extension) {
  if (extension == ".html") return "text/html; charset=utf-8";
  if (extension == ".js") return "text/javascript; charset=utf-8";
  if (extension == ".css") return "text/css; charset=utf-8";
  if (extension == ".svg") return "image/svg+xml";
  if (extension == ".png") return "image/png";
  if (extension == ".woff2") return "font/woff2";
  if (extension == ".json" || extension == ".map") return "application/json; charset=utf-8";
  if (extension == ".txt") return "text/plain; charset=utf-8";
  return "application/octet-stream";
}

}  // namespace

StaticFiles::StaticFiles(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (directory.empty() || !fs::is_directory(directory, error)) {
    spdlog::warn("dashboard: no page at \"{}\"; only the Jobs API is served", directory);
    return;
  }
  fs::recursive_directory_iterator it(directory, error), end;
  for (; !error && it != end; it.increment(error)) {
    if (!it->is_regular_file(error) || it->is_symlink(error)) continue;
    absl::StatusOr<std::string> content = ReadFile(it->path().string());
    if (!content.ok()) {
      spdlog::warn("dashboard: {}", Message(content.status()));
      continue;
    }
    std::string name = "/" + fs::relative(it->path(), directory, error).generic_string();
    File file{.content_type = ContentType(it->path().extension().string()), .content = *std::move(content)};
    file.etag = fmt::format("\"{:016x}-{:x}\"", std::hash<std::string>()(file.content), file.content.size());
    files_.emplace(std::move(name), std::move(file));
  }
  if (error) spdlog::warn("dashboard: reading {}: {}", directory, error.message());
}

Response StaticFiles::Serve(std::string_view path, std::string_view if_none_match) const {
  auto it = files_.find(path);
  bool asset = path.substr(0, 8) == "/assets/";
  if (it == files_.end() && (asset || path == "/favicon.ico")) return TextResponse(404, "404: Not Found");
  if (it == files_.end()) it = files_.find("/index.html");
  Response response;
  response.headers = {{"Content-Security-Policy", kContentSecurityPolicy},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "same-origin"}};
  if (it == files_.end()) {
    response.content_type = "text/html; charset=utf-8";
    response.body = kNotBuilt;
    return response;
  }
  const File& file = it->second;
  response.content_type = file.content_type;
  // File names below /assets/ contain the hash of their content.
  response.headers.emplace_back("Cache-Control", asset ? "private, max-age=31536000, immutable" : "no-cache");
  response.headers.emplace_back("ETag", file.etag);
  if (!if_none_match.empty() && if_none_match == file.etag) {
    response.status = 304;
  } else {
    response.body = file.content;
  }
  return response;
}

}  // namespace argosy::dashboard
