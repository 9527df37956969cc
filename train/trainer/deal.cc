#include "train/trainer/deal.h"

#include <algorithm>
#include <numeric>

namespace argosy::train {

std::vector<double> DealBySpeed(const std::vector<std::vector<StepReport>>& reports, const std::vector<double>& before) {
  const size_t ranks = reports.size();
  std::vector<double> parts = before.size() == ranks ? before : std::vector<double>(ranks, 1.0 / static_cast<double>(ranks));
  std::vector<double> speeds(ranks, 0);
  double known_speed = 0, known_part = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    double tokens = 0, seconds = 0;
    for (const StepReport& report : reports[rank]) {
      tokens += static_cast<double>(report.computed_tokens);
      seconds += report.times.forward + report.times.backward;
    }
    if (tokens <= 0 || seconds <= 0) continue;
    speeds[rank] = tokens / seconds;
    known_speed += speeds[rank];
    known_part += parts[rank];
  }
  if (known_speed <= 0) return parts;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (speeds[rank] > 0) parts[rank] = (parts[rank] + speeds[rank] / known_speed * known_part) / 2;
    parts[rank] = std::max(parts[rank], 0.05 / static_cast<double>(ranks));
  }
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  for (double& part : parts) part /= sum;
  return parts;
}

}  // namespace argosy::train
