#include "train/report/line_plot.h"

#include <algorithm>
#include <cmath>

#include "spdlog/fmt/fmt.h"

namespace argosy::train {
namespace {

constexpr double kWidth = 860, kHeight = 360, kLeft = 76, kRight = 24, kTop = 44, kBottom = 52;
constexpr size_t kPointsMax = 1000;
// Told apart with any colour vision, on white and on dark.
constexpr const char* kColours[] = {"#4477aa", "#ee6677", "#228833", "#aa7733", "#66ccee", "#aa3377"};

std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

std::vector<std::pair<double, double>> Thinned(const std::vector<std::pair<double, double>>& points) {
  if (points.size() <= kPointsMax) return points;
  std::vector<std::pair<double, double>> out;
  for (size_t part = 0; part < kPointsMax; ++part) {
    size_t begin = points.size() * part / kPointsMax, end = points.size() * (part + 1) / kPointsMax;
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) {
      x += points[i].first;
      y += points[i].second;
    }
    out.emplace_back(x / static_cast<double>(end - begin), y / static_cast<double>(end - begin));
  }
  return out;
}

}  // namespace

std::vector<double> Ticks(double low, double high, int count) {
  double span = high - low;
  if (!(span > 0) || count < 1) return {low};
  double rough = span / count, scale = std::pow(10, std::floor(std::log10(rough)));
  double step = scale * (rough / scale < 1.5 ? 1 : rough / scale < 3.5 ? 2 : rough / scale < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  for (double index = std::ceil(low / step - 1e-9); index * step <= high + step * 1e-9; ++index) ticks.push_back(index == 0 ? 0 : index * step);
  return ticks;
}

std::string DrawLines(const Plot& plot) {
  double x_low = HUGE_VAL, x_high = -HUGE_VAL, y_low = HUGE_VAL, y_high = -HUGE_VAL;
  std::vector<std::vector<std::pair<double, double>>> drawn;
  for (const Series& series : plot.series) {
    drawn.push_back(Thinned(series.points));
    for (auto [x, y] : drawn.back()) {
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      x_low = std::min(x_low, x), x_high = std::max(x_high, x), y_low = std::min(y_low, y), y_high = std::max(y_high, y);
    }
  }
  if (x_low > x_high) x_low = y_low = 0, x_high = y_high = 1;
  if (x_low == x_high) x_low -= 0.5, x_high += 0.5;
  if (y_low == y_high) y_low -= std::max(0.5, std::abs(y_low) * 0.05), y_high += std::max(0.5, std::abs(y_high) * 0.05);
  auto place_x = [&](double x) { return kLeft + (x - x_low) / (x_high - x_low) * (kWidth - kLeft - kRight); };
  auto place_y = [&](double y) { return kHeight - kBottom - (y - y_low) / (y_high - y_low) * (kHeight - kTop - kBottom); };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n"
      "<style>text{{font:13px system-ui,sans-serif;fill:#555}}.t{{font-size:16px;font-weight:600}}.g{{stroke:#8884;stroke-width:1}}"
      "path{{fill:none;stroke-width:1.8;stroke-linejoin:round}}@media(prefers-color-scheme:dark){{text{{fill:#bbb}}}}</style>\n"
      "<text class=\"t\" x=\"{}\" y=\"24\">{}</text>\n", kWidth, kHeight, Escaped(plot.title), kLeft, Escaped(plot.title));
  for (double tick : Ticks(y_low, y_high, 5)) {
    svg += fmt::format("<line class=\"g\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n",
                       kLeft, kWidth - kRight, place_y(tick), place_y(tick), kLeft - 8, place_y(tick) + 4, tick);
  }
  for (double tick : Ticks(x_low, x_high, 8)) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n", place_x(tick), kHeight - kBottom + 20, tick);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kWidth - kRight) / 2, kHeight - 10, Escaped(plot.x_label));
  svg += fmt::format("<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n", (kTop + kHeight - kBottom) / 2,
                     Escaped(plot.y_label));
  double legend = kWidth - kRight;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    std::string path;
    bool drawing = false;
    for (auto [x, y] : drawn[i]) {
      if (!std::isfinite(x) || !std::isfinite(y)) {
        drawing = false;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", drawing ? "L" : "M", place_x(x), place_y(y));
      drawing = true;
      if (plot.series[i].marks) svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", place_x(x), place_y(y), colour);
    }
    if (!path.empty()) svg += fmt::format("<path d=\"{}\" stroke=\"{}\"/>\n", path, colour);
    if (plot.series.size() > 1) {
      svg += fmt::format("<text x=\"{}\" y=\"24\" text-anchor=\"end\" style=\"fill:{}\">{}</text>\n", legend, colour, Escaped(plot.series[i].name));
      legend -= 9.0 * static_cast<double>(plot.series[i].name.size()) + 16;
    }
  }
  return svg + "</svg>\n";
}

}  // namespace argosy::train
