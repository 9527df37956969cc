#pragma once

// What the decisions about a request look at, free of the HTTP library: routes.h and access.h are functions of it.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace argosy::dashboard {

struct RequestHead {
  std::string method;  // "GET"
  std::string path;    // as sent, without the query
  std::string query;   // after '?', as sent
  std::string host;    // Host header
  std::string origin;
  std::string user_agent;
  std::string authorization;
  std::string ray_authorization;    // X-Ray-Authorization: the header that the Kubernetes operator sends
  std::string cookie;
  std::string fetch_site;           // Sec-Fetch-Site
  bool has_browser_header = false;  // any of Referer, Origin, Sec-Fetch-*, Access-Control-Request-*
  bool is_upgrade = false;          // asks for a WebSocket
};

struct Response {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string reason;  // empty: the usual words for `status`
};

inline Response TextResponse(int status, std::string text) { return {.status = status, .body = std::move(text)}; }
inline Response JsonResponse(std::string json) {
  return {.content_type = "application/json; charset=utf-8", .body = std::move(json)};
}

// "%2F" -> "/". A '%' that is not followed by two hex digits stays as it is.
std::string PercentDecode(std::string_view text);
// The decoded value of `name` in a query string; empty when it is not there.
std::string QueryValue(std::string_view query, std::string_view name);

}  // namespace argosy::dashboard
