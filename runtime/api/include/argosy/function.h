#pragma once

// How a function gets its name on the wire and its place in the process's list, before main. Not for users, but for Name.

#include <array>
#include <concepts>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "argosy/bridge.h"
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

template <class P>
constexpr bool CheckParameter() {
  static_assert(!std::is_pointer_v<Carried<P>>, "a pointer parameter cannot travel: take a value, argosy::Array or argosy::ObjectRef");
  static_assert(!(std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>),
                "a non-const reference parameter cannot travel: take a value or a const reference");
  static_assert(kIsEncodable<Carried<P>>, "this parameter's type cannot travel: make it an aggregate or specialise argosy::Codec");
  return true;
}

template <class R>
EncodedValue EncodeResult(const R& value) { return EncodeValue<R>(value); }
inline EncodedValue EncodeNothing() { return EncodeValue(std::monostate{}); }

// Decodes the arguments into a tuple, in order, and calls `call(arguments...)`.
template <class Parameters, class Call>
struct Apply;
template <class... P, class Call>
struct Apply<std::tuple<P...>, Call> {
  static decltype(auto) Run(Invocation& invocation, Call&& call) {
    static_assert((CheckParameter<P>() && ...));
    if (invocation.arguments.size() != sizeof...(P)) {
      throw RuntimeError(fmt::format("takes {} arguments, got {}", sizeof...(P), invocation.arguments.size()));
    }
    std::vector<Buffer> keep;
    size_t index = 0;
    [[maybe_unused]] auto decode = [&]<class T>() {
      size_t at = index++;
      return DecodeValue<T>(invocation.arguments[at], fmt::format("argument {}", at + 1), &keep);
    };
    std::tuple<Carried<P>...> values{decode.template operator()<Carried<P>>()...};
    return std::apply([&](auto&... value) -> decltype(auto) { return call(static_cast<P&&>(value)...); }, values);
  }
};

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
  } else {
    static_assert(kIsEncodable<Carried<Result>>, "the result's type cannot travel: make it an aggregate or specialise argosy::Codec");
    // The result is encoded while the arguments that it may point into are alive.
    auto call_and_encode = [&](auto&&... argument) {
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
      made.name = fmt::format("{} : {}", ValueName<F>(), TypeName<decltype(F)>());
      if constexpr (!std::is_same_v<Object, typename Signature<decltype(F)>::Class>) made.name += fmt::format(" of {}", TypeName<Object>());
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

// How argument I of a call travels: a ref where its value is wanted is resolved before the call; a ref where a ref is wanted stays one.
template <class P, size_t I, class A>
OutgoingArgument MakeArgument(A&& argument) {
  using Want = Carried<P>;
  using Have = std::remove_cvref_t<A>;
  CheckParameter<P>();
  if constexpr (RefTarget<Have>::kIsRef && !RefTarget<Want>::kIsRef) {
    using Inside = typename RefTarget<Have>::Type;
    static_assert(std::is_same_v<Inside, Want> || (kIsSpan<Want> && std::is_convertible_v<Inside, Want>),
                  "this argument is a ref to another type than the parameter's");
    return {argument.cell(), {}};
  } else if constexpr (RefTarget<Have>::kIsRef) {
    static_assert(std::is_same_v<Have, Want>, "this argument is a ref to another type than the parameter's ref");
    return {nullptr, EncodeValue<Want>(argument)};
  } else {
    static_assert(std::is_convertible_v<A&&, Want>, "this argument does not convert to the parameter's type");
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
