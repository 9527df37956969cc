#include "runtime/head/placement.h"

#include <algorithm>

#include "scheduler/explain.h"
#include "scheduler/place.h"

namespace argosy::head {

using scheduler::ClusterView;
using scheduler::Demand;
using scheduler::DemandQueue;

absl::Status Placement::Add(WaitEntry entry, absl::Time now) {
  Key key{entry.kind, entry.key};
  if (by_key_.contains(key)) return absl::OkStatus();
  uint64_t number = next_number_++;
  DemandQueue::Request request{.id = number, .job = entry.job, .demand = entry.demand, .priority = entry.demand.priority,
                               .job_priority = entry.demand.job_priority, .added_at = now, .deadline = entry.deadline};
  if (absl::Status added = queue_.Add(std::move(request)); !added.ok()) return added;
  by_key_[key] = number;
  entries_[number] = {std::move(entry), now, absl::InfinitePast()};
  return absl::OkStatus();
}

void Placement::AddLater(WaitEntry entry, absl::Time until) {
  Key key{entry.kind, entry.key};
  if (by_key_.contains(key)) return;
  uint64_t number = next_number_++;
  by_key_[key] = number;
  later_.emplace(until, number);
  entries_[number] = {std::move(entry), until, until};
}

bool Placement::Cancel(WaitKind kind, const std::string& key) {
  auto at = by_key_.find({kind, key});
  if (at == by_key_.end()) return false;
  uint64_t number = at->second;
  queue_.Cancel(number);
  auto [first, last] = later_.equal_range(entries_.at(number).not_before);
  for (auto later = first; later != last; ++later) {
    if (later->second == number) {
      later_.erase(later);
      break;
    }
  }
  entries_.erase(number);
  by_key_.erase(at);
  return true;
}

std::vector<Placement::Placed> Placement::Serve(ClusterView& view, Prng& prng, absl::Time now) {
  while (!later_.empty() && later_.begin()->first <= now) {
    uint64_t number = later_.begin()->second;
    later_.erase(later_.begin());
    Entry& entry = entries_.at(number);
    entry.not_before = absl::InfinitePast();
    DemandQueue::Request request{.id = number, .job = entry.entry.job, .demand = entry.entry.demand,
                                 .priority = entry.entry.demand.priority, .job_priority = entry.entry.demand.job_priority, .added_at = entry.added_at, .deadline = entry.entry.deadline};
    // A refused one had its place in the queue already; when the queue is full it tries again later.
    if (!queue_.Add(std::move(request)).ok()) {
      entry.not_before = now + absl::Milliseconds(100);
      later_.emplace(entry.not_before, number);
      break;
    }
  }
  std::vector<Placed> placed;
  queue_.ServeAll([&](const Demand& demand) { return scheduler::Place(view, demand, prng); },
                  [&](const DemandQueue::Served& served) {
                    std::optional<scheduler::BundleKey> bundle;
                    if (const auto* affinity = std::get_if<scheduler::BundleAffinity>(&served.demand.strategy)) {
                      bundle = view.FitBundle(served.node, *affinity, served.demand.resources);
                    }
                    (void)view.Take(served.node, served.demand.resources, bundle);   // Place chose a node of the view
                    auto at = entries_.find(served.id);
                    by_key_.erase({at->second.entry.kind, at->second.entry.key});
                    placed.push_back({std::move(at->second.entry), served.node, bundle});
                    entries_.erase(at);
                  });
  return placed;
}

std::vector<Placement::Overdue> Placement::Expire(const ClusterView& view, absl::Time now) {
  std::vector<Overdue> overdue;
  for (const DemandQueue::Request& request : queue_.Expire(now)) {
    auto at = entries_.find(request.id);
    by_key_.erase({at->second.entry.kind, at->second.entry.key});
    std::string explanation = scheduler::Explain(view, at->second.entry.demand, now).ToString();
    overdue.push_back({std::move(at->second.entry), std::move(explanation)});
    entries_.erase(at);
  }
  return overdue;
}

std::vector<WaitEntry> Placement::TakeGroup(GroupId group) {
  std::vector<WaitEntry> taken;
  for (const auto& [number, entry] : entries_) {
    const auto* affinity = std::get_if<scheduler::BundleAffinity>(&entry.entry.demand.strategy);
    if (affinity != nullptr && affinity->group == group) taken.push_back(entry.entry);
  }
  for (const WaitEntry& entry : taken) Cancel(entry.kind, entry.key);
  return taken;
}

std::optional<std::string> Placement::Explain(WaitKind kind, const std::string& key, const ClusterView& view, absl::Time now) const {
  auto at = by_key_.find({kind, key});
  if (at == by_key_.end()) return std::nullopt;
  return scheduler::Explain(view, entries_.at(at->second).entry.demand, now).ToString();
}

std::vector<PendingSummary> Placement::Summaries(const ClusterView& view, absl::Time now, size_t lines_max) const {
  // Keyed so that equal lines are counted together: tasks by shape, the others by their own name.
  std::map<std::pair<std::string, scheduler::Shape>, uint32_t> lines;
  for (const auto& [number, entry] : entries_) {
    auto key = std::make_pair(entry.entry.what, entry.entry.demand.GetShape());
    auto at = lines.find(key);
    if (at != lines.end()) ++at->second;
    else if (lines.size() < lines_max) lines.emplace(std::move(key), 1);
  }
  std::vector<PendingSummary> summaries;
  for (const auto& [key, count] : lines) {
    const auto& [what, shape] = key;
    Demand demand = Demand::FromShape(shape);
    summaries.push_back({what, shape.resources.ToMap(), shape.labels.ToMap(), count, scheduler::Explain(view, demand, now).ToString()});
  }
  std::stable_sort(summaries.begin(), summaries.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
  return summaries;
}

std::vector<Placement::WaitingShape> Placement::Waiting(absl::Duration age, absl::Time now, size_t shapes_max) const {
  if (entries_.empty()) return {};
  std::map<scheduler::Shape, WaitingShape> shapes;
  for (const auto& [number, entry] : entries_) {
    const int job_priority = entry.entry.demand.job_priority;
    if (now - entry.added_at < age && job_priority <= 0) continue;
    scheduler::Shape shape = entry.entry.demand.GetShape();
    auto at = shapes.find(shape);
    if (at == shapes.end()) {
      if (shapes.size() >= shapes_max) continue;
      at = shapes.emplace(shape, WaitingShape{shape, {}, job_priority}).first;
    }
    WaitingShape& waiting = at->second;
    waiting.job_priority = std::max(waiting.job_priority, job_priority);
    if (std::find(waiting.jobs.begin(), waiting.jobs.end(), entry.entry.job) == waiting.jobs.end()) waiting.jobs.push_back(entry.entry.job);
  }
  std::vector<WaitingShape> waiting;
  for (auto& [shape, of_shape] : shapes) waiting.push_back(std::move(of_shape));
  return waiting;
}

absl::Time Placement::NextTime() const {
  absl::Time next = queue_.NextDeadline();
  if (!later_.empty()) next = std::min(next, later_.begin()->first);
  return next;
}

}  // namespace argosy::head
