#include "runtime/node/worker_prints.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace argosy::node {
namespace {

constexpr size_t kMutedMax = 10'000;
constexpr std::string_view kFilePrefix = "worker-";

}  // namespace

WorkerPrints::WorkerPrints(async::Loop& loop, WorkerPrintsOptions options, Show show)
    : loop_(loop), options_(std::move(options)), show_(std::move(show)), timer_(loop), inotify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  std::string folder = options_.session_dir + "/logs";
  if (!inotify_.ok() || ::inotify_add_watch(inotify_.get(), folder.c_str(), IN_MODIFY) < 0) {
    spdlog::info("{} is not watched: what workers print is looked for each {}", folder, absl::FormatDuration(options_.period));
    return;
  }
  watch_.emplace(loop_, inotify_.get());
  WaitForWrites();
}

void WorkerPrints::Add(WorkerId id, JobId job, uint32_t pid) {
  if (muted_.contains(job)) return;
  Worker& worker = workers_[id];
  worker.job = job;
  worker.pid = pid;
  const char* suffixes[] = {".out", ".err"};
  for (int i = 0; i < 2; ++i) {
    std::string path = fmt::format("{}/logs/{}{}{}", options_.session_dir, kFilePrefix, id.Hex(), suffixes[i]);
    worker.streams[i].file.Reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!worker.streams[i].file.ok()) spdlog::warn("what worker {} prints is not shown: {}", id.Short(), Message(ErrnoStatus(errno, path)));
  }
  unread_.insert(id);
  StartTurns();
}

void WorkerPrints::StartTurns() {
  if (std::exchange(polling_, true)) return;
  timer_.Every(options_.period, [this] { Poll(); });
}

void WorkerPrints::WaitForWrites() {
  watch_->OnReadable([this] {
    NoteWritten();
    if (unread_.empty()) return true;
    StartTurns();
    return false;   // the turns read what is told meanwhile
  });
}

void WorkerPrints::NoteWritten() {
  alignas(inotify_event) char buffer[16 * 1024];
  for (ssize_t size; (size = ::read(inotify_.get(), buffer, sizeof buffer)) > 0;) {
    for (const char* at = buffer; at < buffer + size;) {
      const auto* event = reinterpret_cast<const inotify_event*>(at);
      at += sizeof *event + event->len;
      if ((event->mask & IN_Q_OVERFLOW) != 0) {
        for (const auto& [id, worker] : workers_) unread_.insert(id);
        continue;
      }
      std::string_view name = event->len > 0 ? event->name : "";
      if (!name.starts_with(kFilePrefix)) continue;
      name.remove_prefix(kFilePrefix.size());
      auto id = WorkerId::FromHex(name.substr(0, name.find('.')));
      if (id && workers_.contains(*id)) unread_.insert(*id);
    }
  }
}

void WorkerPrints::Ended(WorkerId id) {
  auto worker = workers_.extract(id);
  if (worker.empty()) return;
  unread_.erase(id);
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
  if (watch_) NoteWritten();
  else for (const auto& [id, worker] : workers_) unread_.insert(id);
  if (unread_.empty()) {
    polling_ = false;
    timer_.Cancel();
    if (watch_) WaitForWrites();
    return;
  }
  struct Job { JobPrints prints; uint64_t left = 0; };
  std::map<JobId, Job> jobs;
  // Each time another worker goes first, so that none takes the job's whole share for long.
  std::vector<WorkerId> turn(unread_.upper_bound(first_), unread_.end());
  turn.insert(turn.end(), unread_.begin(), unread_.upper_bound(first_));
  first_ = turn.front();
  for (WorkerId id : turn) {
    auto at_worker = workers_.find(id);
    if (at_worker == workers_.end()) {   // muted
      unread_.erase(id);
      continue;
    }
    Worker& worker = at_worker->second;
    auto [at, is_new] = jobs.try_emplace(worker.job);
    Job& job = at->second;
    if (is_new) {
      job.prints.job = worker.job;
      job.left = options_.job_bytes_a_period;
    }
    bool had_budget = job.left > 0;
    uint64_t read = 0;
    for (bool is_error : {false, true}) {
      uint64_t budget = std::min(options_.bytes_a_period, job.left);
      uint64_t shown = Read(id, worker, is_error, budget, false, job.prints);
      read += shown;
      job.left -= std::min(job.left, shown);
    }
    // What is left then is a line without an end: its next bytes are told.
    if (had_budget && job.left > 0 && read == 0) unread_.erase(id);
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
