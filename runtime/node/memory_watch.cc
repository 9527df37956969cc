#include "runtime/node/memory_watch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/resources.h"
#include "runtime/base/status.h"
#include "runtime/node/memory_policy.h"

namespace argosy::node {
namespace {

constexpr absl::Duration kLockPeriod = absl::Seconds(2);
constexpr absl::Duration kPeersPeriod = absl::Seconds(10);
constexpr absl::Duration kPeerWait = absl::Milliseconds(500);
// The longest that a process is waited for that was ended: the kernel may take its time to free what it had.
constexpr absl::Duration kEndWait = absl::Seconds(3);
// While much is free looks are rarer: at this rate, bytes a second and processor, half of what is free outlasts the pause.
constexpr double kFillRate = 4e9;
constexpr absl::Duration kPauseMax = absl::Seconds(1);
// Below the threshold, too, when nobody gets on with anything.
constexpr double kStalled = 0.4;
constexpr double kStalledThreshold = 0.9;   // of the threshold

absl::Time RealNow() { return Clock::Real().Now(); }

}  // namespace

MemoryWatch::MemoryWatch(Parts parts, MemoryWatchOptions options) : parts_(parts), options_(std::move(options)), timer_(parts.loop) {
  if (options_.period <= absl::ZeroDuration()) return;
  absl::StatusOr<HostMemory> memory = options_.reader.Read();
  if (!memory.ok()) {
    spdlog::warn("memory is not watched: {}", Message(memory.status()));
    if (options_.workers_max == 0) return;
  }
  boot_id_ = options_.reader.BootId();
  LookLater();
}

MemoryWatch::~MemoryWatch() {
  alive_.reset();
  if (lock_.ok()) (void)::unlink(lock_path_.c_str());   // before the lock goes: nobody removes another's
}

void MemoryWatch::SetCluster(const std::string& cluster_id) {
  std::string name;
  for (char c : cluster_id) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  lock_path_ = fmt::format("{}/argosy-memory-watch-{}-{}", options_.lock_folder, ::geteuid(), name.substr(0, 64));
}

void MemoryWatch::TakeLock() {
  if (lock_.ok() || lock_path_.empty() || RealNow() < next_lock_) return;
  next_lock_ = RealNow() + kLockPeriod;
  UniqueFd file(::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.ok() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return;
  // Whoever had it before may have removed the name meanwhile.
  struct stat here, there;
  if (::fstat(file.get(), &here) != 0 || ::stat(lock_path_.c_str(), &there) != 0 || here.st_ino != there.st_ino) return;
  lock_ = std::move(file);
  spdlog::info("node {} watches this host's memory: work is ended from {:.1f}% in use", options_.node_name, options_.threshold * 100);
}

void MemoryWatch::LookLater() {
  const bool calm = !asking_ && victim_pid_ == 0 && options_.workers_max == 0;
  const absl::Duration pause = std::min(absl::Seconds(calm ? free_ / (kFillRate * std::max(1u, std::thread::hardware_concurrency())) / 2 : 0), kPauseMax);
  timer_.After(std::max(pause, options_.period), [this] {
    Look();
    LookLater();
  });
}

std::vector<wire::MemoryWorker> MemoryWatch::OwnWorkers() const {
  std::vector<wire::MemoryWorker> workers;
  for (const LeaseMachine::InUse& used : parts_.leases.machine().WorkersInUse()) {
    wire::MemoryWorker worker{used.worker, parts_.leases.Pid(used.worker), 0, used.job, used.retriable, 0};
    if (worker.pid == 0) continue;
    worker.bytes = options_.reader.OfProcess(worker.pid);
    // The machine's clock need not be the wall's.
    worker.since_us = absl::ToUnixMicros(absl::Now() - (RealNow() - used.since));
    workers.push_back(worker);
  }
  return workers;
}

void MemoryWatch::Look() {
  TakeLock();
  if (lock_.ok()) FindPeers();
  if (asking_) return;
  if (victim_pid_ != 0) {
    if (RealNow() < quiet_until_ && options_.reader.OfProcess(victim_pid_) > 0) return;
    victim_pid_ = 0;
    return;   // what it had is free by the next look
  }
  if (options_.workers_max > 0) {
    uint64_t together = 0;
    std::vector<Candidate> candidates;
    for (wire::MemoryWorker& worker : OwnWorkers()) {
      together += worker.bytes;
      candidates.push_back({std::move(worker), ""});
    }
    if (together > options_.workers_max) {
      return EndOne(candidates, fmt::format("node {}'s workers took {} together, and may take {} (--workers-memory-max)", options_.node_name,
                                            BytesText(together), BytesText(options_.workers_max)));
    }
  }
  if (!lock_.ok()) {
    free_ = std::numeric_limits<double>::max();   // another watches the host
    return;
  }
  absl::StatusOr<HostMemory> memory = options_.reader.Read();
  free_ = 0;
  if (!memory.ok()) return;
  free_ = options_.threshold * static_cast<double>(memory->total) - static_cast<double>(memory->used);
  if (memory->group_limit) {
    free_ = std::min(free_, options_.threshold * static_cast<double>(*memory->group_limit) - static_cast<double>(memory->group_used));
  }
  bool stalled = memory->stalled.value_or(0) >= kStalled && memory->share() >= options_.threshold * kStalledThreshold;
  if (memory->share() < options_.threshold && !stalled) return;
  AskPeers(*memory);
}

void MemoryWatch::FindPeers() {
  if (RealNow() - peers_found_ < kPeersPeriod) return;
  peers_found_ = RealNow();
  parts_.cluster.ListNodes([this, weak = std::weak_ptr<bool>(alive_)](absl::StatusOr<wire::ListNodesReply> reply) {
    if (weak.expired() || !reply.ok()) return;   // the head is away: those that are known stay
    peers_.clear();
    for (const wire::NodeInfo& node : reply->nodes) {
      if (node.alive && node.node != options_.self && node.hostname == options_.hostname) peers_.push_back({node.node, node.wire_address});
    }
  });
}

struct MemoryWatch::Round {
  explicit Round(async::Loop& loop) : timer(loop) {}
  HostMemory memory;
  std::vector<Candidate> candidates;
  size_t open = 0;
  bool finished = false;
  async::Timer timer;
};

void MemoryWatch::AskPeers(const HostMemory& memory) {
  auto round = std::make_shared<Round>(parts_.loop);
  round->memory = memory;
  for (wire::MemoryWorker& worker : OwnWorkers()) round->candidates.push_back({std::move(worker), ""});
  asking_ = true;
  auto finish = [this, weak = std::weak_ptr<bool>(alive_)](const std::shared_ptr<Round>& round) {
    if (weak.expired() || std::exchange(round->finished, true)) return;
    round->timer.Cancel();
    asking_ = false;
    EndOne(round->candidates, fmt::format("{} were in use, and work is ended from {:.1f}% (--memory-threshold)", round->memory.ToString(),
                                          options_.threshold * 100));
  };
  round->open = peers_.size();
  if (round->open == 0) return finish(round);
  round->timer.After(kPeerWait, [late = std::weak_ptr<Round>(round), finish] {
    if (std::shared_ptr<Round> round = late.lock()) finish(round);
  });
  for (const Peer& peer : peers_) {
    auto answered = [this, round, finish, address = peer.wire_address](absl::StatusOr<wire::MemoryUseReply> reply) {
      if (round->finished) return;
      // Another host may have the same name.
      if (reply.ok() && reply->boot_id == boot_id_) {
        for (wire::MemoryWorker& worker : reply->workers) round->candidates.push_back({std::move(worker), address});
      }
      if (--round->open == 0) finish(round);
    };
    parts_.peers.Get(peer.wire_address, [weak = std::weak_ptr<bool>(alive_), answered](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
      if (weak.expired()) return;
      if (!connection.ok()) return answered(connection.status());
      (*connection)->Request(wire::MemoryUse(), [weak, answered](absl::StatusOr<wire::MemoryUseReply> reply) {
        if (!weak.expired()) answered(std::move(reply));
      });
    });
  }
}

void MemoryWatch::EndOne(const std::vector<Candidate>& candidates, const std::string& why) {
  std::vector<wire::MemoryWorker> workers;
  for (const Candidate& candidate : candidates) workers.push_back(candidate.worker);
  std::optional<size_t> chosen = ChooseVictim(workers);
  quiet_until_ = RealNow() + kEndWait;
  if (!chosen) {
    spdlog::warn("memory runs short, and no worker is there to end: {}", why);
    victim_pid_ = static_cast<uint32_t>(::getpid());   // looked at again after a while
    return;
  }
  const Candidate& candidate = candidates[*chosen];
  const WorkerId victim = candidate.worker.worker;
  victim_pid_ = candidate.worker.pid;
  std::string reason = fmt::format("memory ran short and it was ended: it used {}; {}", BytesText(candidate.worker.bytes), why);
  spdlog::warn("worker {} (pid {}): {}", victim.Short(), victim_pid_, reason);
  if (candidate.peer.empty()) return parts_.leases.EndForMemory(victim, reason);
  parts_.peers.Get(candidate.peer, [message = wire::EndForMemory{victim, reason}](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
    if (connection.ok()) (*connection)->Notify(message);
  });
}

void MemoryWatch::OnMemoryUse(wire::Call call) {
  wire::MemoryUseReply reply;
  reply.boot_id = boot_id_;
  reply.workers = OwnWorkers();
  call.Answer(reply);
}

void MemoryWatch::OnEndForMemory(const wire::EndForMemory& message) { parts_.leases.EndForMemory(message.worker, message.reason); }

}  // namespace argosy::node
