#pragma once

// S3 over HTTP: signed requests that are repeated while it makes sense.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace argosy::train {

// "s3://bucket/some/prefix".
struct S3Location {
  std::string bucket;
  std::string prefix;   // without slashes at its ends; may be empty
  // s3://bucket/prefix/key, and the key alone.
  std::string Url(std::string_view name = "") const;
  std::string Key(std::string_view name) const;
};
bool IsS3Url(std::string_view text);
absl::StatusOr<S3Location> ParseS3Url(std::string_view text);

struct S3Credentials {
  std::string access_key, secret_key, session_token;
  std::string source;   // where they are from, for messages; never what they are
  bool operator==(const S3Credentials&) const = default;
};
// AWS_ACCESS_KEY_ID with its companions, else the profile AWS_PROFILE (or "default") of AWS_SHARED_CREDENTIALS_FILE (or ~/.aws/credentials).
absl::StatusOr<S3Credentials> FindS3Credentials();

struct S3Request {
  std::string method = "GET";
  std::string key;
  std::vector<std::pair<std::string, std::string>> query = {};
  std::map<std::string, std::string> headers = {};   // by lower-case name
  std::span<const std::byte> body = {};
};

struct S3Response {
  int64_t status = 0;
  std::map<std::string, std::string> headers;   // by lower-case name
  std::string body;
};

// AWS signature version 4 of a request to `host` and `path` (not yet encoded): the headers to send, host left out. The body is not part of what is
// signed but by its checksum in a header.
std::map<std::string, std::string> SignS3(const S3Request& request, std::string_view host, std::string_view path, std::string_view region,
                                          const S3Credentials& credentials, absl::Time now, std::string_view payload_hash = "UNSIGNED-PAYLOAD");

struct S3Options {
  std::string endpoint;          // http://host:port; empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else Amazon's
  std::string region;            // empty: AWS_REGION, AWS_DEFAULT_REGION, else us-east-1
  int attempts_max = 8;
  int expired_max = 5;           // attempts with credentials that have expired and are not renewed
  absl::Duration first_pause = absl::Milliseconds(200);   // doubled from one attempt to the next, by chance up to a half shorter
  absl::Duration silence_max = absl::Seconds(60);         // of a connection
};

// Thread:   any; each call uses a connection of its own, which is kept for the next.
// Failure:  lost connections, 5xx, 429 and SlowDown are tried again after a pause, and so is what credentials that expired meanwhile refused, with those
//           that are found then. What remains is an error with the request, the server's words and the number of attempts.
class S3Client {
 public:
  static absl::StatusOr<std::unique_ptr<S3Client>> Create(std::string bucket, S3Options options);
  ~S3Client();

  // Any status that is not to be tried again and is none of `expected` is an error.
  absl::StatusOr<S3Response> Send(const S3Request& request, std::initializer_list<int64_t> expected = {200});

 private:
  struct State;
  explicit S3Client(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The texts of all <tag> elements, unescaped, in order.
std::vector<std::string> XmlTexts(std::string_view xml, std::string_view tag);
std::string XmlText(std::string_view xml, std::string_view tag);
std::string XmlEscaped(std::string_view text);

}  // namespace argosy::train
