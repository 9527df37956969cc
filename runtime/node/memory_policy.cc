#include "runtime/node/memory_policy.h"

#include <cstdint>
#include <map>
#include <tuple>

namespace argosy::node {

std::optional<size_t> ChooseVictim(const std::vector<wire::MemoryWorker>& workers) {
  std::map<JobId, uint64_t> of_job;
  for (const wire::MemoryWorker& worker : workers) of_job[worker.job] += worker.bytes;
  // Of equal ones the larger, then by id, so that it does not depend on their order.
  auto rank = [&](const wire::MemoryWorker& worker) {
    return std::tuple(worker.retriable, of_job.at(worker.job), worker.job, worker.since_us, worker.bytes, worker.worker);
  };
  std::optional<size_t> best;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].bytes == 0) continue;   // it has ended, or has not started
    if (!best || rank(workers[i]) > rank(workers[*best])) best = i;
  }
  return best;
}

}  // namespace argosy::node
