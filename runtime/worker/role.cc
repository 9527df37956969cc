#include "runtime/worker/role.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/base/status.h"

namespace argosy::worker {
namespace {

thread_local const LoopRole* leads = nullptr;

// How long the role may lie free before the standby takes it.
constexpr auto kStandbyDelay = std::chrono::microseconds(200);
constexpr absl::Duration kTurnMax = absl::Seconds(1);
constexpr size_t kLaterMax = 256;

}  // namespace

LoopRole::LoopRole(async::Loop& loop, Hooks hooks) : loop_(loop), hooks_(std::move(hooks)) {}
LoopRole::~LoopRole() { Stop(); }

bool LoopRole::HeldByMe() const { return leads == this; }

bool LoopRole::TryTake() {
  std::lock_guard lock(mutex_);
  if (led_) return false;
  Take();
  return true;
}

void LoopRole::Take() {
  led_ = true;
  leads = this;
}

void LoopRole::Release() {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      led_ = false;
      led_by_standby_ = false;
      leads = nullptr;
      ++releases_;
      if (waiting_.load() > 0) followers_.notify_all();
      if (standby_sleeps_) standby_wakes_.notify_one();
    }
    // An operation that was queued while this thread still led, after its last look, would lie there.
    if (!has_operations_.load() || !TryTake()) return;
    DrainOnTheSpot();
  }
}

void LoopRole::Drain() {
  while (has_operations_.load()) {
    // The two vectors take turns, so that neither gives its room up.
    std::vector<UniqueFunction<void()>> batch = std::move(batch_);
    {
      std::lock_guard lock(operations_mutex_);
      batch.swap(operations_);
      has_operations_ = false;
    }
    for (UniqueFunction<void()>& operation : batch) operation();
    batch.clear();
    batch_ = std::move(batch);
  }
}

void LoopRole::DrainOnTheSpot() {
  Drain();
  if (hooks_.after_operation) hooks_.after_operation();
}

size_t LoopRole::Queue(UniqueFunction<void()> operation) {
  std::lock_guard lock(operations_mutex_);
  operations_.push_back(std::move(operation));
  has_operations_ = true;
  return operations_.size();
}

void LoopRole::Do(UniqueFunction<void()> operation) {
  if (HeldByMe()) return operation();
  if (TryTake()) {
    Drain();
    operation();
    if (hooks_.after_operation) hooks_.after_operation();
    return Release();
  }
  if (Queue(std::move(operation)) > 1) return;
  // The leader may have looked for the last time before the operation was there.
  if (TryTake()) {
    DrainOnTheSpot();
    Release();
  } else {
    loop_.Post([this] { Drain(); });
  }
}

void LoopRole::DoLater(UniqueFunction<void()> operation) {
  if (HeldByMe()) return operation();
  size_t queued = Queue(std::move(operation));
  if (queued > 1 && queued < kLaterMax) return;   // the first has told the leader
  bool led;
  {
    std::lock_guard lock(mutex_);
    led = led_;
  }
  if (led) {
    loop_.Post([this] { Drain(); });
  } else if (queued >= kLaterMax && TryTake()) {
    DrainOnTheSpot();
    Release();
  }
}

void LoopRole::Lead(const std::function<bool()>& done, absl::Time deadline, bool standby) {
  Drain();
  while (!done()) {
    if (standby && waiting_.load() > 0) return;
    absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return;
    if (hooks_.before_sleep) hooks_.before_sleep();
    loop_.RunFor(std::min(left, kTurnMax));
    Drain();
    if (waiting_.load() > 0 && !standby) {
      std::lock_guard lock(mutex_);
      followers_.notify_all();
    }
  }
}

bool LoopRole::Await(const std::function<bool()>& done, absl::Time deadline) {
  ARGOSY_CHECK(!HeldByMe(), "a handler waits for the loop that it runs on");
  std::unique_lock lock(mutex_);
  for (;;) {
    if (done()) return true;
    if (absl::Now() >= deadline) return false;
    if (!led_) {
      Take();
      lock.unlock();
      Lead(done, deadline, false);
      Release();
      lock.lock();
      continue;
    }
    ++waiting_;
    if (led_by_standby_) loop_.Post([] {});   // it looks at waiting_ and gives the role up
    absl::Duration left = std::min(deadline - absl::Now(), kTurnMax);
    followers_.wait_for(lock, absl::ToChronoNanoseconds(std::max(left, absl::ZeroDuration())));
    --waiting_;
  }
}

void LoopRole::StartStandby() { standby_ = std::thread([this] { RunStandby(); }); }

void LoopRole::RunStandby() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (led_) {
      standby_sleeps_ = true;
      standby_wakes_.wait(lock, [&] { return !led_ || stopping_; });
      standby_sleeps_ = false;
      continue;
    }
    uint64_t releases = releases_;
    standby_wakes_.wait_for(lock, kStandbyDelay, [&] { return stopping_; });
    if (stopping_ || led_ || releases != releases_ || waiting_.load() > 0) continue;
    Take();
    led_by_standby_ = true;
    lock.unlock();
    std::atomic<bool>& stop = stop_standby_;
    Lead([&stop] { return stop.load(); }, absl::InfiniteFuture(), true);
    Release();
    lock.lock();
  }
}

void LoopRole::Stop() {
  if (!standby_.joinable()) return;
  stop_standby_ = true;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  standby_wakes_.notify_all();
  loop_.Post([] {});
  standby_.join();
}

}  // namespace argosy::worker
