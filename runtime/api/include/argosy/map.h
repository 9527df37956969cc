#pragma once

#include <algorithm>
#include <deque>
#include <type_traits>
#include <vector>

#include "argosy/task.h"

namespace argosy {

struct MapOptions {
  TaskOptions task;
  size_t in_flight_max = 1000;   // tasks without a result that was read
};

// F of every input, each as a task; the results in the order of the inputs. Throws what the first failing one threw.
//   std::vector<int> squares = argosy::Map<Square>(std::vector{1, 2, 3});
template <auto F, class In>
auto Map(const std::vector<In>& inputs, const MapOptions& options = {}) {
  using Result = typename Task<F>::Result;
  if (options.in_flight_max < 1) throw RuntimeError("in_flight_max is 0; it must be 1 or more");
  Task<F> task(options.task);
  std::deque<ObjectRef<Result>> in_flight;
  std::conditional_t<std::is_void_v<Result>, std::vector<char>, std::vector<Result>> results;
  auto take_oldest = [&] {
    if constexpr (std::is_void_v<Result>) Get(in_flight.front());
    else results.push_back(Get(in_flight.front()));
    in_flight.pop_front();
  };
  for (const In& input : inputs) {
    if (in_flight.size() >= options.in_flight_max) take_oldest();
    in_flight.push_back(task.Submit(input));
  }
  while (!in_flight.empty()) take_oldest();
  if constexpr (!std::is_void_v<Result>) return results;
}

}  // namespace argosy
