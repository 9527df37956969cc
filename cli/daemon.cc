#include "cli/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/status.h"

extern char** environ;

namespace argosy::cli {
namespace {

constexpr unsigned kCloseRangeCloexec = 1u << 2;   // CLOSE_RANGE_CLOEXEC; an older kernel refuses it and nothing is lost but tidiness

struct Pipe { UniqueFd read; UniqueFd write; };

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Up to the end of file, or the first newline; DeadlineExceeded after `timeout`.
absl::StatusOr<std::string> ReadLine(int fd, absl::Duration timeout) {
  std::string text;
  absl::Time end = absl::Now() + timeout;
  while (true) {
    pollfd wait{fd, POLLIN, 0};
    int left = static_cast<int>(absl::ToInt64Milliseconds(std::max(end - absl::Now(), absl::ZeroDuration())));
    int ready = ::poll(&wait, 1, left);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return absl::DeadlineExceededError(absl::StrCat("no answer in ", absl::FormatDuration(timeout)));
    char buffer[4096];
    ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (size_t at = text.find('\n'); at != std::string::npos) return text.substr(0, at);
  }
}

}  // namespace

std::string OwnExecutable() {
  char path[4096];
  ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "argosy";
}

absl::StatusOr<StartedDaemon> StartDaemon(const DaemonStart& start) {
  ARGOSY_ASSIGN_OR_RETURN(Pipe ready, MakePipe());
  ARGOSY_ASSIGN_OR_RETURN(Pipe token, MakePipe());
  UniqueFd log(::open(start.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.ok()) return ErrnoStatus(errno, start.log_file);

  // Everything that the child needs is made here: between fork and exec only system calls are safe.
  std::vector<std::string> words{"argosy"};
  words.insert(words.end(), start.arguments.begin(), start.arguments.end());
  std::vector<int> inherited{ready.write.get(), token.read.get()};
  words.insert(words.end(), {"--ready-fd", std::to_string(ready.write.get()), "--token-fd", std::to_string(token.read.get())});
  if (start.until_eof_fd >= 0) {
    words.insert(words.end(), {"--until-eof-fd", std::to_string(start.until_eof_fd)});
    inherited.push_back(start.until_eof_fd);
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::string executable = OwnExecutable();
  // The token travels by descriptor, not by environment.
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "ARGOSY_AUTH_TOKEN=", 18) != 0) environment.push_back(*variable);
  }
  environment.push_back(nullptr);

  pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    ::setsid();
    int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    ::dup2(log.get(), STDOUT_FILENO);
    ::dup2(log.get(), STDERR_FILENO);
    // Whatever else the caller had open is not the daemon's: a pipe that a shell waits on must end with the command.
    ::syscall(SYS_close_range, 3u, ~0u, kCloseRangeCloexec);
    for (int fd : inherited) ::fcntl(fd, F_SETFD, 0);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve(executable.c_str(), argv.data(), environment.data());
    _exit(127);
  }
  ready.write.Reset();
  token.read.Reset();
  ::signal(SIGPIPE, SIG_IGN);
  WriteAll(token.write.get(), start.token.text() + "\n");
  token.write.Reset();

  auto give_up = [&](const std::string& why) -> absl::Status {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return Unavailable("{}", why);
  };
  absl::StatusOr<std::string> line = ReadLine(ready.read.get(), start.ready_timeout);
  if (!line.ok()) return give_up(fmt::format("the {} was not ready: {}; its log is {}", start.arguments.front(), Message(line.status()), start.log_file));
  nlohmann::json json = nlohmann::json::parse(*line, nullptr, false);
  if (!json.is_object()) return give_up(fmt::format("the {} ended before it was ready; its log is {}", start.arguments.front(), start.log_file));
  if (json.contains("error")) return give_up(json["error"].is_string() ? json["error"].get<std::string>() : json.dump());
  return StartedDaemon{pid, std::move(json)};
}

void SayReady(int fd, const nlohmann::json& line) {
  if (fd < 0) return;
  WriteAll(fd, line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");   // paths may hold any bytes
  ::close(fd);
}

void SayFailed(int fd, const absl::Status& status) { SayReady(fd, {{"error", Message(status)}}); }

absl::StatusOr<Token> ReadTokenFd(int fd) {
  ARGOSY_ASSIGN_OR_RETURN(std::string text, ReadLine(fd, absl::Seconds(10)));
  ::close(fd);
  return Token(std::move(text));
}

absl::StatusOr<UniqueFd> CatchSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.ok()) return ErrnoStatus(errno, "signalfd");
  return fd;
}

bool WaitForEnd(int signal_fd, int until_eof_fd, const std::vector<pid_t>& children) {
  std::vector<UniqueFd> handles;
  // A negative descriptor is skipped by poll.
  std::vector<pollfd> waits = {{signal_fd, POLLIN, 0}, {until_eof_fd, POLLIN, 0}};
  for (pid_t child : children) {
    handles.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
    waits.push_back({handles.back().get(), POLLIN, 0});
  }
  while (true) {
    if (::poll(waits.data(), waits.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return true;
    }
    if (waits[0].revents != 0) return true;
    if (waits[1].revents != 0) {
      char buffer[256];
      ssize_t n = ::read(until_eof_fd, buffer, sizeof buffer);
      if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return true;
    }
    for (size_t i = 2; i < waits.size(); ++i) {
      if (waits[i].revents != 0) return false;
    }
  }
}

void StopChild(pid_t child, absl::Duration grace) {
  ::kill(child, SIGTERM);
  UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd wait{handle.get(), POLLIN, 0};
  if (::poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(grace))) == 0) ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

void Fail(const absl::Status& status) {
  std::fprintf(stderr, "argosy: %s\n", Message(status).c_str());
  throw CLI::RuntimeError(absl::IsInvalidArgument(status) ? 2 : 1);
}

}  // namespace argosy::cli
