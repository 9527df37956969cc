#include "scheduler/demand_queue.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::scheduler {

absl::Status DemandQueue::Add(Request request) {
  if (request.count < 1)
    return InvalidArgument("request {} wants {} leases: want at least 1", request.id, request.count);
  if (requests_.contains(request.id)) return FailedPrecondition("request {} waits already", request.id);
  if (requests_.size() >= options_.requests_max) {
    return MakeStatus(absl::StatusCode::kResourceExhausted,
                      "the queue of waiting demands is full: {} wait, {} are possible", requests_.size(),
                      options_.requests_max);
  }
  auto entry = shapes_.try_emplace(request.demand.GetShape()).first;
  const Position position{request.priority, next_order_++};
  entry->second.jobs[request.job][position] = request.id;
  auto [job, is_new] = jobs_.try_emplace(request.job);
  if (is_new) job->second.turn = turns_.insert(turns_.end(), request.job);
  job->second.shapes.insert(&entry->first);
  deadlines_.emplace(request.deadline, request.id);
  requests_[request.id] = {
      request.job,      entry,           position, std::move(request.demand.locality), request.count,
      request.added_at, request.deadline};
  return absl::OkStatus();
}

DemandQueue::Request DemandQueue::Remove(RequestId id) {
  auto it = requests_.find(id);
  Waiting waiting = std::move(it->second);
  requests_.erase(it);
  deadlines_.erase({waiting.deadline, id});
  Request request{id,
                  waiting.job,
                  Demand::FromShape(waiting.entry->first, std::move(waiting.locality)),
                  waiting.count,
                  waiting.position.priority,
                  waiting.added_at,
                  waiting.deadline};
  auto fifo = waiting.entry->second.jobs.find(waiting.job);
  fifo->second.erase(waiting.position);
  if (!fifo->second.empty()) return request;
  waiting.entry->second.jobs.erase(fifo);
  auto job = jobs_.find(waiting.job);
  job->second.shapes.erase(&waiting.entry->first);
  if (job->second.shapes.empty()) {
    turns_.erase(job->second.turn);
    jobs_.erase(job);
  }
  if (waiting.entry->second.jobs.empty()) shapes_.erase(waiting.entry);
  return request;
}

std::optional<DemandQueue::Request> DemandQueue::Cancel(RequestId id) {
  if (!requests_.contains(id)) return std::nullopt;
  return Remove(id);
}

std::vector<DemandQueue::Request> DemandQueue::CancelJob(JobId job) {
  std::vector<RequestId> ids;
  if (auto it = jobs_.find(job); it != jobs_.end()) {
    for (const Shape* shape : it->second.shapes) {
      for (const auto& [position, id] : shapes_.at(*shape).jobs.at(job)) ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end());
  std::vector<Request> requests;
  for (RequestId id : ids) requests.push_back(Remove(id));
  return requests;
}

bool DemandQueue::SetCount(RequestId id, int64_t count) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return false;
  if (count < 1) Remove(id);
  else it->second.count = count;
  return true;
}

std::optional<DemandQueue::Served> DemandQueue::Next(const TryPlace& try_place, std::set<const Shape*>& refused) {
  for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
    const JobId job = *turn;
    // The job's shapes, the one whose first request comes first in front.
    std::vector<std::pair<Position, const Shape*>> order;
    for (const Shape* shape : jobs_.at(job).shapes) {
      if (!refused.contains(shape)) order.emplace_back(shapes_.at(*shape).jobs.at(job).begin()->first, shape);
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [position, shape] : order) {
      const RequestId id = shapes_.at(*shape).jobs.at(job).begin()->second;
      Waiting& waiting = requests_.at(id);
      Demand demand = Demand::FromShape(*shape, waiting.locality);
      std::optional<NodeId> node = try_place(demand);
      if (!node) {
        refused.insert(shape);
        continue;
      }
      turns_.splice(turns_.end(), turns_, turn);
      Served served{id, job, std::move(demand), *node, --waiting.count};
      if (served.count_left == 0) Remove(id);
      return served;
    }
  }
  return std::nullopt;
}

std::optional<DemandQueue::Served> DemandQueue::NextServable(const TryPlace& try_place) {
  std::set<const Shape*> refused;
  return Next(try_place, refused);
}

size_t DemandQueue::ServeAll(const TryPlace& try_place, const std::function<void(const Served&)>& serve) {
  std::set<const Shape*> refused;
  size_t served = 0;
  while (std::optional<Served> next = Next(try_place, refused)) {
    serve(*next);
    ++served;
  }
  return served;
}

std::vector<DemandQueue::Request> DemandQueue::Expire(absl::Time now) {
  std::vector<Request> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) expired.push_back(Remove(deadlines_.begin()->second));
  return expired;
}

absl::Time DemandQueue::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

std::vector<DemandQueue::ShapeSummary> DemandQueue::Summaries() const {
  std::vector<ShapeSummary> summaries;
  for (const auto& [shape, entry] : shapes_) {
    ShapeSummary summary{shape, 0, 0, absl::InfiniteFuture()};
    for (const auto& [job, fifo] : entry.jobs) {
      summary.requests += fifo.size();
      for (const auto& [position, id] : fifo) {
        const Waiting& waiting = requests_.at(id);
        summary.count += waiting.count;
        summary.oldest = std::min(summary.oldest, waiting.added_at);
      }
    }
    summaries.push_back(std::move(summary));
  }
  std::stable_sort(summaries.begin(), summaries.end(),
                   [](const ShapeSummary& a, const ShapeSummary& b) { return a.count > b.count; });
  return summaries;
}

std::map<JobId, size_t> DemandQueue::SizesByJob() const {
  std::map<JobId, size_t> sizes;
  for (const auto& [shape, entry] : shapes_) {
    for (const auto& [job, fifo] : entry.jobs) sizes[job] += fifo.size();
  }
  return sizes;
}

}  // namespace argosy::scheduler
