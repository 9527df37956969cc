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
  auto at = shapes_.try_emplace(request.demand.GetShape()).first;
  Entry& entry = at->second;
  entry.shape = &at->first;
  auto [line_at, new_line] = entry.lines.try_emplace(request.job);
  Line& line = line_at->second;
  auto [job_at, new_job] = jobs_.try_emplace(request.job);
  Job& job = job_at->second;
  if (new_job) {
    job.priority = request.job_priority;
    std::list<JobId>& turns = levels_[job.priority].turns;
    job.turn = turns.insert(turns.end(), request.job);
  } else if (request.job_priority > job.priority) {
    Raise(job, request.job_priority);
  }
  if (new_line) {
    line.job = request.job;
    line.entry = &entry;
    ++job.lines;
  }
  const Position position{request.priority, next_order_++};
  if (line.fifo.empty() || position < line.fifo.begin()->first) {
    if (!line.fifo.empty()) job.fronts.erase({line.fifo.begin()->first, &line});
    job.fronts.insert({position, &line});
  }
  line.fifo[position] = request.id;
  if (request.deadline != absl::InfiniteFuture()) deadlines_.emplace(request.deadline, request.id);
  requests_[request.id] = {&line, position, std::move(request.demand.locality), request.count, request.added_at, request.deadline};
  return absl::OkStatus();
}

void DemandQueue::Raise(Job& job, int priority) {
  auto from = levels_.find(job.priority);
  Level& to = levels_[priority];
  to.turns.splice(to.turns.end(), from->second.turns, job.turn);
  if (from->second.turns.empty()) levels_.erase(from);
  job.priority = priority;
}

DemandQueue::Request DemandQueue::Remove(RequestId id) {
  auto it = requests_.find(id);
  Waiting waiting = std::move(it->second);
  requests_.erase(it);
  if (waiting.deadline != absl::InfiniteFuture()) deadlines_.erase({waiting.deadline, id});
  Line& line = *waiting.line;
  Entry& entry = *line.entry;
  Request request{id,
                  line.job,
                  Demand::FromShape(*entry.shape, std::move(waiting.locality)),
                  waiting.count,
                  waiting.position.priority,
                  jobs_.at(line.job).priority,
                  waiting.added_at,
                  waiting.deadline};
  auto job = jobs_.find(line.job);
  const bool was_first = !(line.fifo.begin()->first < waiting.position);
  line.fifo.erase(waiting.position);
  if (was_first) {
    job->second.fronts.erase({waiting.position, &line});
    if (!line.fifo.empty()) job->second.fronts.insert({line.fifo.begin()->first, &line});
  }
  if (!line.fifo.empty()) return request;
  entry.lines.erase(request.job);
  if (entry.lines.empty()) shapes_.erase(shapes_.find(*entry.shape));
  if (--job->second.lines == 0) {
    auto level = levels_.find(job->second.priority);
    level->second.turns.erase(job->second.turn);
    if (level->second.turns.empty() && level->second.refused.empty()) levels_.erase(level);
    jobs_.erase(job);
  }
  return request;
}

std::optional<DemandQueue::Request> DemandQueue::Cancel(RequestId id) {
  if (!requests_.contains(id)) return std::nullopt;
  return Remove(id);
}

std::vector<DemandQueue::Request> DemandQueue::CancelJob(JobId job) {
  std::vector<RequestId> ids;
  if (auto it = jobs_.find(job); it != jobs_.end()) {
    for (const Front& front : it->second.fronts) {
      for (const auto& [position, id] : front.line->fifo) ids.push_back(id);
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

std::optional<DemandQueue::Served> DemandQueue::Next(const TryPlace& try_place) {
  for (auto& [priority, level] : levels_) {
    std::list<JobId>& turns = level.turns;
    while (!turns.empty()) {
      Job& job = jobs_.at(turns.front());
      while (!job.fronts.empty()) {
        Line& line = *job.fronts.begin()->line;
        Entry& entry = *line.entry;
        if (entry.refused_in != pass_) {
          const RequestId id = line.fifo.begin()->second;
          Waiting& waiting = requests_.at(id);
          Demand demand = Demand::FromShape(*entry.shape, waiting.locality);
          if (std::optional<NodeId> node = try_place(demand)) {
            turns.splice(turns.end(), turns, turns.begin());
            Served served{id, line.job, std::move(demand), *node, --waiting.count};
            if (served.count_left == 0) Remove(id);
            return served;
          }
          entry.refused_in = pass_;
        }
        refused_.push_back(&line);
        job.fronts.erase(job.fronts.begin());
      }
      // It comes before all that are served after this.
      level.refused.splice(level.refused.end(), turns, turns.begin());
    }
  }
  return std::nullopt;
}

void DemandQueue::EndPass() {
  for (Line* line : refused_) jobs_.at(line->job).fronts.insert({line->fifo.begin()->first, line});
  refused_.clear();
  for (auto& [priority, level] : levels_) level.turns.splice(level.turns.begin(), level.refused);
  ++pass_;
}

std::optional<DemandQueue::Served> DemandQueue::NextServable(const TryPlace& try_place) {
  std::optional<Served> served = Next(try_place);
  EndPass();
  return served;
}

size_t DemandQueue::ServeAll(const TryPlace& try_place, const std::function<void(const Served&)>& serve) {
  size_t served = 0;
  while (std::optional<Served> next = Next(try_place)) {
    serve(*next);
    ++served;
  }
  EndPass();
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
    for (const auto& [job, line] : entry.lines) {
      summary.requests += line.fifo.size();
      for (const auto& [position, id] : line.fifo) {
        const Waiting& waiting = requests_.at(id);
        summary.count += waiting.count;
        summary.oldest = std::min(summary.oldest, waiting.added_at);
      }
    }
    summaries.push_back(std::move(summary));
  }
  std::sort(summaries.begin(), summaries.end(),
            [](const ShapeSummary& a, const ShapeSummary& b) { return a.count != b.count ? a.count > b.count : a.shape < b.shape; });
  return summaries;
}

std::map<JobId, size_t> DemandQueue::SizesByJob() const {
  std::map<JobId, size_t> sizes;
  for (const auto& [shape, entry] : shapes_) {
    for (const auto& [job, line] : entry.lines) sizes[job] += line.fifo.size();
  }
  return sizes;
}

}  // namespace argosy::scheduler
