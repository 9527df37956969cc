#include "runtime/node/worker_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include "runtime/base/codec.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace argosy::node {
namespace {

// The end of a file, for people: at most `size` bytes, whole lines when there are some.
std::string Tail(const std::string& path, size_t size) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!fd.ok() || ::fstat(fd.get(), &info) != 0) return {};
  off_t from = info.st_size > static_cast<off_t>(size) ? info.st_size - static_cast<off_t>(size) : 0;
  std::string text(static_cast<size_t>(info.st_size - from), '\0');
  ssize_t n = ::pread(fd.get(), text.data(), text.size(), from);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  if (from > 0) {
    if (size_t newline = text.find('\n'); newline != std::string::npos) text.erase(0, newline + 1);
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

WorkerProcesses::WorkerProcesses(async::Loop& loop, transfer::CodeFiles& code_files, PackageCache& packages, WorkerProcessesOptions options,
                                 Ended ended)
    : loop_(loop), code_files_(code_files), packages_(packages), options_(std::move(options)), ended_(std::move(ended)) {}

WorkerProcesses::~WorkerProcesses() {
  alive_.reset();
  for (auto& [worker, child] : children_) {
    if (child.process) child.process->Signal(SIGKILL);
  }
  children_.clear();
}

void WorkerProcesses::Start(WorkerId worker, const wire::CodePackage& code, const std::vector<uint32_t>& gpu_ids) {
  Child& child = children_[worker];
  child.startup_number = next_startup_number_++;
  auto prepared = std::make_shared<Prepared>();
  prepared->code = code;
  prepared->gpu_ids = gpu_ids;
  code_files_.Locate(code, [this, weak = std::weak_ptr<bool>(alive_), worker, prepared](absl::StatusOr<transfer::CodeFiles::Located> located) {
    if (weak.expired()) return;
    if (!located.ok()) {
      return Fail(worker, fmt::format("node {} has not the code of its driver: {}", options_.node_name, Message(located.status())), true);
    }
    prepared->located = std::move(*located);
    OnLocated(worker, prepared);
  });
}

void WorkerProcesses::OnLocated(WorkerId worker, std::shared_ptr<Prepared> prepared) {
  const std::string uri = prepared->code.working_dir_uri;
  if (uri.empty()) return OnPrepared(worker, *prepared);
  packages_.Get(uri, [this, weak = std::weak_ptr<bool>(alive_), worker, prepared, uri](absl::StatusOr<std::string> folder) {
    if (weak.expired()) return;
    if (!folder.ok()) {
      return Fail(worker, fmt::format("node {} cannot set up the working directory {}: {}", options_.node_name, uri, Message(folder.status())), true);
    }
    prepared->working_dir = std::move(*folder);
    OnPrepared(worker, *prepared);
  });
}

void WorkerProcesses::OnPrepared(WorkerId worker, const Prepared& prepared) {
  auto at = children_.find(worker);
  if (at == children_.end()) return;
  if (!at->second.kill_reason.empty()) return Fail(worker, at->second.kill_reason);
  Prepared complete = prepared;
  if (absl::Status status = CheckFolders(complete); !status.ok()) return Fail(worker, Message(status), true);
  if (absl::Status status = Spawn(worker, at->second, complete); !status.ok()) {
    Fail(worker, fmt::format("it could not be started: {}", Message(status)));
  }
}

// Says which folder is missing before the loader says it worse.
absl::Status WorkerProcesses::CheckFolders(Prepared& prepared) const {
  for (const std::string& folder : prepared.code.library_path) {
    // A vendor's library folder is part of the host, not of the package.
    if (!std::filesystem::is_directory(folder)) {
      return FailedPrecondition("node {} has no library folder {}, which the driver uses", options_.node_name, folder);
    }
  }
  for (const std::string& folder : prepared.code.loader_path) {
    const bool in_package = folder.empty() || folder[0] != '/';
    const std::string& root = prepared.working_dir.empty() ? prepared.code.working_dir : prepared.working_dir;
    std::string path = in_package ? root + "/" + folder : folder;
    if (!std::filesystem::is_directory(path)) {
      return FailedPrecondition("node {} has no folder {} of library_path{}", options_.node_name, folder,
                                !in_package                                     ? ""
                                : prepared.code.working_dir_uri.empty() ? " in " + root
                                                                                : " in the working directory " + prepared.code.working_dir_uri);
    }
    prepared.loader_path.push_back(std::move(path));
  }
  return absl::OkStatus();
}

std::string WorkerProcesses::SocketPath(WorkerId worker) const { return options_.socket_dir + "/w-" + worker.Hex().substr(0, 16); }

absl::Status WorkerProcesses::Spawn(WorkerId worker, Child& child, const Prepared& prepared) {
  const wire::CodePackage& code = prepared.code;
  const transfer::CodeFiles::Located& located = prepared.located;
  std::string base = options_.log_dir + "/worker-" + worker.Hex();
  UniqueFd out(::open((base + ".out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  child.error_log = base + ".err";
  UniqueFd err(::open(child.error_log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!out.ok() || !err.ok()) return ErrnoStatus(errno, base);

  wire::StartupBlock block = options_.startup;
  block.startup_number = child.startup_number;
  block.worker = worker;
  block.worker_socket = SocketPath(worker);
  block.code = code;
  std::string encoded = Encode(block);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  // All of it must fit the pipe, so that the write does not block. A long argv or environment may need a larger one.
  if (encoded.size() > 60'000 && ::fcntl(write_end.get(), F_SETPIPE_SZ, static_cast<int>(encoded.size() + 4096)) < 0) {
    return ErrnoStatus(errno, fmt::format("a start-up block of {} bytes (arguments and environment of the job)", encoded.size()));
  }
  if (::write(write_end.get(), encoded.data(), encoded.size()) != static_cast<ssize_t>(encoded.size())) {
    return ErrnoStatus(errno, "write the start-up block");
  }
  write_end.Reset();

  ProcessOptions options;
  options.executable = located.paths[0];
  options.argv = code.argv;
  if (options.argv.empty()) options.argv.push_back(options.executable);
  options.env = ChildEnvironment();
  for (const auto& [name, value] : code.env_vars) options.env[name] = value;
  std::vector<std::string> folders = prepared.loader_path;
  std::set<std::string> known;
  if (located.fetched) folders.push_back(std::filesystem::path(located.paths[0]).parent_path().string());
  for (size_t i = 1; i < located.paths.size(); ++i) folders.push_back(std::filesystem::path(located.paths[i]).parent_path().string());
  for (const std::string& folder : code.library_path) folders.push_back(folder);
  std::string library_path;
  for (const std::string& folder : folders) {
    if (known.insert(folder).second) library_path += (library_path.empty() ? "" : ":") + folder;
  }
  std::string& inherited = options.env["LD_LIBRARY_PATH"];
  if (library_path.empty() && inherited.empty()) options.env.erase("LD_LIBRARY_PATH");
  else if (!library_path.empty()) inherited = inherited.empty() ? library_path : library_path + ":" + inherited;
  options.env["CUDA_VISIBLE_DEVICES"] = GpuDevices(prepared.gpu_ids, options_.gpu_devices);
  options.env[wire::kStartupVariable] = "3";
  if (!prepared.working_dir.empty()) options.working_dir = prepared.working_dir;
  else if (std::filesystem::is_directory(code.working_dir)) options.working_dir = code.working_dir;
  options.stdout_fd = out.get();
  options.stderr_fd = err.get();
  options.inherited_fd = read_end.get();
  ARGOSY_ASSIGN_OR_RETURN(child.process, Process::Start(loop_, options, [this, worker](const ProcessEnd& end) { OnEnd(worker, end); }));
  return absl::OkStatus();
}

void WorkerProcesses::Kill(WorkerId worker, const std::string& reason, bool out_of_memory) {
  auto at = children_.find(worker);
  if (at == children_.end()) return;
  if (at->second.kill_reason.empty()) {
    at->second.kill_reason = reason;
    at->second.out_of_memory = out_of_memory;
  }
  if (at->second.process) at->second.process->Signal(SIGKILL);
}

void WorkerProcesses::ExpectEnd(WorkerId worker, const std::string& reason) {
  auto at = children_.find(worker);
  if (at != children_.end() && at->second.kill_reason.empty()) at->second.kill_reason = reason;
}

std::optional<WorkerId> WorkerProcesses::Register(uint64_t startup_number, uint32_t pid) {
  for (auto& [worker, child] : children_) {
    if (child.startup_number != startup_number || !child.process) continue;
    if (static_cast<uint32_t>(child.process->pid()) != pid) return std::nullopt;
    child.registered = true;
    return worker;
  }
  return std::nullopt;
}

uint32_t WorkerProcesses::Pid(WorkerId worker) const {
  auto at = children_.find(worker);
  return at == children_.end() || !at->second.process ? 0 : static_cast<uint32_t>(at->second.process->pid());
}

void WorkerProcesses::OnEnd(WorkerId worker, const ProcessEnd& end) {
  auto child = children_.extract(worker);
  if (child.empty()) return;
  // A process that was killed leaves the name of its socket behind.
  ::unlink(SocketPath(worker).c_str());
  std::string reason = end.ToString();
  if (!child.mapped().kill_reason.empty()) {
    reason = child.mapped().kill_reason;
  } else if (!child.mapped().registered) {
    reason = "it " + reason + " before it had registered";
    if (std::string tail = Tail(child.mapped().error_log, 600); !tail.empty()) reason += "; it said: " + tail;
  }
  ended_({worker, reason, end.signal != 0 ? -end.signal : end.exit_code, child.mapped().out_of_memory});
}

void WorkerProcesses::Fail(WorkerId worker, const std::string& reason, bool environment_failed) {
  children_.erase(worker);
  // Not from inside Start, whose caller is in the middle of something.
  loop_.Post([this, weak = std::weak_ptr<bool>(alive_), worker, reason, environment_failed] {
    if (!weak.expired()) ended_({worker, reason, -1, false, environment_failed});
  });
}

}  // namespace argosy::node
