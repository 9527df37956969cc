#include "train/checkpoint/s3_client.h"

#include <curl/curl.h>
#include <stdlib.h>

#include <algorithm>
#include <cctype>
#include <mutex>
#include <random>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/checkpoint/sha256.h"

namespace argosy::train {
namespace {

constexpr std::string_view kScheme = "s3://";
constexpr size_t kErrorTextMax = 300;

std::string Environment(const char* name) {
  const char* value = ::getenv(name);
  return value == nullptr ? "" : value;
}

// RFC 3986, as the signature wants it.
std::string Encoded(std::string_view text, bool keep_slashes) {
  std::string encoded;
  for (unsigned char c : text) {
    const bool plain = absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '~' || (keep_slashes && c == '/');
    encoded += plain ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
  }
  return encoded;
}

std::string CanonicalQuery(const S3Request& request) {
  std::vector<std::string> pairs;
  for (const auto& [name, value] : request.query) pairs.push_back(Encoded(name, false) + "=" + Encoded(value, false));
  std::sort(pairs.begin(), pairs.end());
  return fmt::format("{}", fmt::join(pairs, "&"));
}

}  // namespace

std::string S3Location::Key(std::string_view name) const {
  return prefix.empty() ? std::string(name) : name.empty() ? prefix : fmt::format("{}/{}", prefix, name);
}
std::string S3Location::Url(std::string_view name) const { return fmt::format("{}{}/{}", kScheme, bucket, Key(name)); }

bool IsS3Url(std::string_view text) { return text.starts_with(kScheme); }

absl::StatusOr<S3Location> ParseS3Url(std::string_view text) {
  std::string_view rest = IsS3Url(text) ? text.substr(kScheme.size()) : "";
  S3Location location{.bucket = std::string(rest.substr(0, rest.find('/')))};
  if (location.bucket.empty()) return InvalidArgument("\"{}\" is no S3 address: s3://BUCKET/PREFIX is one", text);
  for (char c : location.bucket) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-' && c != '.') {
      return InvalidArgument("\"{}\": a bucket's name has lower-case letters, digits, - and . only", text);
    }
  }
  if (size_t slash = rest.find('/'); slash != rest.npos) rest.remove_prefix(slash + 1);
  else rest = "";
  while (rest.ends_with('/')) rest.remove_suffix(1);
  location.prefix = std::string(rest);
  return location;
}

absl::StatusOr<S3Credentials> FindS3Credentials() {
  S3Credentials found{.access_key = Environment("AWS_ACCESS_KEY_ID"), .secret_key = Environment("AWS_SECRET_ACCESS_KEY"),
                      .session_token = Environment("AWS_SESSION_TOKEN"), .source = "AWS_ACCESS_KEY_ID of the environment"};
  if (!found.access_key.empty() && !found.secret_key.empty()) return found;
  std::string path = Environment("AWS_SHARED_CREDENTIALS_FILE"), profile = Environment("AWS_PROFILE");
  if (path.empty()) path = Environment("HOME") + "/.aws/credentials";
  if (profile.empty()) profile = "default";
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    return absl::UnauthenticatedError(ToAbsl(fmt::format(
        "no credentials for S3 on this node: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY nor a file {} ({})", path, Message(text.status()))));
  }
  found = {.source = fmt::format("profile \"{}\" of {}", profile, path)};
  std::istringstream lines(*text);
  bool here = false;
  for (std::string line; std::getline(lines, line);) {
    absl::StripAsciiWhitespace(&line);
    if (line.starts_with('[')) here = line == fmt::format("[{}]", profile);
    const size_t equals = line.find('=');
    if (!here || equals == std::string::npos) continue;
    std::string name = line.substr(0, equals), value = line.substr(equals + 1);
    absl::StripAsciiWhitespace(&name);
    absl::StripAsciiWhitespace(&value);
    if (name == "aws_access_key_id") found.access_key = value;
    if (name == "aws_secret_access_key") found.secret_key = value;
    if (name == "aws_session_token") found.session_token = value;
  }
  if (found.access_key.empty() || found.secret_key.empty()) {
    return absl::UnauthenticatedError(ToAbsl(fmt::format("{} has no aws_access_key_id and aws_secret_access_key for S3", found.source)));
  }
  return found;
}

