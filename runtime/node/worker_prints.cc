#include "runtime/node/worker_prints.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace argosy::node {
namespace {

constexpr size_t kMutedMax = 10'000;

}  // namespace

WorkerPrints::WorkerPrints(async::Loop& loop, WorkerPrintsOptions options, Show show)
    : loop_(loop), options_(std::move(options)), show_(std::move(show)), timer_(loop) {}

void WorkerPrints::Add(WorkerId id, JobId job, uint32_t pid) {
  if (muted_.contains(job)) return;
  Worker& worker = workers_[id];
  worker.job = job;
  worker.pid = pid;
  const char* suffixes[] = {".out", ".err"};
  for (int i = 0; i < 2; ++i) {
    std::string path = options_.session_dir + "/logs/worker-" + id.Hex() + suffixes[i];
    worker.streams[i].file.Reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!worker.streams[i].file.ok()) spdlog::warn("what worker {} prints is not shown: {}", id.Short(), Message(ErrnoStatus(errno, path)));
  }
  if (std::exchange(polling_, true)) return;
  timer_.Every(options_.period, [this] { Poll(); });
}

void WorkerPrints::Ended(WorkerId id) {
  auto worker = workers_.extract(id);
  if (worker.empty()) return;
  JobPrints prints{worker.mapped().job, {}};
  ReadAll(id, worker.mapped(), prints);
  if (!prints.lines.empty()) show_(std::move(prints));
}

void WorkerPrints::Flush(JobId job) {
  JobPrints prints{job, {}};
  for (auto& [id, worker] : workers_) {
    if (worker.job == job) ReadAll(id, worker, prints);
  }
  if (!prints.lines.empty()) show_(std::move(prints));
}

void WorkerPrints::Mute(JobId job) {
  if (muted_.size() >= kMutedMax) muted_.clear();   // the next lines of a job that is still muted bring the answer again
  muted_.insert(job);
  std::erase_if(workers_, [&](const auto& worker) { return worker.second.job == job; });
}

void WorkerPrints::Clear() {
  workers_.clear();
  muted_.clear();
}

void WorkerPrints::Poll() {
  if (workers_.empty()) {
    polling_ = false;
    return timer_.Cancel();
  }
  struct Job { JobPrints prints; uint64_t left = 0; };
  std::map<JobId, Job> jobs;
  // Each time another worker goes first, so that none takes the job's whole share for long.
  auto at_worker = workers_.upper_bound(first_);
  if (at_worker == workers_.end()) at_worker = workers_.begin();
  first_ = at_worker->first;
  for (size_t i = 0; i < workers_.size(); ++i, ++at_worker) {
    if (at_worker == workers_.end()) at_worker = workers_.begin();
    auto& [id, worker] = *at_worker;
    auto [at, is_new] = jobs.try_emplace(worker.job);
    Job& job = at->second;
    if (is_new) {
      job.prints.job = worker.job;
      job.left = options_.job_bytes_a_period;
    }
    for (bool is_error : {false, true}) {
      uint64_t budget = std::min(options_.bytes_a_period, job.left);
      job.left -= std::min(job.left, Read(id, worker, is_error, budget, false, job.prints));
    }
  }
  for (auto& [id, job] : jobs) {
    if (!job.prints.lines.empty()) show_(std::move(job.prints));
  }
}

void WorkerPrints::ReadAll(WorkerId id, Worker& worker, JobPrints& prints) {
  for (bool is_error : {false, true}) {
    // Two turns: one past the bound skips, the next reads what is left.
    for (int turn = 0; turn < 2; ++turn) Read(id, worker, is_error, options_.behind_max, true, prints);
  }
}

uint64_t WorkerPrints::Read(WorkerId id, Worker& worker, bool is_error, uint64_t budget, bool all, JobPrints& prints) {
  Stream& stream = worker.streams[is_error ? 1 : 0];
  struct stat info;
  if (!stream.file.ok() || ::fstat(stream.file.get(), &info) != 0) return 0;
  uint64_t end = static_cast<uint64_t>(info.st_size);
  if (end <= stream.shown) return 0;
  bool cut = false;   // in the middle of a line
  if (end - stream.shown > options_.behind_max) {
    uint64_t to = end - options_.bytes_a_period;
    stream.skipped += to - stream.shown;
    stream.shown = to;
    cut = true;
  }
  if (budget == 0) return 0;
  std::string text(std::min(end - stream.shown, budget), '\0');
  ssize_t n;
  do {
    n = ::pread(stream.file.get(), text.data(), text.size(), static_cast<off_t>(stream.shown));
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return 0;
  text.resize(static_cast<size_t>(n));
  if (cut) {
    size_t newline = text.find('\n');
    size_t rest = newline == std::string::npos ? 0 : newline + 1;
    stream.shown += rest;
    stream.skipped += rest;
    text.erase(0, rest);
  }
  size_t whole = text.rfind('\n');
  bool at_end = stream.shown + text.size() >= end;
  size_t take = whole == std::string::npos ? 0 : whole + 1;
  if ((all && at_end) || (take == 0 && text.size() >= options_.line_max)) take = text.size();
  text.resize(take);
  if (take > 0) AddNamed(id, worker, is_error, std::move(text), prints);
  return take;
}

void WorkerPrints::AddNamed(WorkerId id, Worker& worker, bool is_error, std::string text, JobPrints& prints) {
  if (!worker.names) {
    if (auto names = wire::PrintedNames::Open(wire::PrintedNamesPath(options_.session_dir, id.Hex())); names.ok()) worker.names = std::move(*names);
  }
  bool complete = true;
  std::vector<wire::PrintedNames::Note> notes;
  if (worker.names) notes = worker.names->Read(&complete);
  Stream& stream = worker.streams[is_error ? 1 : 0];
  auto start = [&](const wire::PrintedNames::Note& note) { return is_error ? note.error : note.out; };
  size_t next = 0;
  std::string name;
  if (notes.empty() || start(notes.front()) > stream.shown) name.clear();
  for (size_t at = 0; at < text.size();) {
    while (next < notes.size() && start(notes[next]) <= stream.shown) name = notes[next++].name;
    uint64_t until = next < notes.size() ? start(notes[next]) : UINT64_MAX;
    size_t size = static_cast<size_t>(std::min<uint64_t>(text.size() - at, until - stream.shown));
    PrintedLines lines;
    lines.node = node_;
    lines.node_name = options_.node_name;
    lines.worker = id;
    lines.pid = worker.pid;
    lines.name = name;
    lines.is_error = is_error;
    lines.text = text.substr(at, size);
    if (lines.text.back() != '\n') lines.text += '\n';
    lines.skipped = std::exchange(stream.skipped, 0);
    prints.lines.push_back(std::move(lines));
    at += size;
    stream.shown += size;
  }
}

}  // namespace argosy::node
