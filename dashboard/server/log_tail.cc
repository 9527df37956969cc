#include "dashboard/server/log_tail.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket.hpp>

#include "dashboard/server/event.h"
#include "dashboard/server/utf8.h"
#include "spdlog/spdlog.h"

namespace argosy::dashboard {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace websocket = beast::websocket;
namespace {

constexpr size_t kFrameMax = 64 << 10;   // clients refuse frames above 4 MiB
constexpr size_t kClientMessageMax = 4 << 10;

using Socket = websocket::stream<beast::tcp_stream&>;

// One followed log: a sender, a reader that answers pings and notices the client's end, and a pinger. All on the loop.
struct Tail {
  Tail(asio::io_context& loop, beast::tcp_stream& stream)
      : socket(stream), ping_timer(loop), reader_ended(loop), pinger_ended(loop) {}
  Socket socket;
  asio::steady_timer ping_timer;
  Event reader_ended;
  Event pinger_ended;
  std::shared_ptr<LogFollow> follow;
  bool client_gone = false;
};

asio::awaitable<void> ReadUntilClosed(Tail& tail) {
  beast::flat_buffer buffer;
  for (;;) {
    auto [error, size] = co_await tail.socket.async_read(buffer, kNoThrow);
    if (error) break;
    buffer.clear();   // clients have nothing to say
  }
  tail.client_gone = true;
  if (tail.follow) tail.follow->Cancel();
  tail.reader_ended.Set();
}

asio::awaitable<void> PingUntilClosed(Tail& tail, std::chrono::seconds period) {
  while (!tail.client_gone) {
    tail.ping_timer.expires_after(period);
    auto [expired] = co_await tail.ping_timer.async_wait(kNoThrow);
    if (expired || tail.client_gone) break;
    auto [error] = co_await tail.socket.async_ping({}, kNoThrow);
    if (error) break;
  }
  tail.pinger_ended.Set();
}

asio::awaitable<bool> Send(Tail& tail, std::string frame, bool text) {
  tail.socket.text(text);
  auto [error, size] = co_await tail.socket.async_write(asio::buffer(frame), kNoThrow);
  co_return !error;
}

asio::awaitable<bool> SendText(Tail& tail, std::string text) {
  for (std::string_view piece : SplitUtf8(text, kFrameMax)) {
    std::string frame(piece);
    bool sent = co_await Send(tail, std::move(frame), /*text=*/true);
    if (!sent) co_return false;
  }
  co_return true;
}

asio::awaitable<bool> SendBytes(Tail& tail, uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    std::string_view piece = bytes.substr(0, kFrameMax);
    std::string frame;
    for (int shift = 56; shift >= 0; shift -= 8) frame += static_cast<char>(offset >> shift);
    frame += piece;
    bool sent = co_await Send(tail, std::move(frame), /*text=*/false);
    if (!sent) co_return false;
    offset += piece.size();
    bytes.remove_prefix(piece.size());
  }
  co_return true;
}

// True once the job has ended and all of its log is sent.
asio::awaitable<bool> SendLog(ServerState& state, Tail& tail, LogTailRequest& request) {
  Utf8Stream utf8;
  uint64_t offset = request.offset;
  for (;;) {
    tail.follow = state.head.FollowLog(request.submission_id, offset);
    for (;;) {
      std::optional<v1::LogChunk> chunk = co_await tail.follow->Next();
      if (!chunk) break;
      if (chunk->data().empty()) continue;
      bool sent;
      if (request.bytes) {
        sent = co_await SendBytes(tail, chunk->offset(), chunk->data());
      } else {
        std::string text;
        if (chunk->offset() > offset) {
          text = utf8.Finish() + fmt::format("[{} bytes of this log are gone: it grew past its limit]\n", chunk->offset() - offset);
        }
        text += utf8.Feed(chunk->data());
        sent = co_await SendText(tail, std::move(text));
      }
      if (!sent) co_return false;
      offset = chunk->offset() + chunk->data().size();
    }
    absl::Status ended = tail.follow->status();
    if (tail.client_gone || state.stopping) co_return false;
    if (!ended.ok()) {
      spdlog::warn("dashboard: the log of {} broke off at byte {}: {}", request.submission_id, offset, Message(ended));
      co_return false;
    }
    absl::StatusOr<v1::JobInfo> job = co_await state.head.GetJob(request.submission_id);
    bool deleted = job.status().code() == absl::StatusCode::kNotFound;   // only a job that ended can be deleted
    if (!job.ok() && !deleted) co_return false;
    if (deleted || IsTerminal(job->state())) {
      std::string rest = utf8.Finish();
      co_return co_await SendText(tail, std::move(rest));
    }
  }
}

}  // namespace

asio::awaitable<void> ServeLogTail(std::shared_ptr<ServerState> state, beast::tcp_stream& stream, LogTailRequest request) {
  Tail tail(state->loop, stream);
  stream.expires_never();   // the WebSocket has its own time-outs
  websocket::stream_base::timeout timeouts{
      .handshake_timeout = state->options.limits.stalled_timeout, .idle_timeout = websocket::stream_base::none(), .keep_alive_pings = false};
  tail.socket.set_option(timeouts);
  tail.socket.set_option(websocket::stream_base::decorator(
      [](websocket::response_type& response) { response.set(beast::http::field::server, "argosy/" + std::string(kVersion)); }));
  tail.socket.read_message_max(kClientMessageMax);
  tail.socket.auto_fragment(false);
  beast::error_code ignored;
  // A client that vanished without a word is noticed even while nothing is sent.
  stream.socket().set_option(asio::socket_base::keep_alive(true), ignored);

  auto [error] = co_await tail.socket.async_accept(request.upgrade, kNoThrow);
  if (error) co_return;
  asio::co_spawn(state->loop, ReadUntilClosed(tail), asio::detached);
  asio::co_spawn(state->loop, PingUntilClosed(tail, state->options.limits.ping_period), asio::detached);

  bool complete = co_await SendLog(*state, tail, request);
  if (complete) {
    co_await tail.socket.async_close(websocket::close_code::normal, kNoThrow);
  } else {
    stream.socket().set_option(asio::socket_base::linger(true, 0), ignored);   // a reset, not an orderly end
  }
  if (tail.follow) tail.follow->Cancel();
  stream.socket().close(ignored);
  co_await tail.reader_ended.Wait();
  tail.ping_timer.cancel();
  co_await tail.pinger_ended.Wait();
}

}  // namespace argosy::dashboard
