#pragma once

// Every key of a DeepSpeed file that is known, and what becomes of it.

#include <span>
#include <string_view>

namespace argosy::train {

enum class KeyKind { kInteger, kSize, kNumber, kBool, kText, kList, kSection, kAny };

// kHonoured keys are read by the resolver; of the others only what is written here is done.
enum class KeyFate {
  kHonoured,
  kIgnored,         // does not change results here
  kRefusedIfTrue,   // a bool whose true would change results
  kRefusedIfEnabled,  // a section, when its "enabled" is true
};

struct DeepSpeedKey {
  std::string_view path;  // "zero_optimization.stage"
  KeyKind kind;           // kSize: an integer that may be written as a float; a fraction is floored
  KeyFate fate;
  std::string_view note;  // why it is ignored, or what to do instead
};

struct DeepSpeedAlias {
  std::string_view path;
  std::string_view canonical;
  bool deprecated;  // else simply another accepted name
};

std::span<const DeepSpeedKey> DeepSpeedKeys();
// Null when the canonical path is not known.
const DeepSpeedKey* FindDeepSpeedKey(std::string_view path);
std::span<const DeepSpeedAlias> DeepSpeedAliases();

}  // namespace argosy::train
