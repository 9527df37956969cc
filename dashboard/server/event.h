#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace argosy::dashboard {

// co_await gives [error, ...] instead of throwing.
inline constexpr auto kNoThrow = boost::asio::as_tuple(boost::asio::use_awaitable);

// Something that one coroutine waits for and another, or a posted function, announces.
//
// Thread:   the loop.
// Lifetime: outlives who waits.
class Event {
 public:
  explicit Event(boost::asio::io_context& loop) : timer_(loop) {}

  void Set() {
    set_ = true;
    timer_.cancel();
  }
  // Returns once Set was called since the last Wait.
  boost::asio::awaitable<void> Wait() {
    while (!set_) {
      timer_.expires_at(boost::asio::steady_timer::time_point::max());
      co_await timer_.async_wait(kNoThrow);
    }
    set_ = false;
  }

 private:
  boost::asio::steady_timer timer_;
  bool set_ = false;
};

}  // namespace argosy::dashboard
