#pragma once

namespace argosy {

// One callable out of several lambdas, for std::visit.
template <class... F>
struct Overloaded : F... { using F::operator()...; };
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace argosy
