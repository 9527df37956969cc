#include "runtime/node/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "runtime/base/log.h"
#include "runtime/base/status.h"

extern char** environ;

namespace argosy::node {
namespace {

UniqueFd OpenPidfd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

struct Child {
  const ProcessOptions& options;
  char* const* argv;
  char* const* env;
  int null_fd;
  pid_t parent;
};

// In the child, until exec: only what is async-signal-safe, and nothing that the parent, whose memory this is, would see changed.
__attribute__((no_sanitize("address", "thread", "undefined"))) int RunChild(void* argument) {
  const auto& [options, argv, env, null_fd, parent] = *static_cast<Child*>(argument);
  if (options.own_session) ::setsid();
  else ::setpgid(0, 0);
  if (options.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) return 1;
  }
  struct sigaction normal {};
  normal.sa_handler = SIG_DFL;
  for (int signal = 1; signal < 32; ++signal) ::sigaction(signal, &normal, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(options.stdin_fd >= 0 ? options.stdin_fd : null_fd, 0);
  ::dup2(options.stdout_fd >= 0 ? options.stdout_fd : null_fd, 1);
  ::dup2(options.stderr_fd >= 0 ? options.stderr_fd : null_fd, 2);
  unsigned first_closed = 3;
  if (options.inherited_fd >= 0) {
    if (options.inherited_fd == 3) ::fcntl(3, F_SETFD, 0);
    else ::dup2(options.inherited_fd, 3);
    first_closed = 4;
  }
  // Descriptors that some library opened without close-on-exec.
  ::syscall(SYS_close_range, first_closed, ~0u, CLOSE_RANGE_CLOEXEC);
  const char* failed = nullptr;
  if (!options.working_dir.empty() && ::chdir(options.working_dir.c_str()) != 0) failed = "argosy: cannot enter the working folder ";
  const char* what = options.working_dir.c_str();
  if (failed == nullptr) {
    ::execve(options.executable.c_str(), argv, env);
    failed = "argosy: cannot run ";
    what = options.executable.c_str();
  }
  const char* why = ::strerrordesc_np(errno);
  if (why == nullptr) why = "unknown error";
  for (const char* part : {failed, what, ": ", why, "\n"}) {
    if (::write(2, part, std::strlen(part)) < 0) break;
  }
  return 127;
}

// The child runs in this process's memory, on a stack of its own, until it executes its program, and this thread waits for that. A fork would copy
// the page tables of a daemon, which grow with its workers, and then fault on every page that is written.
pid_t Spawn(Child& child) {
  constexpr size_t kStack = 256 << 10;
  void* stack = ::mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return -1;
  // Until the child has its own dispositions, a handler of ours would run in it.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::clone(&RunChild, static_cast<char*>(stack) + kStack, CLONE_VM | CLONE_VFORK | SIGCHLD, &child);
  const int saved_errno = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::munmap(stack, kStack);
  errno = saved_errno;
  return pid;
}

}  // namespace

std::string ProcessEnd::ToString() const {
  if (signal == 0) return fmt::format("exited with code {}", exit_code);
  const char* name = ::sigabbrev_np(signal);
  return fmt::format("was killed by signal {} (SIG{})", signal, name == nullptr ? "?" : name);
}

absl::StatusOr<std::unique_ptr<Process>> Process::Start(async::Loop& loop, const ProcessOptions& options, Ended ended) {
  std::vector<char*> argv;
  for (const std::string& argument : options.argv) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  for (const auto& [name, value] : options.env) variables.push_back(name + "=" + value);
  std::vector<char*> env;
  for (const std::string& variable : variables) env.push_back(const_cast<char*>(variable.c_str()));
  env.push_back(nullptr);
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.ok()) return ErrnoStatus(errno, "/dev/null");
  Child child{options, argv.data(), env.data(), null.get(), ::getpid()};
  const pid_t pid = Spawn(child);
  if (pid < 0) return ErrnoStatus(errno, "clone");
  if (!options.own_session) ::setpgid(pid, pid);   // also here, so that a signal to the group cannot come too early
  UniqueFd pidfd = OpenPidfd(pid);
  if (!pidfd.ok()) {
    absl::Status status = ErrnoStatus(errno, "pidfd_open");
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return status;
  }
  return std::unique_ptr<Process>(new Process(loop, pid, std::move(pidfd), std::move(ended)));
}

