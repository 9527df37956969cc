#include "runtime/node/observer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "runtime/base/codec.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/wire/messages.h"

namespace argosy::node {
namespace {

constexpr absl::Duration kReportsWait = absl::Milliseconds(500);
constexpr absl::Duration kReferencesWait = absl::Seconds(2);
constexpr absl::Duration kStackWait = absl::Seconds(6);

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// What the kernel says of a process that does not answer for itself.
std::string KernelStacks(uint32_t pid) {
  std::string text;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::string folder = entry.path().string();
    std::string stat = FirstLine(folder + "/stat");
    size_t name_end = stat.rfind(')');
    std::string state = name_end == std::string::npos || name_end + 2 >= stat.size() ? "?" : stat.substr(name_end + 2, 1);
    text += fmt::format("thread {} ({}), state {}, in the kernel at {}\n", entry.path().filename().string(), FirstLine(folder + "/comm"), state,
                        FirstLine(folder + "/wchan"));
    std::ifstream stack(folder + "/stack");   // root only
    for (std::string line; std::getline(stack, line);) text += "  " + line + "\n";
  }
  return text;
}

}  // namespace

template <class Message>
void Observer::AskClients(const std::vector<ClientPointer>& clients, const Message& message, absl::Duration wait,
                          std::function<void(Replies<Message>)> done) {
  if (clients.empty()) return done({});
  struct Round {
    explicit Round(async::Loop& loop) : timer(loop) {}
    Replies<Message> replies;
    size_t open = 0;
    bool finished = false;
    std::function<void(Replies<Message>)> done;
    async::Timer timer;
    void Finish() {
      if (std::exchange(finished, true)) return;
      timer.Cancel();
      done(std::move(replies));
    }
  };
  auto round = std::make_shared<Round>(parts_.loop);
  round->open = clients.size();
  round->done = std::move(done);
  for (const ClientPointer& client : clients) {
    round->replies.emplace_back(client, MakeStatus(absl::StatusCode::kDeadlineExceeded, "it did not answer within {}", absl::FormatDuration(wait)));
  }
  std::weak_ptr<bool> weak = alive_;
  round->timer.After(wait, [weak, late = std::weak_ptr<Round>(round)] {
    if (auto round = late.lock(); round && !weak.expired()) round->Finish();
  });
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i]->connection->Request(message, [weak, round, i](absl::StatusOr<typename Message::Reply> reply) {
      if (weak.expired() || round->finished) return;
      round->replies[i].second = std::move(reply);
      if (--round->open == 0) round->Finish();
    });
  }
}

void Observer::Answer(const NodeQuestion& question, Done done) {
  std::visit([&](const auto& q) { On(q, done); }, question);
}

void Observer::FlushJob(JobId job, std::function<void()> done) {
  std::vector<ClientPointer> workers;
  for (const ClientPointer& client : parts_.clients.All()) {
    if (client->registered && !client->is_driver && client->job == job) workers.push_back(client);
  }
  AskClients<wire::FlushReports>(workers, {}, kReportsWait, [this, job, done = std::move(done)](const Replies<wire::FlushReports>&) {
    parts_.prints.Flush(job);
    done();
  });
}

void Observer::On(const FlushPrintsQuestion& question, const Done& done) {
  FlushJob(question.job, [done] { done(Encode(EmptyAnswer{})); });
}

uint32_t Observer::PidOf(const Client& client) const { return client.is_driver ? client.pid : parts_.leases.Pid(client.worker); }

void Observer::On(const WorkersQuestion&, const Done& done) {
  WorkersAnswer answer;
  std::map<WorkerId, ActorId> actors;
  for (const HeldActor& actor : parts_.leases.machine().HeldActors()) actors[actor.worker.worker] = actor.actor;
  const WorkerPool& pool = parts_.leases.machine().pool();
  for (WorkerId id : pool.All()) {
    const WorkerPool::Worker& worker = *pool.Find(id);
    WorkerFacts facts;
    facts.worker = id;
    facts.job = worker.key.job;
    facts.pid = parts_.leases.Pid(id);
    facts.gpu_ids = worker.key.gpu_ids;
    facts.address = worker.address.tcp;
    facts.state = worker.ending                               ? "ENDING"
                  : worker.state == WorkerPool::State::kIdle  ? "IDLE"
                  : worker.registered                         ? "BUSY"
                                                              : "STARTING";
    if (auto at = actors.find(id); at != actors.end()) facts.actor = at->second;
    answer.workers.push_back(std::move(facts));
  }
  for (const ClientPointer& client : parts_.clients.All()) {
    if (!client->registered || !client->is_driver) continue;
    WorkerFacts facts;
    facts.worker = client->worker;
    facts.is_driver = true;
    facts.job = client->job;
    facts.pid = client->pid;
    facts.state = "CONNECTED";
    facts.address = client->address.tcp;
    answer.workers.push_back(std::move(facts));
  }
  done(Encode(answer));
}

