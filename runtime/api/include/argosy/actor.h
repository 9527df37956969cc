#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "argosy/function.h"
#include "argosy/object_ref.h"
#include "argosy/options.h"
#include "argosy/stream.h"

namespace argosy {

// A handle of an object that lives in a process of its own. Handles travel as arguments and results like other values. The actor lives
// until Kill, Exit, its last allowed restart, or (unless detached) the end of its job.
template <class T>
class Actor {
 public:
  Actor() = default;
  explicit Actor(ActorId id) : id_(id) {}

  ActorId id() const { return id_; }
  bool IsNull() const { return id_.IsNil(); }

  // Calls of one caller run in the order in which they were made (unless max_concurrency is above 1).
  template <auto Method, class... A>
  auto Call(A&&... arguments) const { return CallWith<Method>(CallOptions{}, std::forward<A>(arguments)...); }

  template <auto Method, class... A>
  auto CallWith(const CallOptions& options, A&&... arguments) const {
    using S = internal::Signature<decltype(Method)>;
    static_assert(S::kKnown, "Call<&Class::Method> takes a member function; choose an overload by static_cast");
    static_assert(std::is_base_of_v<typename S::Class, T>, "the method is not of this actor's class");
    using Function = internal::Registered<Method, T>;
    static_cast<void>(Function::registered);
    using Result = internal::ResultOf<typename S::Result>;
    std::vector<internal::OutgoingArgument> outgoing = internal::ArgumentsFor<Method>(std::forward<A>(arguments)...);
    if constexpr (internal::GeneratorItem<Result>::kIsGenerator) {
      internal::StreamHandle handle{internal::NewStream(options.stream_ahead_max), nullptr};
      handle.end = std::move(internal::SubmitCall(id_, {Function::Entry(), 0, handle.stream}, options, std::move(outgoing)).front());
      return Stream<typename internal::GeneratorItem<Result>::Type>(std::move(handle));
    } else {
      return ObjectRef<Result>(std::move(internal::SubmitCall(id_, {Function::Entry()}, options, std::move(outgoing)).front()));
    }
  }

  // For a method that returns a tuple, a pair or an array: each element is an object of its own.
  template <auto Method, class... A>
  auto CallSplit(A&&... arguments) const {
    using S = internal::Signature<decltype(Method)>;
    static_assert(S::kKnown, "CallSplit<&Class::Method> takes a member function; choose an overload by static_cast");
    static_assert(std::is_base_of_v<typename S::Class, T>, "the method is not of this actor's class");
    using Function = internal::Registered<Method, T>;
    static_cast<void>(Function::registered);
    using Result = internal::ResultOf<typename S::Result>;
    static_assert(internal::Elements<Result>::kCount > 0, "CallSplit: the method must return a std::tuple, std::pair or std::array");
    return internal::SplitRefs<Result>(internal::SubmitCall(id_, {Function::Entry(), internal::Elements<Result>::kCount}, CallOptions{},
                                                            internal::ArgumentsFor<Method>(std::forward<A>(arguments)...)));
  }

  friend bool operator==(const Actor&, const Actor&) = default;

 private:
  ActorId id_;
};

template <class T>
struct Codec<Actor<T>> {
  static void Encode(Encoder& e, const Actor<T>& v) { e.Write(v.id()); }
  static void Decode(Decoder& d, Actor<T>& v) {
    ActorId id;
    d.Read(id);
    v = Actor<T>(id);
  }
};

namespace internal {
// How a constructor argument travels: a ref as its value, text as std::string.
template <class A>
struct ConstructorParameter {
  using Have = std::remove_cvref_t<A>;
  using Type = std::conditional_t<std::is_convertible_v<Have, std::string_view> && !std::is_same_v<Have, std::string>, std::string,
                                  typename RefTarget<Have>::Type>;
};
template <class T, size_t N>
struct ConstructorParameter<std::span<T, N>> { using Type = std::span<const std::remove_const_t<T>>; };

template <class A>
using ConstructorParameterOf = typename ConstructorParameter<std::decay_t<A>>::Type;
}  // namespace internal

// Starts an actor: the constructor runs in a new worker, where there is room. Returns once its creation is acknowledged when it is named or
// detached, else at once. A constructor's exception is thrown by the calls.
template <class T, class... A>
Actor<T> Spawn(ActorOptions options, A&&... arguments) {
  static_assert(std::is_constructible_v<T, internal::ConstructorParameterOf<A>...>,
                "no constructor of the class takes these arguments (refs are passed as their values)");
  using Constructor = internal::RegisteredConstructor<T, internal::ConstructorParameterOf<A>...>;
  static_cast<void>(Constructor::registered);
  return Actor<T>(internal::CreateActor(
      Constructor::Entry(), std::string(internal::TypeName<T>()), options,
      internal::MakeArguments<std::tuple<internal::ConstructorParameterOf<A>...>>(std::index_sequence_for<A...>(),
                                                                                  std::forward<A>(arguments)...)));
}

// The living actor of that name. NotFoundError when there is none. `ns`: the job's own when empty.
template <class T>
Actor<T> GetActor(const std::string& name, const std::string& ns = "") {
  return Actor<T>(internal::FindActor(name, ns));
}

struct KillOptions {
  bool no_restart = true;   // false: counts as a crash, so max_restarts applies
};
namespace internal {
void KillActor(ActorId actor, bool no_restart);
}
// Ends the actor now; calls in flight throw ActorDiedError.
template <class T>
void Kill(const Actor<T>& actor, KillOptions options = {}) { internal::KillActor(actor.id(), options.no_restart); }

// Ends the actor after the calls that this process made before, without a restart; what runs in it then is let finish. Later calls throw
// ActorDiedError. Does not wait for it.
template <class T>
void Terminate(const Actor<T>& actor) { internal::TerminateActor(actor.id()); }

// From inside an actor's method: ends the actor after this call and those that run beside it, without a restart. Does not return.
[[noreturn]] void Exit();

// For a ConcurrencyGroup.
template <auto... Method>
std::vector<std::string> Methods() {
  static_assert(sizeof...(Method) > 0, "Methods<&Class::Method...>: name at least one");
  static_assert((!std::is_void_v<typename internal::Signature<decltype(Method)>::Class> && ...), "Methods takes member functions");
  return {internal::Registered<Method>::Entry().name...};
}

}  // namespace argosy
