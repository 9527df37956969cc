#include "dashboard/server/routes.h"

#include "dashboard/server/request.h"
#include "dashboard/server/utf8.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"

namespace argosy::dashboard {
namespace {

TEST_CASE("Routes: the addresses of the Jobs API, with their slashes") {
  CHECK(MatchRoute("GET", "/api/version").endpoint == Endpoint::kVersion);
  CHECK(MatchRoute("GET", "/api/jobs/").endpoint == Endpoint::kJobs);
  CHECK(MatchRoute("POST", "/api/jobs/").endpoint == Endpoint::kJobs);
  CHECK(MatchRoute("GET", "/api/jobs").endpoint == Endpoint::kNotFound);
  CHECK(MatchRoute("DELETE", "/api/jobs/a").endpoint == Endpoint::kJob);
  CHECK(MatchRoute("POST", "/api/jobs/a/stop").endpoint == Endpoint::kJobStop);
  CHECK(MatchRoute("GET", "/api/jobs/a/logs").endpoint == Endpoint::kJobLogs);
  CHECK(MatchRoute("GET", "/api/jobs/a/logs/tail").endpoint == Endpoint::kJobLogTail);
  CHECK(MatchRoute("GET", "/api/jobs/a/logs/").endpoint == Endpoint::kNotFound);
  CHECK(MatchRoute("GET", "/api/jobs//stop").endpoint == Endpoint::kNotFound);
  CHECK(MatchRoute("GET", "/api/nothing").endpoint == Endpoint::kNotFound);
  CHECK(MatchRoute("GET", "/").endpoint == Endpoint::kStatic);
  CHECK(MatchRoute("HEAD", "/api/version").endpoint == Endpoint::kVersion);
}

TEST_CASE("Routes: a known address with another method says what it takes") {
  Route route = MatchRoute("PUT", "/api/jobs/");
  CHECK(route.endpoint == Endpoint::kMethodNotAllowed);
  CHECK(route.allow == "GET, POST");
  CHECK(MatchRoute("GET", "/api/jobs/a/stop").allow == "POST");
}

TEST_CASE("Routes: names are decoded, broken escapes stay") {
  CHECK(MatchRoute("GET", "/api/jobs/a%20b").id == "a b");
  CHECK(PercentDecode("100%") == "100%");
  CHECK(PercentDecode("%zz%41") == "%zzA");
  CHECK(QueryValue("a=1&offset=12&b=%2F", "offset") == "12");
  CHECK(QueryValue("a=1&offset=12&b=%2F", "b") == "/");
  CHECK(QueryValue("offsets=3", "offset").empty());
  Route package = MatchRoute("PUT", "/api/packages/gcs/_ray_pkg_0123456789abcdef.zip");
  CHECK(package.endpoint == Endpoint::kPackage);
  CHECK(package.protocol == "gcs");
  CHECK(package.id == "_ray_pkg_0123456789abcdef.zip");
}

TEST_CASE("Names: a submission id can never leave its folder") {
  for (const char* good : {"a", "raysubmit_4GjyqK5KBw1mz2mu", "my-job.2", "_x", "9"}) CHECK(CheckSubmissionId(good).ok());
  for (const char* bad : {"", ".", "..", "../x", "a/b", "a b", "-rf", ".hidden", "a\nb", "a\\b", "\xC3\xA4"}) {
    CHECK_FALSE(CheckSubmissionId(bad).ok());
  }
  CHECK(CheckSubmissionId(std::string(128, 'a')).ok());
  CHECK_FALSE(CheckSubmissionId(std::string(129, 'a')).ok());
  CHECK(Message(CheckSubmissionId("a/b c")).find("letters, digits") != std::string::npos);
}

TEST_CASE("Names: a package is a plain .zip or .whl of the gcs protocol") {
  CHECK(CheckPackage("gcs", "_ray_pkg_0123456789abcdef.zip").ok());
  CHECK(CheckPackage("gcs", "thing-1.0+cpu-py3-none-any.whl").ok());
  for (const char* bad : {"", ".zip", "..zip", "../x.zip", "a/b.zip", "x.tar", "a b.zip", "x.zip/"}) CHECK_FALSE(CheckPackage("gcs", bad).ok());
  CHECK_FALSE(CheckPackage("s3", "x.zip").ok());
}

TEST_CASE("Utf8Stream: a character that is cut between two pieces arrives whole") {
  std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80z";   // 1, 2, 3, 4 and 1 bytes
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Stream stream;
    std::string out = stream.Feed(text.substr(0, cut));
    out += stream.Feed(text.substr(cut));
    CHECK(out == text);
    CHECK(stream.Finish().empty());
  }
  Utf8Stream stream;
  std::string out;
  for (char c : text) out += stream.Feed(std::string(1, c));
  CHECK(out == text);
  CHECK(stream.Finish().empty());
}

TEST_CASE("Utf8Stream: bytes of no character become U+FFFD, and nothing else is lost") {
  const std::string bad = "\xEF\xBF\xBD";
  auto clean = [](std::string_view bytes) {
    Utf8Stream stream;
    std::string text = stream.Feed(bytes);
    return text + stream.Finish();
  };
  CHECK(clean("a\xFFz") == "a" + bad + "z");
  CHECK(clean("\xC0\xAFz") == bad + bad + "z");              // overlong
  CHECK(clean("\xED\xA0\x80z") == bad + bad + bad + "z");    // a surrogate
  CHECK(clean("\xF4\x90\x80\x80") == bad + bad + bad + bad); // above U+10FFFF
  CHECK(clean("\xE2\x82z") == bad + "z");                    // cut short
  CHECK(clean("\xE2\x82") == bad);                           // cut by the end
}

TEST_CASE("SplitUtf8: pieces are bounded, valid, and join to the whole") {
  std::string text;
  for (int i = 0; i < 50; ++i) text += i % 3 == 0 ? "\xE2\x82\xAC" : i % 3 == 1 ? "x" : "\xF0\x9F\x98\x80";
  for (size_t size_max : {4, 5, 7, 64, 1000}) {
    std::string joined;
    for (std::string_view piece : SplitUtf8(text, size_max)) {
      CHECK(piece.size() <= size_max);
      CHECK_FALSE(piece.empty());
      Utf8Stream stream;
      CHECK(stream.Feed(piece) == piece);
      CHECK(stream.Finish().empty());
      joined += piece;
    }
    CHECK(joined == text);
  }
  CHECK(SplitUtf8("", 10).empty());
}

}  // namespace
}  // namespace argosy::dashboard
