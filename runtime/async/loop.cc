#include "runtime/async/loop.h"

#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>

#include "runtime/async/asio.h"

namespace argosy::async {

namespace asio = boost::asio;
using boost::system::error_code;

Loop::Loop() : impl_(std::make_unique<Impl>()) {}
Loop::~Loop() = default;

void Loop::Post(UniqueFunction<void()> function) { asio::post(impl_->context, std::move(function)); }

void Loop::Run() { impl_->context.run(); }

size_t Loop::RunFor(absl::Duration timeout) {
  size_t count = impl_->context.poll();
  if (count > 0 || impl_->context.stopped()) return count;
  count = impl_->context.run_one_for(absl::ToChronoNanoseconds(timeout));
  return count + (count > 0 ? impl_->context.poll() : 0);
}

size_t Loop::Poll() { return impl_->context.poll(); }
void Loop::Stop() { impl_->context.stop(); }
void Loop::Restart() { impl_->context.restart(); }

// Handlers hold the Impl, so that a timer or watch may be destroyed from inside its own function.
struct Timer::Impl : std::enable_shared_from_this<Timer::Impl> {
  explicit Impl(Loop& loop) : timer(loop.impl().context) {}

  void Arm(absl::Duration delay, absl::Duration period, std::function<void()> function) {
    uint64_t mine = ++generation;
    timer.expires_after(absl::ToChronoNanoseconds(delay));
    timer.async_wait([self = shared_from_this(), mine, period, function = std::move(function)](const error_code& error) mutable {
      // A handler that was already queued when the timer was cancelled or re-armed has an old generation.
      if (error || mine != self->generation) return;
      function();
      if (period > absl::ZeroDuration() && mine == self->generation) self->Arm(period, period, std::move(function));
    });
  }

  asio::steady_timer timer;
  uint64_t generation = 0;
};

Timer::Timer(Loop& loop) : impl_(std::make_shared<Impl>(loop)) {}
Timer::~Timer() { Cancel(); }
void Timer::After(absl::Duration delay, std::function<void()> function) {
  impl_->Arm(delay, absl::ZeroDuration(), std::move(function));
}
void Timer::Every(absl::Duration period, std::function<void()> function) { impl_->Arm(period, period, std::move(function)); }
void Timer::Cancel() {
  ++impl_->generation;
  impl_->timer.cancel();
}

struct FdWatch::Impl : std::enable_shared_from_this<FdWatch::Impl> {
  Impl(Loop& loop, int fd) : descriptor(loop.impl().context, fd) {}

  void WaitReadable(std::shared_ptr<void> keep_alive) {
    auto wake = [self = shared_from_this(), keep_alive = std::move(keep_alive)](const error_code& error) mutable {
      if (error || self->stopped || !self->readable) return;
      // A copy of the pointer keeps the function alive while it runs, even when it replaces itself.
      auto function = self->readable;
      if ((*function)() && !self->stopped && self->readable == function) self->WaitReadable(std::move(keep_alive));
    };
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read, std::move(wake));
  }

  asio::posix::stream_descriptor descriptor;
  std::shared_ptr<std::function<bool()>> readable;
  bool stopped = false;
};

FdWatch::FdWatch(Loop& loop, int fd) : impl_(std::make_shared<Impl>(loop, fd)) {}
FdWatch::~FdWatch() { Stop(); }

void FdWatch::OnReadable(std::function<bool()> function, std::shared_ptr<void> keep_alive) {
  impl_->readable = std::make_shared<std::function<bool()>>(std::move(function));
  impl_->WaitReadable(std::move(keep_alive));
}

void FdWatch::OnceWritable(std::function<void()> function) {
  impl_->descriptor.async_wait(asio::posix::stream_descriptor::wait_write,
                               [self = impl_, function = std::move(function)](const error_code& error) {
                                 if (!error && !self->stopped) function();
                               });
}

void FdWatch::Stop() {
  if (impl_->stopped) return;
  impl_->stopped = true;
  impl_->readable.reset();
  // The descriptor stays its owner's: release cancels what waits and does not close.
  if (impl_->descriptor.is_open()) impl_->descriptor.release();
}

struct Gate::State {
  std::function<void()> empty;
  bool closed = false;
  std::weak_ptr<void> pass;
};

Gate::Pass Gate::Enter() {
  if (!state_) state_ = std::make_shared<State>();
  if (state_->closed) return nullptr;
  if (Pass pass = state_->pass.lock()) return pass;
  // Every pass is a copy of one pointer; its deleter runs when the last copy goes.
  Pass pass(static_cast<void*>(state_.get()), [state = state_](void*) {
    if (state->closed && state->empty) std::exchange(state->empty, nullptr)();
  });
  state_->pass = pass;
  return pass;
}

void Gate::Close(std::function<void()> empty) {
  if (!state_) state_ = std::make_shared<State>();
  state_->closed = true;
  if (state_->pass.expired()) return empty();
  state_->empty = std::move(empty);
}

}  // namespace argosy::async
