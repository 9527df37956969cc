#include "runtime/api/driver_prints.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace argosy::internal {
namespace {

constexpr size_t kQueuedMax = 4 << 20;

std::string Amount(uint64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} bytes", bytes);
  return bytes < 10'000'000 ? fmt::format("{} KB", bytes / 1000) : fmt::format("{} MB", bytes / 1'000'000);
}

}  // namespace

std::string PrintPrefix(const PrintedLines& lines, NodeId here) {
  std::string prefix = "(";
  if (!lines.name.empty()) prefix += lines.name + " ";
  prefix += fmt::format("pid={}", lines.pid);
  if (lines.node != here) prefix += fmt::format(", node={}", lines.node_name.empty() ? lines.node.Short() : lines.node_name);
  return prefix + ")";
}

std::string RenderPrints(const PrintedLines& lines, NodeId here, bool colour) {
  std::string prefix = PrintPrefix(lines, here);
  if (colour) prefix = "\033[36m" + prefix + "\033[0m";
  std::string out;
  if (lines.skipped > 0) out += fmt::format("{} ... {} before this are not shown; they are in the worker's log\n", prefix, Amount(lines.skipped));
  for (size_t at = 0; at < lines.text.size();) {
    size_t end = lines.text.find('\n', at);
    if (end == std::string::npos) end = lines.text.size();
    out += prefix;
    out += ' ';
    out.append(lines.text, at, end - at);
    out += '\n';
    at = end + 1;
  }
  return out;
}

void DriverPrints::SetNode(NodeId here) {
  std::lock_guard lock(mutex_);
  here_ = here;
}

void DriverPrints::Add(JobPrints prints) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  for (PrintedLines& lines : prints.lines) {
    if (queued_bytes_ + lines.text.size() > kQueuedMax) {
      dropped_ += lines.skipped + lines.text.size();
      continue;
    }
    lines.skipped += std::exchange(dropped_, 0);
    queued_bytes_ += lines.text.size();
    queue_.push_back(std::move(lines));
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_all();
}

void DriverPrints::Run() {
  const bool colours[] = {::isatty(STDOUT_FILENO) != 0, ::isatty(STDERR_FILENO) != 0};
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    PrintedLines lines = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= lines.text.size();
    idle_ = false;
    NodeId here = here_;
    lock.unlock();
    // One write a message: lines of the driver itself, which share the stream, are not torn.
    std::string text = RenderPrints(lines, here, colours[lines.is_error]);
    std::FILE* stream = lines.is_error ? stderr : stdout;
    std::fwrite(text.data(), 1, text.size(), stream);
    std::fflush(stream);
    lock.lock();
    idle_ = true;
    changed_.notify_all();
  }
}

void DriverPrints::Stop() {
  std::unique_lock lock(mutex_);
  bool first = !std::exchange(stopping_, true);
  changed_.notify_all();
  if (!first || !thread_.joinable()) return;
  bool written = changed_.wait_for(lock, std::chrono::seconds(2), [this] { return queue_.empty() && idle_; });
  if (!written) queue_.clear();
  lock.unlock();
  thread_.join();
}

}  // namespace argosy::internal