std::map<std::string, std::string> SignS3(const S3Request& request, std::string_view host, std::string_view path, std::string_view region,
                                          const S3Credentials& credentials, absl::Time now, std::string_view payload_hash) {
  const std::string time = absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone()), day = time.substr(0, 8);
  std::map<std::string, std::string> headers = request.headers;
  headers["host"] = std::string(host);
  headers["x-amz-content-sha256"] = std::string(payload_hash);
  headers["x-amz-date"] = time;
  if (!credentials.session_token.empty()) headers["x-amz-security-token"] = credentials.session_token;
  std::string canonical = fmt::format("{}\n{}\n{}\n", request.method, Encoded(path, true), CanonicalQuery(request)), names;
  for (const auto& [name, value] : headers) {
    canonical += fmt::format("{}:{}\n", name, value);
    names += fmt::format("{}{}", names.empty() ? "" : ";", name);
  }
  canonical += fmt::format("\n{}\n{}", names, payload_hash);
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, region);
  Sha256Digest key = HmacSha256("AWS4" + credentials.secret_key, day);
  for (std::string_view part : {region, std::string_view("s3"), std::string_view("aws4_request")}) key = HmacSha256(BytesOf(key), part);
  const std::string text = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, Hex(Sha256(canonical)));
  headers["authorization"] = fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}", credentials.access_key, scope, names,
                                         Hex(HmacSha256(BytesOf(key), text)));
  headers.erase("host");
  return headers;
}

namespace {

struct CloseCurl {
  void operator()(CURL* handle) const { ::curl_easy_cleanup(handle); }
};
using Connection = std::unique_ptr<CURL, CloseCurl>;

size_t AddBody(char* data, size_t size, size_t count, void* body) {
  static_cast<std::string*>(body)->append(data, size * count);
  return size * count;
}

size_t AddHeader(char* data, size_t size, size_t count, void* headers) {
  std::string_view line(data, size * count);
  if (size_t colon = line.find(':'); colon != line.npos) {
    std::string name = absl::AsciiStrToLower(ToAbsl(line.substr(0, colon))), value(line.substr(colon + 1));
    absl::StripAsciiWhitespace(&value);
    (*static_cast<std::map<std::string, std::string>*>(headers))[name] = value;
  }
  return size * count;
}

// What is worth another attempt.
enum class Verdict { kDone, kRefused, kAgain, kExpired };

Verdict Judge(const S3Response& response, std::initializer_list<int64_t> expected) {
  // A request that takes long may begin its answer with 200 and fail after that.
  const bool failed_late = response.status == 200 && response.body.find("<Error>") != std::string::npos;
  if (!failed_late && std::find(expected.begin(), expected.end(), response.status) != expected.end()) return Verdict::kDone;
  const std::string code = XmlText(response.body, "Code");
  if (code == "ExpiredToken" || code == "TokenRefreshRequired" || code == "RequestExpired") return Verdict::kExpired;
  if (failed_late || response.status >= 500 || response.status == 429 || code == "SlowDown" || code == "RequestTimeout" || code == "BadDigest") {
    return Verdict::kAgain;
  }
  return Verdict::kRefused;
}

}  // namespace

struct S3Client::State {
  S3Options options;
  std::string base;   // scheme and host
  std::string host;   // with a port that is not the scheme's own
  std::string root;   // of paths: "/bucket/", or "/" where the host names the bucket
  std::string bucket;
  std::mutex mutex;
  S3Credentials credentials;
  std::vector<Connection> idle;
  std::mt19937 random{std::random_device()()};

