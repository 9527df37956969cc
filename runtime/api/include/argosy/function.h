#pragma once

// How a function gets its name on the wire and its place in the process's list, before main. Not for users, but for Name.

#include <array>
#include <concepts>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "argosy/async.h"
#include "argosy/bridge.h"
#include "argosy/generator.h"
#include "argosy/object_ref.h"

namespace argosy::internal {

template <auto F>
constexpr const char* RawValueName() { return __PRETTY_FUNCTION__; }
template <class T>
constexpr const char* RawTypeName() { return __PRETTY_FUNCTION__; }

// What stands after "F = " (or "T = ") and before the closing bracket.
constexpr std::string_view Printed(std::string_view raw) {
  size_t begin = raw.find(" = ", raw.rfind('[') == std::string_view::npos ? 0 : raw.find("[")) + 3;
  return raw.substr(begin, raw.rfind(']') - begin);
}
template <auto F>
constexpr std::string_view ValueName() {
  std::string_view name = Printed(RawValueName<F>());
  if (!name.empty() && name.front() == '&') name.remove_prefix(1);
  return name;
}
template <class T>
constexpr std::string_view TypeName() { return Printed(RawTypeName<T>()); }

template <class F>
struct Signature { static constexpr bool kKnown = false; };
template <class R, class... A>
struct SignatureOf {
  static constexpr bool kKnown = true;
  using Result = R;
  using Parameters = std::tuple<A...>;
  static constexpr size_t kCount = sizeof...(A);
};
template <class R, class... A>
struct Signature<R (*)(A...)> : SignatureOf<R, A...> { using Class = void; };
template <class R, class... A>
struct Signature<R (*)(A...) noexcept> : SignatureOf<R, A...> { using Class = void; };
template <class R, class C, class... A>
struct Signature<R (C::*)(A...)> : SignatureOf<R, A...> { using Class = C; };
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) const> : SignatureOf<R, A...> { using Class = C; };
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) noexcept> : SignatureOf<R, A...> { using Class = C; };
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) const noexcept> : SignatureOf<R, A...> { using Class = C; };

// What a parameter or a result is while it travels.
template <class P>
using Carried = std::remove_cvref_t<P>;

// static_assert whose text has the argument's number.
#define ARGOSY_ARGUMENT_CHECK(name, text)                                    \
  template <size_t I, bool kHolds>                                           \
  constexpr bool name() {                                                    \
    static_assert(kHolds || I != 0, "argument 1 " text);                     \
    static_assert(kHolds || I != 1, "argument 2 " text);                     \
    static_assert(kHolds || I != 2, "argument 3 " text);                     \
    static_assert(kHolds || I != 3, "argument 4 " text);                     \
    static_assert(kHolds || I != 4, "argument 5 " text);                     \
    static_assert(kHolds || I != 5, "argument 6 " text);                     \
    static_assert(kHolds || I < 6, "an argument behind the sixth " text);    \
    return true;                                                             \
  }
ARGOSY_ARGUMENT_CHECK(CheckNoPointer, "is taken as a pointer, which cannot travel: take a value, argosy::Array or argosy::ObjectRef")
ARGOSY_ARGUMENT_CHECK(CheckConst, "is taken by non-const reference, which cannot travel: take a value or a const reference")
ARGOSY_ARGUMENT_CHECK(CheckTravels, "has a type that cannot travel: make it an aggregate or specialise argosy::Codec")
ARGOSY_ARGUMENT_CHECK(CheckRefTarget, "is a ref to another type than the parameter's")
ARGOSY_ARGUMENT_CHECK(CheckConverts, "does not convert to the parameter's type")
#undef ARGOSY_ARGUMENT_CHECK

template <class P, size_t I>
constexpr bool CheckParameter() {
  return CheckNoPointer<I, !std::is_pointer_v<Carried<P>>>() &&
         CheckConst<I, !(std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>)>() &&
         CheckTravels<I, std::is_pointer_v<Carried<P>> || kIsEncodable<Carried<P>>>();
}
template <class... P, size_t... I>
constexpr bool CheckParameters(std::index_sequence<I...>) { return (CheckParameter<P, I>() && ...); }

template <class R>
EncodedValue EncodeResult(const R& value) { return EncodeValue<R>(value); }
inline EncodedValue EncodeNothing() { return EncodeValue(std::monostate{}); }

// The arguments as a tuple of values. What they may point into is kept by `keep`.
template <class... P>
std::tuple<Carried<P>...> DecodeArguments(const std::vector<ValueView>& arguments, std::vector<Buffer>* keep) {
  static_assert(CheckParameters<P...>(std::index_sequence_for<P...>()));
  if (arguments.size() != sizeof...(P)) throw RuntimeError(fmt::format("takes {} arguments, got {}", sizeof...(P), arguments.size()));
  size_t index = 0;
  [[maybe_unused]] auto decode = [&]<class T>() {
    size_t at = index++;
    return DecodeValue<T>(arguments[at], fmt::format("argument {}", at + 1), keep);
  };
  return std::tuple<Carried<P>...>{decode.template operator()<Carried<P>>()...};
}

