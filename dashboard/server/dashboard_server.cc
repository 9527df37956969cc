#include "dashboard/server/dashboard_server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <filesystem>
#include <thread>

#include "dashboard/server/connection.h"
#include "runtime/base/status.h"
#include "spdlog/spdlog.h"

namespace argosy {
namespace asio = boost::asio;
using asio::ip::tcp;
using dashboard::ServerState;

class DashboardServer::Impl {
 public:
  Impl(DashboardOptions options, std::shared_ptr<grpc::Channel> head)
      : host_(options.host), state_(std::make_shared<ServerState>(loop_, options, std::move(head))), acceptor_(loop_), retry_(loop_) {}

  ~Impl() { Stop(); }

  absl::Status Listen() {
    boost::system::error_code error;
    tcp::resolver resolver(loop_);
    auto found = resolver.resolve(host_, std::to_string(state_->options.port), tcp::resolver::passive, error);
    if (error || found.empty()) return InvalidArgument("dashboard: cannot listen on host \"{}\": {}", host_, error.message());
    tcp::endpoint endpoint = found.begin()->endpoint();
    if (state_->options.token.IsEmpty() && !endpoint.address().is_loopback()) {
      return InvalidArgument("dashboard: listening on {} without a cluster token would let anyone run commands here: keep 127.0.0.1 or give a token",
                             host_);
    }
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    if (error) {
      return Unavailable("dashboard: cannot listen on {}:{}: {} (choose another port with --dashboard-port; 0 takes any free one)", host_,
                         endpoint.port(), error.message());
    }
    asio::co_spawn(loop_, Accept(), [](std::exception_ptr failed) { Report(failed); });
    thread_ = std::thread([this] { loop_.run(); });
    return absl::OkStatus();
  }

  void Stop() {
    if (!thread_.joinable()) return;
    asio::post(loop_, [this] {
      state_->stopping = true;
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      retry_.cancel();
      state_->head.Cancel();
      for (boost::beast::tcp_stream* stream : state_->open) {
        // Reset: a followed log that is cut here is not complete.
        stream->socket().set_option(asio::socket_base::linger(true, 0), ignored);
        stream->close();
      }
    });
    thread_.join();
  }

  uint16_t port() const { return port_; }
  std::string url() const {
    std::string host = host_ == "0.0.0.0" || host_ == "::" ? "127.0.0.1" : host_;
    if (host.find(':') != host.npos) host = "[" + host + "]";
    return fmt::format("http://{}:{}", host, port_);
  }

 private:
  static void Report(std::exception_ptr failed) {
    if (!failed) return;
    try {
      std::rethrow_exception(failed);
    } catch (const std::exception& error) {
      spdlog::error("dashboard: a connection ended by {}", error.what());
    }
  }

  asio::awaitable<void> Accept() {
    while (acceptor_.is_open()) {
      auto [error, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
      if (state_->stopping) co_return;
      if (error) {
        // No descriptor left, or the client was already gone: a breath, then again.
        retry_.expires_after(std::chrono::milliseconds(50));
        co_await retry_.async_wait(asio::as_tuple(asio::use_awaitable));
        continue;
      }
      boost::system::error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      if (state_->open.size() >= state_->options.limits.connections_max && !state_->unproven.empty()) {
        // Whoever has no token cannot keep those out who have one.
        state_->unproven.front()->close();
        state_->unproven.pop_front();
      } else if (state_->open.size() >= state_->options.limits.connections_max) {
        static constexpr char kBusy[] =
            "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\n"
            "too many connections\n";
        socket.non_blocking(true, ignored);
        socket.send(asio::buffer(kBusy, sizeof kBusy - 1), 0, ignored);
        continue;
      }
      asio::co_spawn(loop_, dashboard::ServeConnection(state_, std::move(socket)), [](std::exception_ptr failed) { Report(failed); });
    }
  }

  std::string host_;
  uint16_t port_ = 0;
  asio::io_context loop_{1};
  std::shared_ptr<ServerState> state_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::thread thread_;
};

std::string FindWebDirectory(const std::string& override, const std::string& executable) {
  if (!override.empty()) return override;
  std::error_code error;
  std::filesystem::path installed = std::filesystem::path(executable).parent_path().parent_path() / "share/argosy/web";
  if (std::filesystem::exists(installed / "index.html", error)) return installed.string();
  return ARGOSY_WEB_DIST;
}

DashboardServer::DashboardServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DashboardServer::~DashboardServer() = default;

absl::StatusOr<std::unique_ptr<DashboardServer>> DashboardServer::Start(DashboardOptions options, std::shared_ptr<grpc::Channel> head) {
  if (options.token.IsEmpty()) {
    spdlog::warn("dashboard: authentication is off: whoever reaches {}:{} can run commands here", options.host, options.port);
  }
  auto impl = std::make_unique<Impl>(std::move(options), std::move(head));
  ARGOSY_RETURN_IF_ERROR(impl->Listen());
  spdlog::info("dashboard: {}", impl->url());
  return std::unique_ptr<DashboardServer>(new DashboardServer(std::move(impl)));
}

uint16_t DashboardServer::port() const { return impl_->port(); }
std::string DashboardServer::url() const { return impl_->url(); }
void DashboardServer::Stop() { impl_->Stop(); }

}  // namespace argosy