Process::Process(async::Loop& loop, pid_t pid, UniqueFd pidfd, Ended ended)
    : loop_(loop), pid_(pid), pidfd_(std::move(pidfd)), ended_(std::move(ended)),
      watch_(std::make_unique<async::FdWatch>(loop, pidfd_.get())) {
  watch_->OnReadable([this] {
    if (!Reap(false)) return true;
    // The callee may destroy this.
    Ended ended = std::move(ended_);
    ProcessEnd end = end_;
    if (ended) ended(end);
    return false;
  });
}

Process::~Process() {
  watch_.reset();
  if (!running_) return;
  Signal(SIGKILL);
  Reap(true);
}

bool Process::Reap(bool wait) {
  int status = 0;
  pid_t reaped;
  do {
    reaped = ::waitpid(pid_, &status, wait ? 0 : WNOHANG);
  } while (reaped < 0 && errno == EINTR);
  if (reaped == 0) return false;
  running_ = false;
  if (reaped > 0 && WIFSIGNALED(status)) end_.signal = WTERMSIG(status);
  else if (reaped > 0) end_.exit_code = WEXITSTATUS(status);
  // What it left behind in its group goes with it.
  ::kill(-pid_, SIGKILL);
  return true;
}

void Process::Signal(int signal) {
  if (!running_) return;
  // The group may not exist yet when the child has not run so far.
  if (::kill(-pid_, signal) != 0) ::kill(pid_, signal);
}

std::unique_ptr<ProcessWatch> ProcessWatch::Make(async::Loop& loop, pid_t pid, std::function<void()> ended) {
  if (pid <= 0) return nullptr;
  UniqueFd pidfd = OpenPidfd(pid);
  if (!pidfd.ok()) return nullptr;
  return std::unique_ptr<ProcessWatch>(new ProcessWatch(loop, std::move(pidfd), std::move(ended)));
}

ProcessWatch::ProcessWatch(async::Loop& loop, UniqueFd pidfd, std::function<void()> ended)
    : pidfd_(std::move(pidfd)), watch_(std::make_unique<async::FdWatch>(loop, pidfd_.get())) {
  watch_->OnReadable([ended = std::move(ended)] {
    auto keep = ended;
    keep();
    return false;
  });
}

ProcessWatch::~ProcessWatch() { watch_.reset(); }

std::vector<pid_t> ProcessesOfSession(pid_t session) {
  struct Seen { pid_t parent; pid_t session; };
  std::map<pid_t, Seen> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    std::string name = entry.path().filename().string();
    char* end = nullptr;
    pid_t pid = static_cast<pid_t>(std::strtol(name.c_str(), &end, 10));
    if (pid <= 0 || *end != '\0') continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    // After the name, which may hold anything: state ppid pgrp session.
    size_t close = line.rfind(')');
    if (close == std::string::npos) continue;
    char state = 0;
    Seen seen{};
    pid_t group = 0;
    std::istringstream rest(line.substr(close + 1));
    if (rest >> state >> seen.parent >> group >> seen.session && state != 'Z') all[pid] = seen;
  }
  std::set<pid_t> found;
  for (const auto& [pid, seen] : all) {
    if (seen.session == session) found.insert(pid);
  }
  for (bool grew = true; grew;) {
    grew = false;
    for (const auto& [pid, seen] : all) {
      if (found.contains(seen.parent) && found.insert(pid).second) grew = true;
    }
  }
  return {found.begin(), found.end()};
}

std::string GpuDevices(const std::vector<uint32_t>& gpu_ids, const std::vector<std::string>& devices) {
  std::string text;
  for (uint32_t gpu : gpu_ids) {
    if (!text.empty()) text += ',';
    text += gpu < devices.size() ? devices[gpu] : std::to_string(gpu);
  }
  return text;
}

std::map<std::string, std::string> ChildEnvironment() {
  std::map<std::string, std::string> env;
  for (char** at = environ; *at != nullptr; ++at) {
    std::string_view variable = *at;
    size_t equals = variable.find('=');
    if (equals == std::string_view::npos) continue;
    env[std::string(variable.substr(0, equals))] = std::string(variable.substr(equals + 1));
  }
  // Tokens are passed by descriptor or socket; the others would tell a child that it is something else.
  for (const char* name : {"ARGOSY_AUTH_TOKEN", "RAY_AUTH_TOKEN", "ARGOSY_WORKER", "ARGOSY_JOB_SUBMISSION_ID", "RAY_JOB_CONFIG_JSON_ENV_VAR"}) {
    env.erase(name);
  }
  return env;
}

}  // namespace argosy::node
