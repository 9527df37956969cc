// The program's parts on a real cluster of two nodes, with whatever test library you like around it.
#include <argosy/argosy.h>
#include <argosy/testing.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "counting.h"

namespace {

void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  argosy::testing::Cluster cluster({{.num_cpus = 1}, {.name = "other", .num_cpus = 1, .resources = {{"other", 1}}}});
  argosy::Runtime runtime = argosy::Connect(argc, argv, cluster.connect_options());

  Check(argosy::Get(argosy::Task<CountWord>().Submit("a ship, a sail", "a ")).times == 2, "a task counts");
  argosy::Task<CountWord> on_the_other({.resources = {{"other", 1}}});
  argosy::Actor<Total> total = argosy::Spawn<Total>({});
  Check(argosy::Get(total.Call<&Total::Add>(on_the_other.Submit("sail on", "sail"))) == 1, "an actor adds what another node counted");

  argosy::Actor<Total> there = argosy::Spawn<Total>({.resources = {{"other", 1}}});
  Check(argosy::Get(there.Call<&Total::Add>(Count{"sail", 3})) == 3, "an actor runs on the other node");
  cluster.KillNode("other");   // as a host that loses its power
  bool died = false;
  try {
    // It may answer until its process has noticed.
    for (;;) argosy::Get(there.Call<&Total::Add>(Count{"sail", 1}), std::chrono::minutes(1));
  } catch (const argosy::ActorDiedError&) {
    died = true;
  }
  Check(died, "an actor dies with its node");
  std::puts("all is well");
}
