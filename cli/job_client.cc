#include "cli/job_client.h"

#include <netinet/tcp.h>
#include <poll.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>
#include <chrono>
#include <fstream>
#include <thread>

#include "runtime/base/limits.h"
#include "runtime/base/status.h"

namespace argosy::cli {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
using asio::ip::tcp;
using Json = nlohmann::ordered_json;

namespace {

constexpr size_t kPiece = 256 << 10;
constexpr std::chrono::milliseconds kRetryPause{500};
constexpr int kAnswerPatienceMillis = 60'000;

absl::Status Unreachable(const JobAddress& address, const std::string& why) {
  return Unavailable("no head answers at {}: {} (is it running? name another with --address or ARGOSY_JOB_ADDRESS)", address.text, why);
}

absl::Status FromHttp(unsigned status, std::string text) {
  if (text.size() > 4000) text = "..." + text.substr(text.size() - 4000);
  switch (status) {
    case 401:
    case 403:
      return MakeStatus(absl::StatusCode::kPermissionDenied,
                        "{}. The token is taken from --token-file, else ARGOSY_AUTH_TOKEN, else ~/.argosy/token of the user who started the head",
                        text);
    case 404: return NotFound("{}", text);
    case 400: return InvalidArgument("{}", text);
    case 503: return Unavailable("{}", text);
    default: return Internal("{} (HTTP status {})", text, status);
  }
}

absl::StatusOr<tcp::socket> Connect(asio::io_context& loop, const JobAddress& address) {
  boost::system::error_code error;
  tcp::resolver resolver(loop);
  auto found = resolver.resolve(address.host, address.port, error);
  if (error) return Unreachable(address, error.message());
  tcp::socket socket(loop);
  asio::connect(socket, found, error);
  if (error) return Unreachable(address, error.message());
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  // A peer that vanished without a word is noticed within a minute and a half, also while it has nothing to say.
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  using Value = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  using Interval = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
  using Count = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
  using Unanswered = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>;
  socket.set_option(Value(30), ignored);
  socket.set_option(Interval(15), ignored);
  socket.set_option(Count(4), ignored);
  socket.set_option(Unanswered(90'000), ignored);
  return socket;
}

std::string HostHeader(const JobAddress& address) {
  std::string host = address.host.find(':') == std::string::npos ? address.host : "[" + address.host + "]";
  return host + ":" + address.port;
}

template <class Message>
void SetCommonFields(Message& message, const JobAddress& address, const Token& token) {
  message.set(http::field::host, HostHeader(address));
  message.set(http::field::user_agent, "argosy/" + std::string(kVersion));
  if (!token.IsEmpty()) message.set(http::field::authorization, "Bearer " + token.text());
}

absl::StatusOr<http::response<http::string_body>> ReadResponse(tcp::socket& socket, const JobAddress& address) {
  // Something that accepts and says nothing is no head.
  pollfd wait{socket.native_handle(), POLLIN, 0};
  if (::poll(&wait, 1, kAnswerPatienceMillis) == 0) return Unreachable(address, fmt::format("no answer in {} s", kAnswerPatienceMillis / 1000));
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  beast::error_code error;
  http::read(socket, buffer, parser, error);
  if (error) return Unreachable(address, error.message());
  return parser.release();
}

std::string Escape(std::string_view text) {
  std::string escaped;
  for (unsigned char c : text) {
    bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '~';
    escaped += plain ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
  }
  return escaped;
}

}  // namespace

absl::StatusOr<JobAddress> ParseJobAddress(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (text.substr(0, 8) == "https://") {
    return InvalidArgument("address \"{}\": https is not spoken here; http://HOST:PORT is expected (through a tunnel or proxy that ends TLS)", text);
  }
  if (text.substr(0, kScheme.size()) != kScheme) {
    return InvalidArgument("address \"{}\": http://HOST:PORT is expected, for example http://127.0.0.1:{}", text, kDashboardPort);
  }
  std::string_view rest = text.substr(kScheme.size());
  while (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
  JobAddress address;
  std::string_view port;
  if (!rest.empty() && rest.front() == '[') {
    size_t close = rest.find(']');
    if (close == rest.npos) return InvalidArgument("address \"{}\": \"]\" is missing", text);
    address.host = std::string(rest.substr(1, close - 1));
    port = rest.substr(close + 1);
  } else {
    size_t colon = rest.find(':');
    address.host = std::string(rest.substr(0, colon));
    port = colon == rest.npos ? std::string_view() : rest.substr(colon);
  }
  if (!port.empty()) port.remove_prefix(1);
  address.port = port.empty() ? std::to_string(kDashboardPort) : std::string(port);
  bool digits = address.port.find_first_not_of("0123456789") == std::string::npos && address.port.size() <= 5;
  if (address.host.empty() || !digits || rest.find('/') != rest.npos) {
    return InvalidArgument("address \"{}\": http://HOST:PORT is expected, for example http://127.0.0.1:{}", text, kDashboardPort);
  }
  address.text = "http://" + HostHeader(address);
  return address;
}

std::string JobPath(std::string_view id) { return "/api/jobs/" + Escape(id); }

absl::StatusOr<Json> JobClient::Call(const std::string& method, const std::string& path, const Json& body) {
  asio::io_context loop;
  ARGOSY_ASSIGN_OR_RETURN(tcp::socket socket, Connect(loop, address_));
  http::request<http::string_body> request{http::string_to_verb(method), path, 11};
  SetCommonFields(request, address_, token_);
  request.keep_alive(false);
  if (!body.is_null()) {
    request.set(http::field::content_type, "application/json");
    request.body() = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  request.prepare_payload();
  beast::error_code error;
  http::write(socket, request, error);
  if (error) return Unreachable(address_, error.message());
  ARGOSY_ASSIGN_OR_RETURN(http::response<http::string_body> response, ReadResponse(socket, address_));
  if (response.result_int() != 200) return FromHttp(response.result_int(), response.body());
  Json json = Json::parse(response.body(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Internal("{} answered {} {} with something that is not JSON", address_.text, method, path);
  return json;
}

absl::StatusOr<bool> JobClient::HasPackage(const std::string& name) {
  asio::io_context loop;
  ARGOSY_ASSIGN_OR_RETURN(tcp::socket socket, Connect(loop, address_));
  http::request<http::empty_body> request{http::verb::get, "/api/packages/gcs/" + name, 11};
  SetCommonFields(request, address_, token_);
  request.keep_alive(false);
  beast::error_code error;
  http::write(socket, request, error);
  if (error) return Unreachable(address_, error.message());
  ARGOSY_ASSIGN_OR_RETURN(http::response<http::string_body> response, ReadResponse(socket, address_));
  if (response.result_int() == 404) return false;
  if (response.result_int() != 200) return FromHttp(response.result_int(), response.body());
  return true;
}

absl::Status JobClient::PutPackage(const std::string& name, const std::string& path,
                                   const std::function<void(uint64_t sent, uint64_t size)>& progress) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return NotFound("cannot read {}", path);
  uint64_t size = static_cast<uint64_t>(file.tellg());
  file.seekg(0);
  asio::io_context loop;
  ARGOSY_ASSIGN_OR_RETURN(tcp::socket socket, Connect(loop, address_));
  http::request<http::empty_body> request{http::verb::put, "/api/packages/gcs/" + name, 11};
  SetCommonFields(request, address_, token_);
  request.set(http::field::content_type, "application/zip");
  request.content_length(size);
  request.keep_alive(false);
  beast::error_code error;
  http::request_serializer<http::empty_body> serializer{request};
  http::write_header(socket, serializer, error);
  std::string piece(kPiece, '\0');
  uint64_t sent = 0;
  while (!error && sent < size) {
    file.read(piece.data(), static_cast<std::streamsize>(std::min<uint64_t>(piece.size(), size - sent)));
    if (file.gcount() <= 0) return Internal("{} became shorter while it was sent", path);
    asio::write(socket, asio::buffer(piece.data(), static_cast<size_t>(file.gcount())), error);
    sent += static_cast<uint64_t>(file.gcount());
    progress(sent, size);
  }
  // Also after a failed write: a server that refuses says why before it stops reading.
  absl::StatusOr<http::response<http::string_body>> response = ReadResponse(socket, address_);
  if (!response.ok()) return error ? Unreachable(address_, error.message()) : response.status();
  if (response->result_int() != 200) return FromHttp(response->result_int(), response->body());
  return absl::OkStatus();
}

absl::Status JobClient::FollowOnce(const std::string& id, uint64_t& offset, bool& complete, const std::function<void(std::string_view)>& take) {
  asio::io_context loop;
  ARGOSY_ASSIGN_OR_RETURN(tcp::socket socket, Connect(loop, address_));
  websocket::stream<tcp::socket> stream(std::move(socket));
  stream.set_option(websocket::stream_base::decorator([this](websocket::request_type& request) { SetCommonFields(request, address_, token_); }));
  stream.read_message_max(4 << 20);
  websocket::response_type answer;
  beast::error_code error;
  stream.handshake(answer, HostHeader(address_), fmt::format("{}/logs/tail?format=bytes&offset={}", JobPath(id), offset), error);
  if (error == websocket::error::upgrade_declined) return FromHttp(answer.result_int(), answer.body());
  if (error) return Unreachable(address_, error.message());
  for (;;) {
    beast::flat_buffer buffer;
    stream.read(buffer, error);
    if (error) break;
    std::string frame = beast::buffers_to_string(buffer.data());
    if (!stream.got_binary() || frame.size() < 8) return Internal("{} sent a log frame of an unknown kind", address_.text);
    uint64_t begin = 0;
    for (size_t i = 0; i < 8; ++i) begin = begin << 8 | static_cast<unsigned char>(frame[i]);
    if (begin < offset) return Internal("{} sent log bytes from {}, {} was asked for", address_.text, begin, offset);
    if (begin > offset) take(fmt::format("[{} bytes of this log are gone: it grew past its limit]\n", begin - offset));
    take(std::string_view(frame).substr(8));
    offset = begin + frame.size() - 8;
  }
  complete = error == websocket::error::closed && stream.reason().code == websocket::close_code::normal;
  return complete ? absl::OkStatus() : Unreachable(address_, error.message());
}

absl::Status JobClient::FollowLog(const std::string& id, uint64_t offset, int patience_seconds,
                                  const std::function<void(std::string_view)>& take,
                                  const std::function<void(const absl::Status&)>& lost_contact) {
  using SteadyClock = std::chrono::steady_clock;
  SteadyClock::time_point lost{};
  for (bool complete = false; !complete;) {
    uint64_t before = offset;
    SteadyClock::time_point begun = SteadyClock::now();
    absl::Status status = FollowOnce(id, offset, complete, take);
    if (complete) break;
    // Only silence is waited out; what the server says itself (no such job, wrong token) is final.
    if (status.code() != absl::StatusCode::kUnavailable) return status;
    bool moved = offset > before || SteadyClock::now() - begun > std::chrono::seconds(5);
    if (moved || lost == SteadyClock::time_point{}) {
      lost = SteadyClock::now();
      lost_contact(status);
    }
    if (SteadyClock::now() - lost > std::chrono::seconds(patience_seconds)) return status;
    std::this_thread::sleep_for(kRetryPause);
  }
  return absl::OkStatus();
}

}  // namespace argosy::cli
