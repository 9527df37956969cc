#pragma once

#include <utility>

#include "argosy/function.h"
#include "argosy/object_ref.h"
#include "argosy/options.h"
#include "argosy/stream.h"

namespace argosy {

// A function that runs somewhere in the cluster: argosy::Task<Square>({.resources = {{"CPU", 2}}}).Submit(3). An overloaded function is
// chosen by its type: Task<static_cast<int (*)(int)>(Scale)>.
template <auto F>
class Task {
  using S = internal::Signature<decltype(F)>;
  static_assert(S::kKnown, "argosy::Task<F> takes a function: a free one or a static member function");
  static_assert(std::is_void_v<typename S::Class>, "a member function needs an object: Spawn an actor and Call it");

 public:
  using Result = internal::ResultOf<typename S::Result>;

  explicit Task(TaskOptions options = {}) : options_(std::move(options)) { static_cast<void>(internal::Registered<F>::registered); }

  // Returns at once; waits only when this process has too many unanswered calls (10,000). ObjectRef<Result>, or for a function that
  // returns a Generator<T>, Stream<T>.
  template <class... A>
  auto Submit(A&&... arguments) const {
    std::vector<internal::OutgoingArgument> outgoing = internal::ArgumentsFor<F>(std::forward<A>(arguments)...);
    const internal::FunctionEntry& function = internal::Registered<F>::Entry();
    if constexpr (internal::GeneratorItem<Result>::kIsGenerator) {
      internal::StreamHandle handle{internal::NewStream(options_.stream_ahead_max), nullptr};
      handle.end = std::move(internal::SubmitTask({function, 0, handle.stream}, options_, std::move(outgoing)).front());
      return Stream<typename internal::GeneratorItem<Result>::Type>(std::move(handle));
    } else {
      return ObjectRef<Result>(std::move(internal::SubmitTask({function}, options_, std::move(outgoing)).front()));
    }
  }

  // For a function that returns a tuple, a pair or an array: each element is an object of its own.
  //   auto [quotient, remainder] = argosy::Task<Divide>().SubmitSplit(7, 2);   // ObjectRef<int>, ObjectRef<int>
  template <class... A>
  auto SubmitSplit(A&&... arguments) const {
    static_assert(internal::Elements<Result>::kCount > 0, "SubmitSplit: the function must return a std::tuple, std::pair or std::array");
    return internal::SplitRefs<Result>(internal::SubmitTask({internal::Registered<F>::Entry(), internal::Elements<Result>::kCount}, options_,
                                                            internal::ArgumentsFor<F>(std::forward<A>(arguments)...)));
  }

 private:
  TaskOptions options_;
};

// For TaskOptions::retry_exceptions. An exception of a class derived from one of them counts too; CancelledError never does.
template <class... E>
ExceptionTypes RetryOn() {
  static_assert(sizeof...(E) > 0, "RetryOn<E...>: name at least one exception type");
  (static_cast<void>(internal::RegisteredException<E>::registered), ...);
  return {{internal::RegisteredException<E>::Entry().name...}};
}
inline ExceptionTypes RetryOnAny() { return {{"*"}}; }

}  // namespace argosy
