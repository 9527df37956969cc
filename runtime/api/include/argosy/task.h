#pragma once

#include <utility>

#include "argosy/function.h"
#include "argosy/object_ref.h"
#include "argosy/options.h"

namespace argosy {

// A function that runs somewhere in the cluster: argosy::Task<Square>({.resources = {{"CPU", 2}}}).Submit(3). An overloaded function is
// chosen by its type: Task<static_cast<int (*)(int)>(Scale)>.
template <auto F>
class Task {
  using S = internal::Signature<decltype(F)>;
  static_assert(S::kKnown, "argosy::Task<F> takes a function: a free one or a static member function");
  static_assert(std::is_void_v<typename S::Class>, "a member function needs an object: Spawn an actor and Call it");

 public:
  using Result = internal::Carried<typename S::Result>;

  explicit Task(TaskOptions options = {}) : options_(std::move(options)) { static_cast<void>(internal::Registered<F>::registered); }

  // Returns at once; waits only when this process has too many unanswered calls (10,000).
  template <class... A>
  ObjectRef<Result> Submit(A&&... arguments) const {
    return ObjectRef<Result>(internal::SubmitTask(internal::Registered<F>::Entry(), options_,
                                                  internal::ArgumentsFor<F>(std::forward<A>(arguments)...)));
  }

 private:
  TaskOptions options_;
};

}  // namespace argosy
