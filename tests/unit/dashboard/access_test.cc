#include "dashboard/server/access.h"

#include "tests/support/catch.h"

namespace argosy::dashboard {
namespace {

const Token kToken("0123456789abcdef");

RequestHead Get(std::string path = "/api/jobs/") { return {.method = "GET", .path = std::move(path), .host = "127.0.0.1:8265"}; }

TEST_CASE("Access: a request without a token is told so, with a wrong one it is forbidden") {
  RequestHead head = Get();
  auto missing = Refusal(head, Endpoint::kJobs, kToken);
  REQUIRE(missing);
  CHECK(missing->status == 401);
  CHECK(missing->body == "Unauthorized: Missing authentication token");
  head.authorization = "Bearer deadbeef";
  auto wrong = Refusal(head, Endpoint::kJobs, kToken);
  REQUIRE(wrong);
  CHECK(wrong->status == 403);
  CHECK(wrong->body == "Forbidden: Invalid authentication token");
}

TEST_CASE("Access: the token is taken from Authorization, X-Ray-Authorization, or the cookie, in this order") {
  RequestHead head = Get();
  head.cookie = "other=1; ray-authentication-token=0123456789abcdef";
  CHECK_FALSE(Refusal(head, Endpoint::kJobs, kToken));
  head.ray_authorization = "bearer wrong";
  CHECK(Refusal(head, Endpoint::kJobs, kToken)->status == 403);
  head.authorization = "Bearer 0123456789abcdef";
  CHECK_FALSE(Refusal(head, Endpoint::kJobs, kToken));
}

TEST_CASE("Access: a cookie whose name only ends like ours is not ours") {
  RequestHead head = Get();
  head.cookie = "x-ray-authentication-token=0123456789abcdef";
  CHECK(Refusal(head, Endpoint::kJobs, kToken)->status == 401);
}

TEST_CASE("Access: health and the page's files need no token, everything else does") {
  CHECK_FALSE(Refusal(Get("/api/gcs_healthz"), Endpoint::kHealth, kToken));
  CHECK_FALSE(Refusal(Get("/"), Endpoint::kStatic, kToken));
  for (Endpoint endpoint : {Endpoint::kVersion, Endpoint::kPackage, Endpoint::kJobs, Endpoint::kJob, Endpoint::kJobStop, Endpoint::kJobLogs,
                            Endpoint::kJobLogTail, Endpoint::kActivities, Endpoint::kCluster, Endpoint::kMetrics, Endpoint::kLogOut, Endpoint::kNotFound,
                            Endpoint::kMethodNotAllowed}) {
    CHECK(Refusal(Get(), endpoint, kToken));
  }
}

TEST_CASE("Access: a browser may change something only from our own page") {
  RequestHead head = Get();
  head.method = "POST";
  head.authorization = "Bearer 0123456789abcdef";
  CHECK_FALSE(Refusal(head, Endpoint::kJobs, kToken));

  head.user_agent = "Mozilla/5.0 (X11) Gecko";
  auto refusal = Refusal(head, Endpoint::kJobs, kToken);
  REQUIRE(refusal);
  CHECK(refusal->status == 405);
  CHECK(refusal->body == "'POST' method not allowed for browser traffic.");

  head.origin = "http://evil.example";
  head.has_browser_header = true;
  CHECK(Refusal(head, Endpoint::kJobs, kToken)->status == 405);
  head.user_agent = "curl/8";
  CHECK(Refusal(head, Endpoint::kJobs, kToken)->status == 405);

  head.origin = "http://127.0.0.1:8265";
  CHECK_FALSE(Refusal(head, Endpoint::kJobs, kToken));
  head.fetch_site = "cross-site";
  CHECK(Refusal(head, Endpoint::kJobs, kToken)->status == 405);
}

TEST_CASE("Access: another port of the same host is another origin") {
  RequestHead head = Get();
  head.origin = "http://127.0.0.1:9999";
  CHECK_FALSE(IsSameOrigin(head));
  head.origin = "https://127.0.0.1:8265";
  CHECK(IsSameOrigin(head));
}

TEST_CASE("Access: without a token a name that could be made to point at us is not our page") {
  RequestHead head{.method = "POST", .path = "/api/jobs/", .host = "evil.example:8265", .origin = "http://evil.example:8265"};
  head.has_browser_header = true;
  CHECK(Refusal(head, Endpoint::kJobs, Token())->status == 405);
  head.host = "localhost:8265";
  head.origin = "http://localhost:8265";
  CHECK_FALSE(Refusal(head, Endpoint::kJobs, Token()));
  head.host = "[::1]:8265";
  head.origin = "http://[::1]:8265";
  CHECK_FALSE(Refusal(head, Endpoint::kJobs, Token()));
}

TEST_CASE("Access: a foreign page cannot open a WebSocket with the reader's cookie") {
  RequestHead head = Get("/api/jobs/a/logs/tail");
  head.cookie = "ray-authentication-token=0123456789abcdef";
  head.is_upgrade = true;
  head.origin = "http://evil.example";
  CHECK(Refusal(head, Endpoint::kJobLogTail, kToken)->status == 403);
  head.origin = "http://127.0.0.1:8265";
  CHECK_FALSE(Refusal(head, Endpoint::kJobLogTail, kToken));
}

}  // namespace
}  // namespace argosy::dashboard
