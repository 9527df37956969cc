#include "train/trainer/run_log.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/trainer/event_file.h"

namespace argosy::train {
namespace {

double WallTime() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

absl::Status AppendTo(const std::string& path, std::string_view bytes) {
  struct CloseFile { void operator()(std::FILE* file) const { std::fclose(file); } };
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "ab"));
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size() || std::fflush(file.get()) != 0) {
    return ErrnoStatus(errno, path);
  }
  return absl::OkStatus();
}

}  // namespace

std::string KeepRecords(const std::string& text, int64_t total_step) {
  std::string kept;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    // A crash may have cut the last one.
    if (!record.is_object() || record.contains("exact")) continue;
    auto step = record.find("total_step");
    bool later = step != record.end() && step->is_number_integer() && step->get<int64_t>() > total_step;
    if (later && !record.contains("failure")) continue;
    kept += line + "\n";
  }
  return kept;
}

absl::Status RunLog::Open(const std::string& folder, int64_t total_step) {
  metrics_path_ = (std::filesystem::path(folder) / kMetricsName).string();
  const std::filesystem::path events = std::filesystem::path(folder) / kTensorBoardFolder;
  std::string kept;
  if (total_step > 0) {
    absl::StatusOr<std::string> old = ReadFile(metrics_path_);
    if (old.ok()) kept = KeepRecords(*old, total_step);
    else if (old.status().code() != absl::StatusCode::kNotFound) return old.status();
  } else {
    // Those of an earlier run, which is gone too.
    std::error_code error;
    for (std::filesystem::directory_iterator it(events, error), end; !error && it != end; it.increment(error)) {
      std::error_code ignored;
      if (it->path().filename().string().starts_with("events.out.tfevents.")) std::filesystem::remove(it->path(), ignored);
    }
  }
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(metrics_path_, kept));
  // Made again from the records that stay: a report may need those of its whole epoch.
  reports_ = {};
  reports_path_ = (std::filesystem::path(folder) / kRecipeReportName).string();
  std::string reports;
  std::istringstream lines(kept);
  for (std::string line; std::getline(lines, line);) reports += reports_.Add(line);
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(reports_path_, reports));
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(events.string()));
  // The names sort by time, which is how TensorBoard joins them: steps of a later file replace those of an earlier one.
  double now = WallTime();
  events_path_ = (events / fmt::format("events.out.tfevents.{:010}.argosy.{}", static_cast<int64_t>(now), ::getpid())).string();
  return AppendTo(events_path_, EventFileHead(now));
}

absl::Status RunLog::Append(const std::string& lines) {
  std::string events, reports;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    reports += reports_.Add(line);
    nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("total_step") || record.contains("failure")) continue;
    // A step's numbers are training's, an epoch's are evaluation's.
    const char* group = record.contains("train_loss") ? "epoch" : "train";
    std::vector<std::pair<std::string, double>> scalars;
    for (const auto& [name, value] : record.items()) {
      if (value.is_number() && name != "total_step" && name != "step") scalars.emplace_back(fmt::format("{}/{}", group, name), value.get<double>());
    }
    events += ScalarEvent(WallTime(), record["total_step"].get<int64_t>(), scalars);
  }
  ARGOSY_RETURN_IF_ERROR(AppendTo(metrics_path_, lines));
  if (!reports.empty()) ARGOSY_RETURN_IF_ERROR(AppendTo(reports_path_, reports));
  return events.empty() ? absl::OkStatus() : AppendTo(events_path_, events);
}

}  // namespace argosy::train
