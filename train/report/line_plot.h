#pragma once

// Plots as SVG text that any browser shows, light or dark.

#include <string>
#include <utility>
#include <vector>

namespace argosy::train {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;   // x ascending; values that are not finite leave a gap
  bool marks = false;                              // a dot at each point
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Series> series;
};

// At most 1,000 points a series are drawn: the means of as many equal parts.
std::string DrawLines(const Plot& plot);

// Round numbers, about `count` of them, from `low` to `high`.
std::vector<double> Ticks(double low, double high, int count);

}  // namespace argosy::train
