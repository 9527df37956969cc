#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/id_map.h"
#include "runtime/wire/messages.h"

namespace argosy::worker {

struct SubmitLimits {
  // Lease requests of one shape that wait at the same time: few at first, for where nothing is free each is for nothing; with every grant twice
  // as many.
  int requests_first = 2;
  int requests_max = 16;
  int pipeline_max = 128;                                    // tasks pushed to one worker
  absl::Duration pipeline_time = absl::Milliseconds(10);     // how much work may queue at a worker
  absl::Duration idle_max = absl::Milliseconds(50);          // a lease without work is returned after this
  absl::Duration retry_request_after = absl::Milliseconds(200);
  absl::Duration deadline_slack = absl::Milliseconds(10);    // clocks of a task and of its request differ by less
};

// Decides which leases to ask for, which worker gets which task, and what happens to tasks of a worker that died. Tasks of one shape
// (same resources, labels, strategy) share leases.
//
// Thread:   the worker loop; pure state: time comes with the events.
// Lifetime: the worker's.
// Failure:  events about leases or tasks that are gone are ignored.
class SubmitMachine {
 public:
  using ShapeId = uint32_t;
  struct Request { ShapeId shape = 0; uint64_t request = 0; };
  struct Push { LeaseId lease; TaskId task; uint32_t attempt = 0; };
  struct Return { LeaseId lease; bool worker_failed = false; };
  struct Fail { TaskId task; wire::ErrorInfo error; };
  struct Effects {
    std::vector<Request> requests;
    std::vector<uint64_t> cancelled_requests;
    std::vector<Push> pushes;
    std::vector<Return> returns;
    std::vector<Fail> failures;
  };

  explicit SubmitMachine(SubmitLimits limits = {}) : limits_(limits) {}

  // The number of a shape; the same for the same key.
  ShapeId Shape(const std::string& key);

  // What the machine has to know of a task.
  struct Asked {
    ShapeId shape = 0;
    int retries_max = 0;                              // -1: without bound
    int priority = 0;                                 // higher first
    absl::Time deadline = absl::InfiniteFuture();     // to be placed
    uint32_t attempt = 0;                             // of the first try
  };
  void Submit(TaskId task, const Asked& asked, absl::Time now, Effects& effects);
  void Granted(uint64_t request, LeaseId lease, absl::Time now, Effects& effects);
  // The request failed. With `error`, every waiting task of its shape fails (of a request whose deadline passed, those whose own has);
  // without, it is made again a little later.
  void Denied(uint64_t request, const std::optional<wire::ErrorInfo>& error, absl::Time now, Effects& effects);
  // The worker answered the task.
  void Finished(LeaseId lease, TaskId task, absl::Time now, Effects& effects);
  // The worker answered that the task failed in a way that another try may mend. False when none is left, or it was cancelled: then
  // nothing has changed.
  bool FailedOnce(LeaseId lease, TaskId task, absl::Time now, Effects& effects);
  // The worker gave the task back unstarted.
  void HandedBack(LeaseId lease, TaskId task, absl::Time now, Effects& effects);
  // The worker is dead. Its running task (the oldest pushed) used up one try; the others only move.
  void WorkerLost(LeaseId lease, const wire::ErrorInfo& why, absl::Time now, Effects& effects);
  void Recalled(LeaseId lease, absl::Time now, Effects& effects);
  // Others wait for what it uses: it is returned as soon as it has no work.
  void Wanted(LeaseId lease, absl::Time now, Effects& effects);
  // True when it was not pushed and is dropped. Otherwise it will not be tried again.
  bool Cancel(TaskId task, absl::Time now, Effects& effects);
  // Returns leases that were idle too long, makes failed requests again.
  void Tick(absl::Time now, Effects& effects);
  // When Tick has something to do.
  absl::Time NextTick() const;

  // The lease that runs the task, if it was pushed.
  std::optional<LeaseId> LeaseOf(TaskId task) const;
  std::optional<uint32_t> AttemptOf(TaskId task) const;
  // How often it may be tried again; -1: without bound. 0 also when it is not known.
  int RetriesLeft(TaskId task) const;
  // The task that waits for a lease of this shape and comes first.
  std::optional<TaskId> WaitingTask(ShapeId shape) const;
  // Since when it may not be placed any more, and how urgent it is.
  std::optional<Asked> AskedOf(TaskId task) const;
  size_t waiting(ShapeId shape) const;
  size_t leases() const { return leases_.size(); }

 private:
  struct TaskState {
    Asked asked;
    int retries_left = 0;
    uint32_t attempt = 0;
    LeaseId lease;                     // nil: waits
    bool cancelled = false;
  };
  struct LeaseState {
    ShapeId shape = 0;
    std::deque<TaskId> pushed;         // oldest first
    absl::Time started;                // of the oldest, as far as seen from here
    absl::Time idle_since;
    absl::Duration average = absl::InfiniteDuration();   // of its tasks; infinite: not known yet
    bool recalled = false;
    bool wanted = false;
    bool shy = false;                  // gave tasks back: one at a time until the next answer
  };
  struct ShapeState {
    std::deque<TaskId> waiting;        // by priority, then as they came
    std::vector<uint64_t> requests;
    int requests_allowed = 0;          // grows with each grant, until the shape has no lease again
    std::vector<LeaseId> leases;
    absl::Duration average = absl::InfiniteDuration();
    absl::Time request_not_before = absl::InfinitePast();
  };

  int Depth(const LeaseState& lease) const;
  void Fill(ShapeId shape, absl::Time now, Effects& effects);
  void PushNext(LeaseId id, absl::Time now, Effects& effects);
  void ReturnLease(LeaseId id, bool worker_failed, Effects& effects);
  // Behind the others of its priority, or in front of them.
  void Wait(TaskId task, bool in_front);
  // Its worker is done with it.
  void TakeOff(LeaseId id, TaskId task, absl::Time now, Effects& effects);

  SubmitLimits limits_;
  std::map<std::string, ShapeId> shape_ids_;
  std::vector<ShapeState> shapes_;
  IdMap<TaskId, TaskState> tasks_;
  std::unordered_map<LeaseId, LeaseState> leases_;
  std::unordered_map<uint64_t, ShapeId> requests_;
  uint64_t next_request_ = 1;
};

}  // namespace argosy::worker
