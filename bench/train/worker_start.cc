// From the start of a worker process to the answer of its first call, libtorch being part of the executable, beside the bare exec of the same file.
//
//   worker_start
#include <argosy/argosy.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "bench/runtime/harness.h"

extern char** environ;

namespace {

using argosy::bench::Median;
using argosy::bench::SecondsSince;

class Server {
 public:
  int Value() { return 1; }
};

double BareExec() {
  char self[] = "/proc/self/exe", leave[] = "--leave";
  char* arguments[] = {self, leave, nullptr};
  auto begin = std::chrono::steady_clock::now();
  pid_t pid = 0;
  if (::posix_spawn(&pid, self, nullptr, nullptr, arguments, environ) != 0) return 0;
  ::waitpid(pid, nullptr, 0);
  return 1e3 * SecondsSince(begin);
}

// Variables of its own: no worker that was started ahead fits.
double FirstCall(int number) {
  auto begin = std::chrono::steady_clock::now();
  argosy::Actor<Server> server = argosy::Spawn<Server>({.env_vars = {{"NUMBER", std::to_string(number)}}});
  argosy::Get(server.Call<&Server::Value>());
  double took = 1e3 * SecondsSince(begin);
  argosy::Kill(server);
  return took;
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