// Decodes the arguments and calls `call(arguments...)`.
template <class Parameters, class Call>
struct Apply;
template <class... P, class Call>
struct Apply<std::tuple<P...>, Call> {
  static decltype(auto) Run(Invocation& invocation, Call&& call) {
    std::vector<Buffer> keep;
    std::tuple<Carried<P>...> values = DecodeArguments<P...>(invocation.arguments, &keep);
    return std::apply([&](auto&... value) -> decltype(auto) { return call(static_cast<P&&>(value)...); }, values);
  }
};

template <class R>
struct AsyncOf { static constexpr bool kIsAsync = false; using Result = R; };
template <class R>
struct AsyncOf<Async<R>> { static constexpr bool kIsAsync = true; using Result = R; };

// What a call's ref is of.
template <class R>
using ResultOf = typename AsyncOf<Carried<R>>::Result;

template <class R>
EncodedValue TakeResult(Async<R>& coroutine) {
  if constexpr (std::is_void_v<R>) {
    coroutine.Take();
    return EncodeNothing();
  } else {
    return EncodeValue<Carried<R>>(coroutine.Take());
  }
}

// A coroutine whose call returns before it is done: it, and the arguments that it may point into.
template <class R, class Parameters>
struct RunningCall {
  std::vector<Buffer> keep;
  std::vector<ValueView> views;
  Parameters values;
  Async<R> coroutine;
};

template <class R, class Call, class... P>
void InvokeAsync(Invocation& invocation, Call& call, std::tuple<P...>*) {
  static_assert(std::is_void_v<R> || kIsEncodable<Carried<R>>,
                "the coroutine's result cannot travel: make it an aggregate or specialise argosy::Codec");
  using Running = RunningCall<R, std::tuple<Carried<P>...>>;
  auto running = std::make_shared<Running>();
  running->views = std::move(invocation.arguments);
  running->values = DecodeArguments<P...>(running->views, &running->keep);
  running->coroutine = std::apply([&](auto&... value) { return call(static_cast<P&&>(value)...); }, running->values);
  if (!invocation.make_finish) {
    running->coroutine.Start([] {});   // nothing in it suspends: it is done now
    invocation.results.push_back(TakeResult(running->coroutine));
    return;
  }
  invocation.suspended = true;
  Running* raw = running.get();
  raw->coroutine.Start([running = std::move(running), finish = invocation.make_finish()]() mutable {
    // The result is made while the arguments are there; they are gone before it is handed on, so that refs that they held are not counted.
    std::exception_ptr thrown;
    EncodedValue value;
    try {
      value = TakeResult(running->coroutine);
    } catch (...) {
      thrown = std::current_exception();
    }
    running.reset();
    finish([&] {
      if (thrown) std::rethrow_exception(thrown);
      return std::move(value);
    });
  });
}

// `Object` is the actor's own class: the method may be of a base. void for plain functions.
template <auto F, class Object>
void InvokeFunction(Invocation& invocation) {
  using S = Signature<decltype(F)>;
  using Result = typename S::Result;
  auto call = [&](auto&&... argument) -> decltype(auto) {
    if constexpr (std::is_void_v<Object>) return F(std::forward<decltype(argument)>(argument)...);
    else return (static_cast<Object*>(invocation.instance)->*F)(std::forward<decltype(argument)>(argument)...);
  };
  using Run = Apply<typename S::Parameters, decltype(call)&>;
  if constexpr (std::is_void_v<Result>) {
    Run::Run(invocation, call);
    invocation.results.push_back(EncodeNothing());
  } else if constexpr (AsyncOf<Result>::kIsAsync) {
    InvokeAsync<typename AsyncOf<Result>::Result>(invocation, call, static_cast<typename S::Parameters*>(nullptr));
  } else if constexpr (GeneratorItem<Result>::kIsGenerator) {
    using Item = typename GeneratorItem<Result>::Type;
    static_assert(kIsEncodable<Item>, "the generator's values cannot travel: make them an aggregate or specialise argosy::Codec");
    // The generator runs while the arguments that it may point into are alive.
    auto call_and_emit = [&](auto&&... argument) {
      Result generator = call(std::forward<decltype(argument)>(argument)...);
      uint64_t count = 0;
      for (; generator.Next(); ++count) invocation.emit(EncodeValue<Item>(generator.value()));
      invocation.results.push_back(EncodeValue<uint64_t>(count));
    };
    Apply<typename S::Parameters, decltype(call_and_emit)&>::Run(invocation, call_and_emit);
  } else {
    static_assert(kIsEncodable<Carried<Result>>, "the result's type cannot travel: make it an aggregate or specialise argosy::Codec");
    // The result is encoded while the arguments that it may point into are alive.
    auto call_and_encode = [&](auto&&... argument) {
      if constexpr (Elements<Carried<Result>>::kCount > 0) {
        if (invocation.split) {
          const auto& elements = call(std::forward<decltype(argument)>(argument)...);
          return std::apply([&](const auto&... element) {
            (invocation.results.push_back(EncodeValue<std::remove_cvref_t<decltype(element)>>(element)), ...);
          }, elements);
        }
      }
      invocation.results.push_back(EncodeValue<Carried<Result>>(call(std::forward<decltype(argument)>(argument)...)));
    };
    Apply<typename S::Parameters, decltype(call_and_encode)&>::Run(invocation, call_and_encode);
  }
}

