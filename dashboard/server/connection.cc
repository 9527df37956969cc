#include "dashboard/server/connection.h"

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <charconv>
#include <optional>

#include "dashboard/server/access.h"
#include "dashboard/server/event.h"
#include "dashboard/server/log_tail.h"
#include "spdlog/spdlog.h"

namespace argosy::dashboard {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace {

constexpr size_t kUploadPiece = 256 << 10;
constexpr uint64_t kDrainMax = 1ull << 30;   // of a body that is refused: clients read the answer only after sending it all

using HeadParser = http::request_parser<http::empty_body>;

std::string Std(beast::string_view text) { return std::string(text.data(), text.size()); }

RequestHead ReadHead(const http::request<http::empty_body>& request) {
  RequestHead head;
  head.method = Std(request.method_string());
  std::string target = Std(request.target());
  size_t question = target.find('?');
  head.path = target.substr(0, question);
  if (question != target.npos) head.query = target.substr(question + 1);
  head.host = Std(request[http::field::host]);
  head.origin = Std(request[http::field::origin]);
  head.user_agent = Std(request[http::field::user_agent]);
  head.authorization = Std(request[http::field::authorization]);
  head.ray_authorization = Std(request["X-Ray-Authorization"]);
  head.cookie = Std(request[http::field::cookie]);
  head.fetch_site = Std(request["Sec-Fetch-Site"]);
  for (const char* name : {"Referer", "Origin", "Sec-Fetch-Mode", "Sec-Fetch-Dest", "Sec-Fetch-Site", "Sec-Fetch-User",
                           "Access-Control-Request-Method", "Access-Control-Request-Headers"}) {
    head.has_browser_header = head.has_browser_header || request.find(name) != request.end();
  }
  head.is_upgrade = beast::websocket::is_upgrade(request);
  return head;
}

// One client's connection. Runs request after request on the loop.
class Connection {
 public:
  Connection(std::shared_ptr<ServerState> state, asio::ip::tcp::socket socket)
      : state_(std::move(state)), stream_(std::move(socket)) {
    state_->open.insert(&stream_);
    state_->unproven.push_back(&stream_);
  }
  ~Connection() {
    state_->open.erase(&stream_);
    state_->unproven.remove(&stream_);
  }

  asio::awaitable<void> Run() {
    while (!state_->stopping) {
      bool go_on = co_await ServeOne();
      if (!go_on) break;
    }
    beast::error_code ignored;
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  }

 private:
  const DashboardLimits& limits() const { return state_->options.limits; }

