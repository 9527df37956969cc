#include "bench/runtime/harness.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace argosy::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

template <class Function>
double TwoThreads(size_t size, const Function& function) {
  Clock::time_point begin = Clock::now();
  std::thread other([&] { function(size / 2, size); });
  function(0, size / 2);
  other.join();
  return static_cast<double>(size) / 1e9 / Seconds(Clock::now() - begin);
}

}  // namespace

namespace {

void StayOn(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

double PingPongOn(int mine, int other) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return 0;
  pid_t child = ::fork();
  if (child == 0) {
    StayOn(other);
    ::close(fds[0]);
    char byte;
    while (::read(fds[1], &byte, 1) == 1 && ::write(fds[1], &byte, 1) == 1) {}
    ::_exit(0);
  }
  StayOn(mine);
  ::close(fds[1]);
  char byte = 1;
  std::vector<double> rates;
  for (int stretch = 0; stretch < 9; ++stretch) {
    constexpr int kCount = 1500;
    Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCount; ++i) {
      if (::write(fds[0], &byte, 1) != 1 || ::read(fds[0], &byte, 1) != 1) break;
    }
    rates.push_back(kCount / Seconds(Clock::now() - begin));
  }
  ::close(fds[0]);
  ::waitpid(child, nullptr, 0);
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace

double SecondsSince(Clock::time_point begin) { return Seconds(Clock::now() - begin); }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

PingPong MeasurePingPong() {
  cpu_set_t before;
  if (::sched_getaffinity(0, sizeof before, &before) != 0) return {};
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE && cores.size() < 2; ++core) {
    if (CPU_ISSET(core, &before)) cores.push_back(core);
  }
  PingPong rates;
  rates.one_core = PingPongOn(cores.front(), cores.front());
  rates.two_cores = PingPongOn(cores.front(), cores.back());
  ::sched_setaffinity(0, sizeof before, &before);
  return rates;
}

double MeasureWarmCopy() {
  constexpr size_t kSize = size_t{256} << 20;
  std::vector<char> from(kSize, 1), to(kSize, 2);
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    best = std::max(best, TwoThreads(kSize, [&](size_t begin, size_t end) { std::memcpy(to.data() + begin, from.data() + begin, end - begin); }));
  }
  return best;
}

double MeasureFirstTouch(size_t size) {
  int memory = ::memfd_create("argosy-bench", MFD_CLOEXEC);
  double rate = 0;
  if (memory >= 0 && ::ftruncate(memory, static_cast<off_t>(size)) == 0) {
    void* fresh = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (fresh != MAP_FAILED) {
      rate = TwoThreads(size, [&](size_t begin, size_t end) { std::memset(static_cast<char*>(fresh) + begin, 1, end - begin); });
      ::munmap(fresh, size);
    }
  }
  if (memory >= 0) ::close(memory);
  return rate;
}

double MeasureLoopback(size_t size) {
  int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("no TCP port of loopback can be listened on");
  }
  constexpr size_t kPiece = 1 << 20;
  std::vector<char> from(kPiece, 1), to(kPiece, 2);
  std::thread sender([&] {
    int out = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(out, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      for (size_t left = size; left > 0;) {
        ssize_t n = ::send(out, from.data(), std::min(left, kPiece), MSG_NOSIGNAL);
        if (n <= 0) break;
        left -= static_cast<size_t>(n);
      }
    }
    ::close(out);
  });
  int in = ::accept(listener, nullptr, nullptr);
  Clock::time_point begin = Clock::now();
  size_t got = 0;
  for (ssize_t n; (n = ::recv(in, to.data(), kPiece, 0)) > 0;) got += static_cast<size_t>(n);
  double seconds = Seconds(Clock::now() - begin);
  sender.join();
  ::close(in);
  ::close(listener);
  return static_cast<double>(got) / 1e9 / seconds;
}

Row MeasureRate(const std::string& name, const std::string& unit, double per_step, const std::function<void()>& step, MeasureOptions options) {
  Clock::time_point begin = Clock::now();
  do step();
  while (Clock::now() - begin < options.warm_up);
  std::vector<double> rates;
  for (int round = 0; round < options.rounds; ++round) {
    begin = Clock::now();
    int64_t steps = 0;
    do {
      step();
      ++steps;
    } while (Clock::now() - begin < options.round);
    rates.push_back(per_step * static_cast<double>(steps) / Seconds(Clock::now() - begin));
  }
  Row row{.name = name, .unit = unit};
  for (double rate : rates) row.value += rate / static_cast<double>(rates.size());
  for (double rate : rates) row.deviation += (rate - row.value) * (rate - row.value) / static_cast<double>(rates.size());
  row.deviation = std::sqrt(row.deviation);
  return row;
}

Latency MeasureLatency(const std::function<void()>& step, int count) {
  std::vector<double> times;
  times.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    Clock::time_point begin = Clock::now();
    step();
    times.push_back(Seconds(Clock::now() - begin) * 1e6);
  }
  std::sort(times.begin(), times.end());
  auto at = [&](double quantile) { return times[static_cast<size_t>(quantile * static_cast<double>(times.size() - 1))]; };
  return {at(0.5), at(0.99)};
}

double ProportionalMiB(const std::vector<int>& pids) {
  double kib = 0;
  for (int pid : pids) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("Pss:")) kib += std::stod(line.substr(4));
    }
  }
  return kib / 1024;
}

double CpuSeconds(const std::vector<int>& pids) {
  double ticks = 0;
  for (int pid : pids) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    size_t end_of_name = text.rfind(')');
    if (end_of_name == std::string::npos) continue;   // it ended
    std::istringstream fields(text.substr(end_of_name + 1));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    ticks += user + system;
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace argosy::bench