  // Once; a status of 0 is a connection that failed, with why in `body`.
  S3Response Try(const S3Request& request);
  absl::Duration PauseAfter(int attempt) {
    std::lock_guard lock(mutex);
    const double part = std::uniform_real_distribution<double>(0.5, 1.0)(random);
    return std::min(options.first_pause * (1 << std::min(attempt, 16)), absl::Seconds(20)) * part;
  }
};

S3Response S3Client::State::Try(const S3Request& request) {
  Connection connection;
  S3Credentials sign_with;
  {
    std::lock_guard lock(mutex);
    sign_with = credentials;
    if (!idle.empty()) {
      connection = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (connection == nullptr) connection.reset(::curl_easy_init());
  if (connection == nullptr) return {.body = "out of memory"};
  CURL* curl = connection.get();
  ::curl_easy_reset(curl);   // keeps the connection itself
  const std::string path = root + request.key;
  std::string url = base + Encoded(path, true);
  if (std::string query = CanonicalQuery(request); !query.empty()) url += "?" + query;
  S3Response response;
  curl_slist* lines = nullptr;
  for (const auto& [name, value] : SignS3(request, host, path, options.region, sign_with, absl::Now())) {
    lines = ::curl_slist_append(lines, fmt::format("{}: {}", name, value).c_str());
  }
  // Not what curl would add by itself.
  for (const char* none : {"Expect:", "Content-Type:", "Accept:"}) lines = ::curl_slist_append(lines, none);
  ::curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  ::curl_easy_setopt(curl, CURLOPT_HTTPHEADER, lines);
  ::curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 15L);
  ::curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  ::curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(std::max<int64_t>(1, absl::ToInt64Seconds(options.silence_max))));
  ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, AddBody);
  ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &response.body);
  ::curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, AddHeader);
  ::curl_easy_setopt(curl, CURLOPT_HEADERDATA, &response.headers);
  if (request.method == "HEAD") {
    ::curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    ::curl_easy_setopt(curl, CURLOPT_POST, 1L);
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.empty() ? "" : reinterpret_cast<const char*>(request.body.data()));
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    ::curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  } else {
    ::curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  const CURLcode code = ::curl_easy_perform(curl);
  ::curl_slist_free_all(lines);
  if (code != CURLE_OK) return {.body = ::curl_easy_strerror(code)};   // the connection goes
  long status = 0;
  ::curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  response.status = status;
  std::lock_guard lock(mutex);
  idle.push_back(std::move(connection));
  return response;
}

S3Client::S3Client(std::unique_ptr<State> state) : state_(std::move(state)) {}
S3Client::~S3Client() = default;

absl::StatusOr<std::unique_ptr<S3Client>> S3Client::Create(std::string bucket, S3Options options) {
  static const CURLcode ready = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) return Internal("libcurl does not start: {}", ::curl_easy_strerror(ready));
  auto state = std::make_unique<State>();
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (options.region.empty()) options.region = Environment(name);
  }
  if (options.region.empty()) options.region = "us-east-1";
  for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    if (options.endpoint.empty()) options.endpoint = Environment(name);
  }
  state->root = "/";
  if (options.endpoint.empty()) {
    // A name with a dot fits no certificate of bucket hosts.
    const bool in_host = bucket.find('.') == std::string::npos;
    state->host = fmt::format("{}s3.{}.amazonaws.com", in_host ? bucket + "." : "", options.region);
    state->base = "https://" + state->host;
    if (!in_host) state->root += bucket + "/";
  } else {
    while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
    const size_t scheme = options.endpoint.starts_with("https://") ? 8 : options.endpoint.starts_with("http://") ? 7 : 0;
    state->host = options.endpoint.substr(scheme);
    if (scheme == 0 || state->host.empty() || state->host.find('/') != std::string::npos) {
      return InvalidArgument("S3 endpoint \"{}\": http://HOST:PORT or https://HOST is expected", options.endpoint);
    }
    state->base = options.endpoint;
    state->root += bucket + "/";
  }
  state->bucket = std::move(bucket);
  state->options = std::move(options);
  ARGOSY_ASSIGN_OR_RETURN(state->credentials, FindS3Credentials());
  return std::unique_ptr<S3Client>(new S3Client(std::move(state)));
}

