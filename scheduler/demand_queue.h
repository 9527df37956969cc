#pragma once

// Demands that wait for a node.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/base/id.h"
#include "scheduler/demand.h"

namespace argosy::scheduler {

// Waiting demands, one entry a shape; inside a shape the requests of each job in the order of priority, then age. Jobs
// of the same priority take turns, those of a higher one come before. Serving one costs the logarithm of what waits, and
// a pass looks at each shape that cannot be placed once.
//
// Thread:   its owner's.
// Failure:  Add is ResourceExhausted when `requests_max` wait already.
class DemandQueue {
 public:
  using RequestId = uint64_t;   // chosen by the caller, unique while it waits

  struct Options {
    size_t requests_max = 100'000;
  };
  struct Request {
    RequestId id = 0;
    JobId job;
    Demand demand;
    int64_t count = 1;   // leases wanted; each serving takes one off
    int priority = 0;    // higher first, within the job
    int job_priority = 0;   // of the job: while it waits the highest that was asked for counts
    absl::Time added_at = absl::InfinitePast();
    absl::Time deadline = absl::InfiniteFuture();
  };
  struct Served {
    RequestId id = 0;
    JobId job;
    Demand demand;
    NodeId node;
    int64_t count_left = 0;   // 0: the request has left the queue
  };
  // The node to use, or none. Asked at most once a shape and pass after it said none.
  using TryPlace = std::function<std::optional<NodeId>(const Demand&)>;

  DemandQueue() : DemandQueue(Options{}) {}
  explicit DemandQueue(Options options) : options_(options) {}

  absl::Status Add(Request request);
  // The request, when it was waiting.
  std::optional<Request> Cancel(RequestId id);
  std::vector<Request> CancelJob(JobId job);
  // False when it does not wait. A count of 0 cancels.
  bool SetCount(RequestId id, int64_t count);

  // The next request that a node can serve, taking turns between jobs. None when no shape can be placed.
  std::optional<Served> NextServable(const TryPlace& try_place);
  // As NextServable until none is left, remembering shapes that could not be placed; `serve` must spend the placement
  // at once, and leaves the queue alone.
  size_t ServeAll(const TryPlace& try_place, const std::function<void(const Served&)>& serve);

  // Removes and returns the requests whose deadline is not after `now`.
  std::vector<Request> Expire(absl::Time now);
  // The earliest deadline, or InfiniteFuture.
  absl::Time NextDeadline() const;

  size_t size() const { return requests_.size(); }
  size_t shape_count() const { return shapes_.size(); }
  bool Contains(RequestId id) const { return requests_.contains(id); }

  struct ShapeSummary {
    Shape shape;
    size_t requests = 0;
    int64_t count = 0;   // leases wanted
    absl::Time oldest = absl::InfiniteFuture();
  };
  // Most wanted first.
  std::vector<ShapeSummary> Summaries() const;
  // Waiting requests by job.
  std::map<JobId, size_t> SizesByJob() const;

 private:
  struct Position {
    int priority = 0;
    uint64_t order = 0;
    friend bool operator<(const Position& a, const Position& b) {
      return a.priority != b.priority ? a.priority > b.priority : a.order < b.order;
    }
  };
  using Fifo = std::map<Position, RequestId>;
  struct Entry;
  // The requests of one job for one shape.
  struct Line {
    JobId job;
    Entry* entry = nullptr;
    Fifo fifo;
  };
  struct Entry {
    const Shape* shape = nullptr;   // its key in shapes_
    std::map<JobId, Line> lines;
    uint64_t refused_in = 0;   // the last pass in which it could not be placed
  };
  // A line by its first request.
  struct Front {
    Position position;
    Line* line = nullptr;
    friend bool operator<(const Front& a, const Front& b) { return a.position < b.position; }
  };
  struct Waiting {
    Line* line = nullptr;
    Position position;
    std::vector<Locality> locality;
    int64_t count = 1;
    absl::Time added_at;
    absl::Time deadline;
  };
  struct Job {
    int priority = 0;
    std::list<JobId>::iterator turn;
    std::set<Front> fronts;   // of all lines; in a pass without those that were refused
    size_t lines = 0;
  };
  // The jobs of one priority.
  struct Level {
    std::list<JobId> turns;     // front: next
    std::list<JobId> refused;   // in a pass: jobs of which nothing can be placed, in the order of their turns
  };

  // Between passes.
  void Raise(Job& job, int priority);
  Request Remove(RequestId id);
  // The next of a pass; EndPass must follow the last.
  std::optional<Served> Next(const TryPlace& try_place);
  void EndPass();

  Options options_;
  std::unordered_map<Shape, Entry> shapes_;
  std::unordered_map<RequestId, Waiting> requests_;
  std::set<std::pair<absl::Time, RequestId>> deadlines_;   // without InfiniteFuture
  std::map<int, Level, std::greater<>> levels_;   // highest first
  std::unordered_map<JobId, Job> jobs_;
  uint64_t next_order_ = 0;

  // What a pass has put aside, so that nothing is looked at twice.
  uint64_t pass_ = 1;
  std::vector<Line*> refused_;
};

}  // namespace argosy::scheduler
