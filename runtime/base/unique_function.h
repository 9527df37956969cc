#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace argosy {

// A function that is called at most by its one holder: std::function without copies, with room inside for captures of up to 64 bytes,
// so that an operation or a reply's continuation costs no allocation.
//
// Thread:   as the callable it holds.
// Lifetime: destroys the callable.
// Failure:  calling an empty one is undefined: ask first.
template <class Signature>
class UniqueFunction;

template <class Result, class... Args>
class UniqueFunction<Result(Args...)> {
 public:
  UniqueFunction() = default;
  UniqueFunction(std::nullptr_t) {}
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, UniqueFunction> && std::is_invocable_r_v<Result, std::remove_cvref_t<F>&, Args...>)
  UniqueFunction(F&& f) {
    using Callable = std::remove_cvref_t<F>;
    if constexpr (requires { static_cast<bool>(f); f.target_type(); }) {
      if (!f) return;   // an empty std::function
    }
    if constexpr (kFits<Callable>) {
      ::new (static_cast<void*>(room_)) Callable(std::forward<F>(f));
    } else {
      ::new (static_cast<void*>(room_)) Callable*(new Callable(std::forward<F>(f)));
    }
    table_ = &kTable<Callable>;
  }
  UniqueFunction(UniqueFunction&& other) noexcept { Take(other); }
  UniqueFunction& operator=(UniqueFunction&& other) noexcept {
    if (this != &other) {
      Clear();
      Take(other);
    }
    return *this;
  }
  ~UniqueFunction() { Clear(); }

  explicit operator bool() const { return table_ != nullptr; }
  Result operator()(Args... args) { return table_->call(room_, std::forward<Args>(args)...); }

 private:
  static constexpr size_t kRoom = 64;
  template <class F>
  static constexpr bool kFits = sizeof(F) <= kRoom && alignof(F) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<F>;

  struct Table {
    Result (*call)(void* room, Args&&... args);
    void (*move)(void* from, void* to);    // and destroys `from`
    void (*destroy)(void* room);
  };
  template <class F>
  static F& In(void* room) {
    if constexpr (kFits<F>) return *std::launder(static_cast<F*>(room));
    else return **std::launder(static_cast<F**>(room));
  }
  template <class F>
  static constexpr Table kTable = {
      [](void* room, Args&&... args) -> Result { return In<F>(room)(std::forward<Args>(args)...); },
      [](void* from, void* to) {
        if constexpr (kFits<F>) {
          ::new (to) F(std::move(In<F>(from)));
          In<F>(from).~F();
        } else {
          ::new (to) F*(&In<F>(from));
        }
      },
      [](void* room) {
        if constexpr (kFits<F>) In<F>(room).~F();
        else delete &In<F>(room);
      }};

  void Take(UniqueFunction& other) {
    table_ = std::exchange(other.table_, nullptr);
    if (table_ != nullptr) table_->move(other.room_, room_);
  }
  void Clear() {
    if (const Table* table = std::exchange(table_, nullptr)) table->destroy(room_);
  }

  const Table* table_ = nullptr;
  alignas(std::max_align_t) std::byte room_[kRoom];
};

}  // namespace argosy