absl::StatusOr<S3Response> S3Client::Send(const S3Request& request, std::initializer_list<int64_t> expected) {
  State& state = *state_;
  S3Response response;
  Verdict verdict = Verdict::kAgain;
  int attempt = 0, expired = 0;
  while (attempt < state.options.attempts_max) {
    response = state.Try(request);
    ++attempt;
    verdict = response.status == 0 ? Verdict::kAgain : Judge(response, expected);
    if (verdict == Verdict::kDone) return response;
    if (verdict == Verdict::kRefused || attempt == state.options.attempts_max) break;
    bool wait = true;
    if (verdict == Verdict::kExpired) {
      // Whoever renews them has perhaps done so.
      absl::StatusOr<S3Credentials> renewed = FindS3Credentials();
      std::lock_guard lock(state.mutex);
      if (renewed.ok() && !(*renewed == state.credentials)) {
        state.credentials = *std::move(renewed);
        wait = false;
      } else if (++expired == state.options.expired_max) {
        break;
      }
    }
    if (wait) absl::SleepFor(state.PauseAfter(attempt - 1));
  }
  const std::string what = fmt::format("S3 {} s3://{}/{} at {}", request.method, state.bucket, request.key, state.base);
  const std::string tries = attempt > 1 ? fmt::format(", {} attempts", attempt) : "";
  if (verdict == Verdict::kExpired) {
    return absl::UnauthenticatedError(ToAbsl(fmt::format("{}: the credentials have expired ({}){}: renew them", what, state.credentials.source, tries)));
  }
  if (response.status == 0) return absl::UnavailableError(ToAbsl(fmt::format("{}: {}{}", what, response.body, tries)));
  std::string words = XmlText(response.body, "Message");
  if (std::string code = XmlText(response.body, "Code"); !code.empty()) words = fmt::format("{}: {}", code, words);
  words.resize(std::min(words.size(), kErrorTextMax));
  std::string text = fmt::format("{}: HTTP status {}{}{}{}", what, response.status, words.empty() ? "" : ", ", words, tries);
  if (response.status == 403) return absl::PermissionDeniedError(ToAbsl(fmt::format("{} (credentials: {})", text, state.credentials.source)));
  if (response.status == 404) return absl::NotFoundError(ToAbsl(text));
  return verdict == Verdict::kAgain ? absl::UnavailableError(ToAbsl(text)) : absl::FailedPreconditionError(ToAbsl(text));
}

std::vector<std::string> XmlTexts(std::string_view xml, std::string_view tag) {
  const std::string open = fmt::format("<{}>", tag), close = fmt::format("</{}>", tag);
  std::vector<std::string> texts;
  for (size_t at = xml.find(open); at != xml.npos; at = xml.find(open, at)) {
    at += open.size();
    const size_t end = xml.find(close, at);
    if (end == xml.npos) break;
    std::string text(xml.substr(at, end - at));
    for (auto [from, to] : {std::pair<std::string_view, char>{"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#34;", '"'}, {"&apos;", '\''}, {"&#39;", '\''}, {"&amp;", '&'}}) {
      for (size_t i = text.find(from); i != std::string::npos; i = text.find(from, i + 1)) text.replace(i, from.size(), 1, to);
    }
    texts.push_back(std::move(text));
    at = end;
  }
  return texts;
}

std::string XmlText(std::string_view xml, std::string_view tag) {
  std::vector<std::string> texts = XmlTexts(xml, tag);
  return texts.empty() ? "" : std::move(texts.front());
}

std::string XmlEscaped(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '&') escaped += "&amp;";
    else if (c == '<') escaped += "&lt;";
    else if (c == '>') escaped += "&gt;";
    else escaped += c;
  }
  return escaped;
}

}  // namespace argosy::train
