#include "runtime/store/work_thread.h"

#include <utility>

namespace argosy::store {

WorkThread::WorkThread(async::Loop& loop) : loop_(loop), thread_([this] { Work(); }) {}

WorkThread::~WorkThread() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    items_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

void WorkThread::Run(std::function<void()> work, std::function<void()> done) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    items_.push_back({std::move(work), std::move(done)});
  }
  changed_.notify_one();
}

size_t WorkThread::waiting() const {
  std::lock_guard lock(mutex_);
  return items_.size();
}

void WorkThread::Work() {
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !items_.empty(); });
      if (stopping_) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    item.work();
    item.work = nullptr;
    if (item.done) loop_.Post(std::move(item.done));
  }
}

}  // namespace argosy::store
