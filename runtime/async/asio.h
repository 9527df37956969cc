#pragma once

// The one door to Asio, for folders whose libraries are made of it (Beast in dashboard/server). Everyone else uses loop.h.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "runtime/async/loop.h"

namespace argosy::async {

struct Loop::Impl {
  boost::asio::io_context context;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work = boost::asio::make_work_guard(context);
};

}  // namespace argosy::async
