#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <list>
#include <memory>
#include <set>

#include "dashboard/server/api.h"
#include "dashboard/server/dashboard_server.h"
#include "dashboard/server/static_files.h"

namespace argosy::dashboard {

// What the connections of one server share. Outlives them.
struct ServerState {
  ServerState(boost::asio::io_context& loop, const DashboardOptions& options, std::shared_ptr<grpc::Channel> channel)
      : loop(loop), options(options), head(loop, std::move(channel)), api(head, this->options.token), files(options.web_dir) {}

  boost::asio::io_context& loop;
  const DashboardOptions options;
  HeadClient head;
  Api api;
  const StaticFiles files;
  std::set<boost::beast::tcp_stream*> open;        // so that Stop can cut them
  std::list<boost::beast::tcp_stream*> unproven;   // of those, the ones that have not shown the token; the oldest first
  bool stopping = false;
};

// Serves one connection until it ends.
boost::asio::awaitable<void> ServeConnection(std::shared_ptr<ServerState> state, boost::asio::ip::tcp::socket socket);

}  // namespace argosy::dashboard
