#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/base/observation.h"

namespace argosy::internal {

// Who printed, before each of its lines: "(Square pid=12) ", and of another node "(Square pid=12, node=big) ".
std::string PrintPrefix(const PrintedLines& lines, NodeId here);
// The lines with their prefix, and what is not shown.
std::string RenderPrints(const PrintedLines& lines, NodeId here, bool colour);

// Writes what the job's workers print to this driver's own standard output and error, on a thread of its own: a terminal that is stopped
// stops nothing else.
//
// Thread:   any.
// Lifetime: its thread starts with the first lines and ends with Stop or the object.
// Failure:  when the output does not take it, the newest lines are dropped, with a count.
class DriverPrints {
 public:
  DriverPrints() = default;
  ~DriverPrints() { Stop(); }
  // Of this driver: its workers need no node in their prefix.
  void SetNode(NodeId here);
  void Add(JobPrints prints);
  // Writes what is there, for two seconds at most.
  void Stop();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PrintedLines> queue_;   // under mutex_, as all below
  size_t queued_bytes_ = 0;
  uint64_t dropped_ = 0;
  NodeId here_;
  bool stopping_ = false;
  bool idle_ = true;
  std::thread thread_;
};

}  // namespace argosy::internal
