#pragma once

// Countable amounts: CPU, GPU, memory, object_store_memory and custom names. Fixed point, so that many small takes and gives
// end where they began.

#include <cstdint>
#include <compare>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace argosy {

inline constexpr char kCpu[] = "CPU";
inline constexpr char kGpu[] = "GPU";
inline constexpr char kMemory[] = "memory";                            // bytes
inline constexpr char kObjectStoreMemory[] = "object_store_memory";    // bytes

// An amount in ten-thousandths.
class Amount {
 public:
  static constexpr int64_t kUnit = 10'000;

  constexpr Amount() = default;
  static constexpr Amount FromRaw(int64_t raw) { Amount a; a.raw_ = raw; return a; }
  // Rounded to the nearest ten-thousandth. Error when negative, not finite or above 9e14.
  static absl::StatusOr<Amount> FromDouble(double value);
  static constexpr Amount FromInt(int64_t value) { return FromRaw(value * kUnit); }

  constexpr int64_t raw() const { return raw_; }
  constexpr double ToDouble() const { return static_cast<double>(raw_) / kUnit; }
  constexpr bool IsZero() const { return raw_ == 0; }
  // "2", "0.5", "0.0001".
  std::string ToString() const;

  friend constexpr auto operator<=>(Amount, Amount) = default;
  constexpr Amount& operator+=(Amount other) { raw_ += other.raw_; return *this; }
  constexpr Amount& operator-=(Amount other) { raw_ -= other.raw_; return *this; }
  friend constexpr Amount operator+(Amount a, Amount b) { return a += b; }
  friend constexpr Amount operator-(Amount a, Amount b) { return a -= b; }

 private:
  int64_t raw_ = 0;
};

// Amounts by name; a name that is not there is zero, and a zero is not kept.
//
// A few names in one piece of memory: sets are copied, compared and searched for every task.
class ResourceSet {
 public:
  using Entries = std::vector<std::pair<std::string, Amount>>;   // by name, ascending

  ResourceSet() = default;
  // Error names the resource and the value: negative, not finite, empty name; a GPU amount above 1 must be whole.
  static absl::StatusOr<ResourceSet> FromMap(const std::map<std::string, double>& amounts);

  Amount Get(std::string_view name) const;
  void Set(std::string_view name, Amount amount);
  bool IsEmpty() const { return amounts_.empty(); }
  const Entries& amounts() const { return amounts_; }
  std::map<std::string, double> ToMap() const;

  // True when every amount of `other` is at most ours.
  bool Contains(const ResourceSet& other) const;
  void Add(const ResourceSet& other);
  // `other` must be contained.
  void Subtract(const ResourceSet& other);

  // "CPU: 1, GPU: 0.5", or "nothing".
  std::string ToString() const;
  friend bool operator==(const ResourceSet&, const ResourceSet&) = default;
  friend auto operator<=>(const ResourceSet&, const ResourceSet&) = default;

 private:
  Entries amounts_;
};

// For people: "1.5 MiB".
std::string BytesText(uint64_t bytes);

}  // namespace argosy
