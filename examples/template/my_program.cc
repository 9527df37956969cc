#include <argosy/argosy.h>

#include <cstdio>
#include <string>
#include <vector>

#include "counting.h"

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);   // code before it runs in every worker too

  argosy::Actor<Total> total = argosy::Spawn<Total>({.name = "total"});
  std::vector<argosy::ObjectRef<int>> sums;
  for (const char* text : {"a ship, a sail", "sail on", "a ship in a bottle"}) {
    argosy::ObjectRef<Count> count = argosy::Task<CountWord>({.max_retries = 1}).Submit(text, "ship");
    sums.push_back(total.Call<&Total::Add>(count));   // runs when the count is there
  }
  std::printf("\"ship\" was found %d times\n", argosy::Get(sums).back());

  try {
    argosy::Get(argosy::Task<CountWord>({.resources = {{"submarine", 1}}, .deadline = absl::Seconds(2)}).Submit("", ""));
  } catch (const argosy::UnschedulableError& error) {
    std::printf("as expected: %s\n", error.what());
  }
}
