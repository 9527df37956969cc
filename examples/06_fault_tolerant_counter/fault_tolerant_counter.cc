// A counter that loses no increment and counts none twice, though its process is killed in the middle: the actor restarts, finds its last
// state in the cluster's key-value store, and calls in flight are repeated by the runtime under their own numbers.
#include <argosy/argosy.h>

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

struct State {
  int total = 0;
  int last = 0;   // number of the last increment that is in `total`
};

class Counter {
 public:
  Counter() {
    if (std::optional<std::string> saved = argosy::kv::Get("counter")) std::sscanf(saved->c_str(), "%d %d", &state_.total, &state_.last);
  }
  int Add(int number, int amount) {
    if (number > state_.last) {
      state_ = {state_.total + amount, number};
      argosy::kv::Put("counter", std::to_string(state_.total) + " " + std::to_string(state_.last));   // acknowledged: it survives
    }
    return state_.total;
  }
  int Pid() { return static_cast<int>(::getpid()); }

 private:
  State state_;
};

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);
  auto counter = argosy::Spawn<Counter>({.name = "counter", .max_restarts = -1, .max_task_retries = -1});

  int first_pid = argosy::Get(counter.Call<&Counter::Pid>());
  std::vector<argosy::ObjectRef<int>> totals;
  for (int number = 1; number <= 100; ++number) {
    totals.push_back(counter.Call<&Counter::Add>(number, number));
    if (number == 50) ::kill(first_pid, SIGKILL);
  }
  int total = argosy::Get(totals).back();
  int second_pid = argosy::Get(counter.Call<&Counter::Pid>());
  std::printf("1 + ... + 100 = %d, though process %d was killed and %d took over\n", total, first_pid, second_pid);
  return total == 5050 && second_pid != first_pid ? 0 : 1;
}
