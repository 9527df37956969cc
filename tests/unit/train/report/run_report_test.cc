#include "train/report/run_report.h"

#include <cmath>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "train/report/line_plot.h"
#include "train/report/recipe_report.h"

namespace argosy::train {
namespace {

size_t Count(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("Report: steps, base against epochs, exact answers and failures are told; a cut last line is left out") {
  std::string metrics =
      "{\"base_eval_loss\": 5.5, \"base_perplexity\": 244.7, \"total_step\": 0}\n"
      "{\"total_step\": 1, \"loss\": 5.0, \"seconds\": 2.0, \"tokens_per_second\": 100}\n"
      "{\"total_step\": 2, \"loss\": 4.0, \"seconds\": 2.0, \"tokens_per_second\": 300, \"mfu\": 0.42}\n"
      "{\"failure\": 1, \"total_step\": 2, \"reason\": \"rank 1 died\"}\n"
      "{\"epoch\": 1, \"total_step\": 2, \"train_loss\": 4.5, \"eval_loss\": 4.25, \"perplexity\": 70.1, \"train_seconds\": 4}\n"
      "{\"exact\": 7, \"exact_of\": 10}\n"
      "{\"total_step\": 3, \"lo";
  RunReport report = ReportRun(metrics).value();
  for (const char* part : {"2 steps in 4.0 s, 200 tokens/s", "42%", "base            -       5.5000      244.700",
                           "epoch 1       4.5000       4.2500       70.100", "exact: 7 of 10", "failure 1 after step 2: rank 1 died"}) {
    INFO(report.text);
    CHECK(report.text.find(part) != std::string::npos);
  }
  REQUIRE(report.plots.size() == 3);
  CHECK(Count(report.plots["loss.svg"], "<path ") == 2);
  CHECK(Count(report.plots["loss.svg"], "<circle ") == 2);   // the base model and the epoch
  for (const auto& [name, svg] : report.plots) CHECK(svg.ends_with("</svg>\n"));
  CHECK(!ReportRun("").ok());
  CHECK(!ReportRun("{\"exact\": 1}\n").ok());
}

TEST_CASE("Recipe reports: every step but an epoch's last, and the epoch with its means; a run that goes on adds nothing twice") {
  auto step = [](int epoch, int step, double loss) {
    return fmt::format("{{\"epoch\":{},\"step\":{},\"total_step\":9,\"loss\":{},\"lr\":0.5,\"forward_seconds\":1.0,\"backward_seconds\":2.0}}", epoch, step, loss);
  };
  RecipeReports reports;
  CHECK(reports.Add("{\"base_eval_loss\":5.5,\"total_step\":0}").empty());
  CHECK(reports.Add(step(1, 1, 4.0)).empty());
  auto first = nlohmann::json::parse(reports.Add(step(1, 2, 2.0)));
  CHECK(first == nlohmann::json::parse(R"({"epoch":0,"iteration":0,"train_loss_batch":4.0,"avg_train_loss_epoch":null,"eval_loss":null,"perplexity":null,
      "num_iterations":1,"train_time_per_epoch":null,"eval_time_per_epoch":null,"fwd_time":1.0,"bwd_time":2.0,"avg_fwd_time_per_epoch":null,
      "avg_bwd_time_per_epoch":null,"learning_rate":0.5})"));
  auto epoch = nlohmann::json::parse(reports.Add(R"({"epoch":1,"total_step":2,"train_loss":2.9,"train_seconds":7.0,"eval_loss":1.5,"perplexity":4.48,"eval_seconds":3.0})"));
  CHECK(epoch == nlohmann::json::parse(R"({"epoch":0,"iteration":1,"train_loss_batch":2.0,"avg_train_loss_epoch":3.0,"eval_loss":1.5,"perplexity":4.48,
      "num_iterations":2,"train_time_per_epoch":7.0,"eval_time_per_epoch":3.0,"fwd_time":1.0,"bwd_time":2.0,"avg_fwd_time_per_epoch":1.0,
      "avg_bwd_time_per_epoch":2.0,"learning_rate":0.5})"));
  CHECK(reports.Add("{\"failure\":1,\"total_step\":2}").empty());
  CHECK(reports.Add("{\"epoch\":2,\"st").empty());
  CHECK(reports.Add(step(2, 1, 1.0)).empty());
  // An epoch without held-out rows has no evaluation; means are of its own steps.
  auto second = nlohmann::json::parse(reports.Add(R"({"epoch":2,"total_step":3,"train_loss":1.0,"train_seconds":7.0})"));
  CHECK(second["avg_train_loss_epoch"] == 1.0);
  CHECK(second["eval_loss"].is_null());
}

TEST_CASE("Plot: ticks are round, long series are thinned, gaps are left where there is no number, names are escaped") {
  CHECK(Ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  std::vector<double> ticks = Ticks(0.13, 0.31, 4);
  REQUIRE(ticks.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK(ticks[i] == Approx(0.15 + 0.05 * static_cast<double>(i)));
  CHECK(Ticks(3, 3, 5) == std::vector<double>{3});
  Series series{.name = "a<b"};
  for (int i = 0; i < 100'000; ++i) series.points.emplace_back(i, std::sin(i * 1e-4));
  Series broken{.name = "x", .points = {{0, 1}, {1, NAN}, {2, 3}, {3, HUGE_VAL}, {4, 2}}};
  std::string svg = DrawLines({"T & T", "x", "y", {series, broken}});
  CHECK(svg.size() < 40'000);
  CHECK(svg.find("a&lt;b") != std::string::npos);
  CHECK(svg.find("T &amp; T") != std::string::npos);
  std::string path = svg.substr(svg.rfind("<path d="));
  CHECK(Count(path, "M") == 3);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
  CHECK(DrawLines({}).ends_with("</svg>\n"));
}

}  // namespace
}  // namespace argosy::train
