// From the start of a worker process to the answer of its first call, libtorch being part of the executable, beside the bare exec of the same file.
//
//   worker_start
#include <argosy/argosy.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

extern char** environ;

namespace {

class Server {
 public:
  int Value() { return 1; }
};

double MillisSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double BareExec() {
  char self[] = "/proc/self/exe", leave[] = "--leave";
  char* arguments[] = {self, leave, nullptr};
  auto begin = std::chrono::steady_clock::now();
  pid_t pid = 0;
  if (::posix_spawn(&pid, self, nullptr, nullptr, arguments, environ) != 0) return 0;
  ::waitpid(pid, nullptr, 0);
  return MillisSince(begin);
}

// Variables of its own: no worker that was started ahead fits.
double FirstCall(int number) {
  auto begin = std::chrono::steady_clock::now();
  argosy::Actor<Server> server = argosy::Spawn<Server>({.env_vars = {{"NUMBER", std::to_string(number)}}});
  argosy::Get(server.Call<&Server::Value>());
  double took = MillisSince(begin);
  argosy::Kill(server);
  return took;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--leave") return 0;
  argosy::Runtime runtime = argosy::Connect(argc, argv, {.num_cpus = 2});
  std::vector<double> calls, execs;
  for (int i = 0; i < 15; ++i) {
    execs.push_back(BareExec());
    calls.push_back(FirstCall(i));
  }
  std::printf("worker process with libtorch, start to first call: %.0f ms; bare exec of the same file: %.0f ms\n", Median(calls), Median(execs));
  return 0;
}