void Observer::On(const ObjectsQuestion& question, const Done& done) {
  auto answer = std::make_shared<ObjectsAnswer>();
  answer->used = parts_.store.used();
  answer->capacity = parts_.store.arena_size();
  answer->backed = parts_.store.backed();
  answer->spilled = parts_.store.table().spilled_bytes();
  answer->spill_max = parts_.store.table().spill_max();
  // The largest first, so that a bound cuts what matters least.
  std::vector<store::ObjectTable::Listed> objects = parts_.store.table().List();
  std::sort(objects.begin(), objects.end(), [](const auto& a, const auto& b) { return a.size > b.size; });
  size_t max = question.objects_max;
  for (const store::ObjectTable::Listed& object : objects) {
    if (answer->objects.size() >= max) {
      ++answer->missing;
      continue;
    }
    answer->objects.push_back({object.object, object.size, object.owner, object.job, object.sealed, object.is_copy, object.pins, !object.in_memory});
  }
  std::vector<ClientPointer> processes;
  for (const ClientPointer& client : parts_.clients.All()) {
    if (client->registered) processes.push_back(client);
  }
  wire::ListReferences ask;
  ask.references_max = processes.empty() ? 0 : static_cast<uint32_t>(std::max<size_t>(max / processes.size(), 100));
  AskClients<wire::ListReferences>(processes, ask, kReferencesWait, [this, answer, done](Replies<wire::ListReferences> replies) {
    for (auto& [client, reply] : replies) {
      uint32_t pid = PidOf(*client);
      if (!reply.ok()) {
        answer->silent.push_back(fmt::format("{} {} (pid {})", client->is_driver ? "driver" : "worker", client->worker.Short(), pid));
        continue;
      }
      answer->missing += reply->missing;
      for (ReferenceFacts& facts : reply->references) {
        facts.holder = client->worker;
        facts.pid = pid;
        answer->references.push_back(std::move(facts));
      }
    }
    done(Encode(*answer));
  });
}

absl::StatusOr<LogAnswer> Observer::ReadLog(const LogQuestion& question) const {
  LogAnswer answer;
  std::string path = session_dir_ + "/node.log";
  answer.may_grow = true;
  if (!question.worker.empty()) {
    // Digits only: what is asked for becomes part of a path.
    if (question.worker.find_first_not_of("0123456789abcdef") != std::string::npos) return answer;
    path.clear();
    std::error_code error;
    const char* suffix = question.error_stream ? ".err" : ".out";
    for (const auto& entry : std::filesystem::directory_iterator(session_dir_ + "/logs", error)) {
      std::string name = entry.path().filename().string();
      if (!name.starts_with("worker-" + question.worker) || !name.ends_with(suffix)) continue;
      if (!path.empty()) return InvalidArgument("more than one worker has an id that begins with {}; give more of it", question.worker);
      path = entry.path().string();
      answer.worker = name.substr(7, name.size() - 11);
    }
    if (path.empty()) return answer;
    answer.may_grow = false;
    for (WorkerId id : parts_.leases.machine().pool().All()) answer.may_grow = answer.may_grow || id.Hex() == answer.worker;
  }
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!file.ok() || ::fstat(file.get(), &info) != 0) {
    if (question.worker.empty()) return NotFound("this daemon writes no log file ({} is not there)", path);
    return ErrnoStatus(errno, path);
  }
  answer.found = true;
  answer.end = static_cast<uint64_t>(info.st_size);
  answer.offset = question.from_end ? answer.end - std::min(answer.end, question.size_max) : std::min(question.offset, answer.end);
  answer.data.resize(std::min(question.size_max, answer.end - answer.offset));
  ssize_t n;
  do {
    n = ::pread(file.get(), answer.data.data(), answer.data.size(), static_cast<off_t>(answer.offset));
  } while (n < 0 && errno == EINTR);
  if (n < 0) return ErrnoStatus(errno, path);
  answer.data.resize(static_cast<size_t>(n));
  return answer;
}

void Observer::On(const LogQuestion& question, const Done& done) {
  absl::StatusOr<LogAnswer> answer = ReadLog(question);
  if (!answer.ok()) return done(answer.status());
  done(Encode(*answer));
}

void Observer::On(const StackQuestion& question, const Done& done) {
  std::vector<ClientPointer> found;
  for (const ClientPointer& client : parts_.clients.All()) {
    if (client->registered && client->worker.Hex().starts_with(question.worker)) found.push_back(client);
  }
  if (found.empty()) return done(Encode(StackAnswer{}));
  if (found.size() > 1) return done(InvalidArgument("more than one worker has an id that begins with {}; give more of it", question.worker));
  AskClients<wire::DumpStacks>(found, {}, kStackWait, [this, done](Replies<wire::DumpStacks> replies) {
    const auto& [client, reply] = replies.front();
    uint32_t pid = PidOf(*client);
    StackAnswer answer;
    answer.found = true;
    answer.text = fmt::format("{} {} (pid {})\n", client->is_driver ? "driver" : "worker", client->worker.Hex(), pid);
    if (reply.ok()) {
      answer.text += reply->text;
    } else {
      answer.text += fmt::format("it does not answer for itself ({}); what the kernel says:\n", Message(reply.status()));
      answer.text += KernelStacks(pid);
    }
    done(Encode(answer));
  });
}

}  // namespace argosy::node