template <class Class, class... A>
void InvokeConstructor(Invocation& invocation) {
  auto construct = [](auto&&... argument) { return std::make_shared<Class>(std::forward<decltype(argument)>(argument)...); };
  invocation.created = Apply<std::tuple<A...>, decltype(construct)&>::Run(invocation, construct);
}

// One per function; its initialiser runs before main in every process that has the code.
template <auto F, class Object = typename Signature<decltype(F)>::Class>
struct Registered {
  static FunctionEntry& Entry() {
    static FunctionEntry entry = [] {
      FunctionEntry made;
      std::string name = fmt::format("{} : {}", ValueName<F>(), TypeName<decltype(F)>());
      if constexpr (!std::is_same_v<Object, typename Signature<decltype(F)>::Class>) name += fmt::format(" of {}", TypeName<Object>());
      made.name = std::move(name);
      made.readable = std::string(ValueName<F>());
      made.invoke = &InvokeFunction<F, Object>;
      return made;
    }();
    return entry;
  }
  static const bool registered;
};
template <auto F, class Object>
const bool Registered<F, Object>::registered = (RegisterFunction(Registered<F, Object>::Entry()), true);

template <class Class, class... A>
struct RegisteredConstructor {
  static FunctionEntry& Entry() {
    static FunctionEntry entry = [] {
      FunctionEntry made;
      made.name = fmt::format("new {} : {}", TypeName<Class>(), TypeName<std::tuple<A...>>());
      made.readable = fmt::format("constructor of {}", TypeName<Class>());
      made.invoke = &InvokeConstructor<Class, A...>;
      return made;
    }();
    return entry;
  }
  static const bool registered;
};
template <class Class, class... A>
const bool RegisteredConstructor<Class, A...>::registered = (RegisterFunction(RegisteredConstructor<Class, A...>::Entry()), true);

template <class E>
bool IsThrown(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const E&) {
    return true;
  } catch (...) {
    return false;
  }
}
template <class E>
struct RegisteredException {
  static ExceptionEntry& Entry() {
    static ExceptionEntry entry{std::string(TypeName<E>()), &IsThrown<E>};
    return entry;
  }
  static const bool registered;
};
template <class E>
const bool RegisteredException<E>::registered = (RegisterException(RegisteredException<E>::Entry()), true);

// How argument I of a call travels: a ref where its value is wanted is resolved before the call; a ref where a ref is wanted stays one.
template <class P, size_t I, class A>
OutgoingArgument MakeArgument(A&& argument) {
  using Want = Carried<P>;
  using Have = std::remove_cvref_t<A>;
  static_assert(CheckParameter<P, I>());
  if constexpr (RefTarget<Have>::kIsRef && !RefTarget<Want>::kIsRef) {
    using Inside = typename RefTarget<Have>::Type;
    static_assert(CheckRefTarget<I, std::is_same_v<Inside, Want> || (kIsSpan<Want> && std::is_convertible_v<Inside, Want>)>());
    return {argument.cell(), {}};
  } else if constexpr (RefTarget<Have>::kIsRef) {
    static_assert(CheckRefTarget<I, std::is_same_v<Have, Want>>());
    return {nullptr, EncodeValue<Want>(argument)};
  } else {
    static_assert(CheckConverts<I, std::is_convertible_v<A&&, Want>>());
    if constexpr (std::is_same_v<Have, Want>) return {nullptr, EncodeValue<Want>(argument)};
    else return {nullptr, EncodeValue<Want>(static_cast<Want>(std::forward<A>(argument)))};
  }
}

template <class Parameters, class... A, size_t... I>
std::vector<OutgoingArgument> MakeArguments(std::index_sequence<I...>, A&&... arguments) {
  std::vector<OutgoingArgument> out;
  out.reserve(sizeof...(A));
  (out.push_back(MakeArgument<std::tuple_element_t<I, Parameters>, I>(std::forward<A>(arguments))), ...);
  return out;
}

template <auto F, class... A>
std::vector<OutgoingArgument> ArgumentsFor(A&&... arguments) {
  using S = Signature<decltype(F)>;
  static_assert(sizeof...(A) == S::kCount, "the call has another number of arguments than the function");
  return MakeArguments<typename S::Parameters>(std::index_sequence_for<A...>(), std::forward<A>(arguments)...);
}

}  // namespace argosy::internal

namespace argosy {

// Gives a function a wire name that does not depend on its C++ spelling, for other languages, detached actors and lambdas:
//   const bool kNamed = argosy::Name<&Counter::Add>("Counter.Add");
template <auto F>
bool Name(std::string name, std::source_location place = std::source_location::current()) {
  internal::FunctionEntry& entry = internal::Registered<F>::Entry();
  static_cast<void>(internal::Registered<F>::registered);
  entry.name = std::move(name);
  entry.readable = entry.name;
  entry.place = place;
  entry.named = true;
  return true;
}

}  // namespace argosy