  // False: the connection ends here.
  asio::awaitable<bool> ServeOne() {
    HeadParser parser;
    parser.header_limit(limits().header_bytes_max);
    parser.body_limit(boost::none);   // each kind of request has its own
    stream_.expires_after(limits().idle_timeout);
    auto [error, size] = co_await http::async_read_header(stream_, buffer_, parser, kNoThrow);
    if (error) {
      Response refusal;
      if (error == http::error::header_limit || error == http::error::buffer_overflow) {
        refusal = TextResponse(431, fmt::format("Request header fields exceed {} bytes.", limits().header_bytes_max));
      } else if (error.category() == http::make_error_code(http::error::bad_method).category() && error != http::error::end_of_stream &&
                 error != http::error::partial_message) {
        refusal = TextResponse(400, fmt::format("400: Bad Request: {}", error.message()));
      } else {
        co_return false;   // closed, idle for too long, or cut
      }
      co_await Send(std::move(refusal), /*version=*/11, /*keep_alive=*/false, /*head_only=*/false);
      co_return false;
    }

    const http::request<http::empty_body>& request = parser.get();
    version_ = request.version();
    keep_alive_ = request.keep_alive();
    RequestHead head = ReadHead(request);
    head_only_ = head.method == "HEAD";
    expects_continue_ = beast::iequals(request[http::field::expect], "100-continue");
    Route route = MatchRoute(head.method, head.path);

    std::optional<Response> refusal = Refusal(head, route.endpoint, state_->options.token);
    if (refusal) co_return co_await RefuseBody(parser, *std::move(refusal));
    if (!IsOpenToAll(route.endpoint)) state_->unproven.remove(&stream_);
    if (route.endpoint == Endpoint::kPackage && head.method == "PUT") co_return co_await Upload(parser, std::move(route));
    if (route.endpoint == Endpoint::kJobLogTail && head.is_upgrade) co_return co_await Tail(parser, head, std::move(route));
    if (route.endpoint == Endpoint::kStatic) {
      Response response = state_->files.Serve(head.path, Std(request[http::field::if_none_match]));
      co_return co_await RefuseBody(parser, std::move(response));
    }
    if (route.endpoint == Endpoint::kJobLogTail) {
      absl::StatusOr<v1::JobInfo> job = co_await state_->api.FindJob(route.id);
      Response response = job.ok() ? TextResponse(426, "426: Upgrade Required: this address sends a job's log over a WebSocket")
                                   : Api::JobError(job.status(), route.id);
      co_return co_await RefuseBody(parser, std::move(response));
    }
    uint64_t length = parser.content_length().value_or(0);
    if (length > limits().body_bytes_max) co_return co_await RefuseBody(parser, TooLarge(limits().body_bytes_max));

    http::request_parser<http::string_body> whole(std::move(parser));
    whole.body_limit(limits().body_bytes_max);
    if (expects_continue_ && !whole.is_done()) co_await SendContinue();
    stream_.expires_after(limits().stalled_timeout);
    auto [body_error, body_size] = co_await http::async_read(stream_, buffer_, whole, kNoThrow);
    if (body_error == http::error::body_limit) {
      keep_alive_ = false;
      co_return co_await Reply(TooLarge(limits().body_bytes_max));
    }
    if (body_error) co_return false;
    Response response = co_await state_->api.Handle(std::move(route), head.method, std::move(whole.get().body()));
    co_return co_await Reply(std::move(response));
  }

  static Response TooLarge(uint64_t limit) { return TextResponse(413, fmt::format("Maximum request body size {} exceeded.", limit)); }

  // Answers a request whose body nobody wants. A client that waits for "100 Continue" has not sent it; any other reads the answer
  // only when all of its body is taken, so it is taken and dropped, within bounds.
  asio::awaitable<bool> RefuseBody(HeadParser& parser, Response response) {
    if (parser.is_done()) co_return co_await Reply(std::move(response));
    if (expects_continue_) {
      keep_alive_ = false;
      co_return co_await Reply(std::move(response));
    }
    http::request_parser<http::buffer_body> body(std::move(parser));
    body.body_limit(kDrainMax);
    std::string piece(kUploadPiece, '\0');
    while (!body.is_done()) {
      body.get().body().data = piece.data();
      body.get().body().size = piece.size();
      body.get().body().more = true;
      stream_.expires_after(limits().stalled_timeout);
      auto [error, size] = co_await http::async_read_some(stream_, buffer_, body, kNoThrow);
      if (error && error != http::error::need_buffer) {
        keep_alive_ = false;
        break;
      }
    }
    co_return co_await Reply(std::move(response));
  }

  asio::awaitable<bool> Upload(HeadParser& parser, Route route) {
    absl::Status ok = CheckPackage(route.protocol, route.id);
    if (!ok.ok()) co_return co_await RefuseBody(parser, Api::Error(ok));
    uint64_t length = parser.content_length().value_or(0);
    if (length > limits().package_bytes_max) co_return co_await RefuseBody(parser, TooLarge(limits().package_bytes_max));

    http::request_parser<http::buffer_body> body(std::move(parser));
    body.body_limit(limits().package_bytes_max);
    if (expects_continue_ && !body.is_done()) co_await SendContinue();
    std::shared_ptr<PackageUpload> upload = state_->head.PutPackage(route.id, length);
    std::string piece(kUploadPiece, '\0');
    bool head_takes = true;
    bool named = false;   // the head learns the name from the first chunk, so an empty package sends one too
    while (!body.is_done() || !named) {
      size_t got = 0;
      if (!body.is_done()) {
        body.get().body().data = piece.data();
        body.get().body().size = piece.size();
        body.get().body().more = true;
        stream_.expires_after(limits().stalled_timeout);
        auto [error, size] = co_await http::async_read_some(stream_, buffer_, body, kNoThrow);
        if (error && error != http::error::need_buffer) {
          upload->Cancel();
          if (error != http::error::body_limit) co_return false;
          keep_alive_ = false;
          co_return co_await Reply(TooLarge(limits().package_bytes_max));
        }
        got = piece.size() - body.get().body().size;
      }
      // After a refusal by the head the rest of the body is dropped, so that the client gets to read why.
      if (head_takes && (got > 0 || body.is_done())) {
        head_takes = co_await upload->Write(std::string_view(piece).substr(0, got));
        named = true;
      }
      if (!head_takes) named = true;
    }
    absl::StatusOr<v1::PackageStatus> stored = co_await upload->Finish();
    Response response{.content_type = ""};
    if (!stored.ok()) response = Api::Error(stored.status());
    co_return co_await Reply(std::move(response));
  }

