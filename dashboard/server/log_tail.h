#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <string>

#include "dashboard/server/connection.h"

namespace argosy::dashboard {

struct LogTailRequest {
  boost::beast::http::request<boost::beast::http::string_body> upgrade;
  std::string submission_id;
  uint64_t offset = 0;
  // TEXT frames hold what the log says, as UTF-8. BYTES frames are binary: 8 bytes of offset (big endian), then the log's bytes
  // from there, so that a client can resume exactly and sees what is gone.
  bool bytes = false;
};

// Answers the upgrade and sends the log from `offset` until the job has ended and its last byte is out; then closes with 1000. In
// every other case the connection is reset without a closing frame: a client must never take a cut for the end.
boost::asio::awaitable<void> ServeLogTail(std::shared_ptr<ServerState> state, boost::beast::tcp_stream& stream, LogTailRequest request);

}  // namespace argosy::dashboard
