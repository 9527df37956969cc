#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "argosy/actor.h"

namespace argosy {

// Spreads calls over actors of one class: each has one call at a time, and whichever is free gets the next.
//
//   argosy::ActorPool<Model> pool({a, b, c});
//   std::vector<Answer> answers = pool.Map<&Model::Ask>(questions);
//
// Thread:   one at a time.
// Lifetime: the actors live on when it goes.
// Failure:  throws what a call threw; the calls that are in flight then go on, and are waited for by the next use.
template <class T>
class ActorPool {
 public:
  explicit ActorPool(std::vector<Actor<T>> actors) : idle_(actors.begin(), actors.end()) {
    if (idle_.empty()) throw RuntimeError("an ActorPool needs at least one actor");
  }

  // The method with every input; the results in the order of the inputs.
  template <auto Method, class In>
  auto Map(const std::vector<In>& inputs) {
    using Result = internal::ResultOf<typename internal::Signature<decltype(Method)>::Result>;
    static_assert(!std::is_void_v<Result>, "Map of a method without a result: use ForEach");
    std::vector<std::optional<Result>> found(inputs.size());
    ForEach<Method>(inputs, [&](size_t index, Result result) { found[index] = std::move(result); });
    std::vector<Result> results;
    results.reserve(found.size());
    for (std::optional<Result>& result : found) results.push_back(std::move(*result));
    return results;
  }

  // Calls `use(index of the input, result)`, or `use(index)` when there is none, in the order in which the results come.
  template <auto Method, class In, class Use>
  void ForEach(const std::vector<In>& inputs, Use use) {
    using Result = internal::ResultOf<typename internal::Signature<decltype(Method)>::Result>;
    struct Running { Actor<T> actor; size_t index = 0; };
    std::vector<Running> running;
    std::vector<ObjectRef<Result>> refs;
    // Whatever way this is left, every actor is in the pool again.
    struct Return {
      std::deque<Actor<T>>& idle;
      std::vector<Running>& running;
      ~Return() {
        for (Running& one : running) idle.push_back(one.actor);
      }
    } back{idle_, running};
    for (size_t next = 0; next < inputs.size() || !refs.empty();) {
      while (next < inputs.size() && !idle_.empty()) {
        Running one{idle_.front(), next};
        refs.push_back(one.actor.template Call<Method>(inputs[next++]));
        idle_.pop_front();
        running.push_back(std::move(one));
      }
      Wait(refs, 1);
      size_t done = 0;
      while (!refs[done].IsReady()) ++done;
      ObjectRef<Result> ref = std::move(refs[done]);
      Running one = std::move(running[done]);
      refs.erase(refs.begin() + static_cast<std::ptrdiff_t>(done));
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(done));
      idle_.push_back(one.actor);
      if constexpr (std::is_void_v<Result>) {
        Get(ref);
        use(one.index);
      } else {
        use(one.index, Get(ref));
      }
    }
  }

 private:
  std::deque<Actor<T>> idle_;
};

}  // namespace argosy
