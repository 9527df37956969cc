#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace argosy::fuzz {

// A reader of what users and strangers write. It is to answer whatever the bytes: with a value or an error, in bounded time and memory.
struct Target {
  std::string_view name;   // of its folder in tests/fuzz/corpus
  void (*run)(std::string_view input);
};

std::span<const Target> Targets();

}  // namespace argosy::fuzz