  asio::awaitable<bool> Tail(HeadParser& parser, const RequestHead& head, Route route) {
    absl::StatusOr<v1::JobInfo> job = co_await state_->api.FindJob(route.id);
    if (!job.ok()) co_return co_await RefuseBody(parser, Api::JobError(job.status(), route.id));
    if (!job->is_submission()) co_return co_await RefuseBody(parser, Api::NotSubmission("get logs of"));
    LogTailRequest request;
    request.submission_id = job->submission_id();
    request.bytes = QueryValue(head.query, "format") == "bytes";
    std::string offset = QueryValue(head.query, "offset");
    auto [end, error] = std::from_chars(offset.data(), offset.data() + offset.size(), request.offset);
    if (!offset.empty() && (error != std::errc() || end != offset.data() + offset.size())) {
      Response refusal = TextResponse(400, fmt::format("offset must be a number of bytes, got \"{}\"", offset.substr(0, 100)));
      co_return co_await RefuseBody(parser, std::move(refusal));
    }
    request.upgrade.base() = parser.get().base();
    co_await ServeLogTail(state_, stream_, std::move(request));
    co_return false;
  }

  asio::awaitable<void> SendContinue() {
    expects_continue_ = false;
    http::response<http::empty_body> go_on{http::status::continue_, version_};
    stream_.expires_after(limits().stalled_timeout);
    co_await http::async_write(stream_, go_on, kNoThrow);
  }

  asio::awaitable<bool> Reply(Response response) {
    return Send(std::move(response), version_, keep_alive_ && !state_->stopping, head_only_);
  }

  asio::awaitable<bool> Send(Response response, unsigned version, bool keep_alive, bool head_only) {
    http::response<http::string_body> message{static_cast<http::status>(response.status), version};
    message.set(http::field::server, "argosy/" + std::string(kVersion));
    if (!response.content_type.empty()) message.set(http::field::content_type, response.content_type);
    message.set("X-Content-Type-Options", "nosniff");
    bool cacheable = false;
    for (const auto& [name, value] : response.headers) {
      message.set(name, value);
      cacheable = cacheable || name == "Cache-Control";
    }
    if (!cacheable) message.set(http::field::cache_control, "no-store");
    message.keep_alive(keep_alive);
    size_t length = response.body.size();
    if (!head_only) message.body() = std::move(response.body);
    if (response.status != 304) message.content_length(length);
    http::response_serializer<http::string_body> serializer{message};
    if (head_only) serializer.split(true);
    // An answer may be large and the client slow: each step gets its time, not the whole.
    while (!serializer.is_done()) {
      stream_.expires_after(limits().stalled_timeout);
      auto [error, size] = co_await http::async_write_some(stream_, serializer, kNoThrow);
      if (error) co_return false;
      if (head_only && serializer.is_header_done()) break;
    }
    co_return keep_alive;
  }

  std::shared_ptr<ServerState> state_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{1 << 20};
  unsigned version_ = 11;
  bool keep_alive_ = false;
  bool head_only_ = false;
  bool expects_continue_ = false;
};

}  // namespace

asio::awaitable<void> ServeConnection(std::shared_ptr<ServerState> state, asio::ip::tcp::socket socket) {
  Connection connection(std::move(state), std::move(socket));
  co_await connection.Run();
}

}  // namespace argosy::dashboard
