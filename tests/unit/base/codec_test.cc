#include "runtime/base/codec.h"

#include <limits>

#include "nlohmann/json.hpp"
#include "runtime/base/prng.h"
#include "runtime/base/resources.h"
#include "tests/support/catch.h"

namespace argosy {
namespace {

struct Inner {
  std::string name;
  std::vector<int> values;
  bool operator==(const Inner&) const = default;
};

struct Outer {
  int64_t number = 0;
  std::optional<Inner> inner;
  std::map<std::string, double> amounts;
  std::variant<int, std::string> either;
  NodeId node;
  std::vector<Inner> many;
  std::optional<std::string> text;
  std::pair<int, bool> pair;
  bool operator==(const Outer&) const = default;
};

template <class T>
T RoundTrip(const T& value) {
  absl::StatusOr<T> back = Decode<T>(Encode(value));
  REQUIRE(back.ok());
  return *back;
}

}  // namespace

TEST_CASE("Codec: aggregates with nested fields come back equal") {
  STATIC_REQUIRE(internal::FieldCount<Outer>() == 8);
  Outer outer{-5, Inner{"a", {1, -2, 300000}}, {{"CPU", 1.5}}, std::string("x"), NodeId::Random(), {Inner{}, Inner{"b", {}}}, "t", {7, true}};
  CHECK(RoundTrip(outer) == outer);
  CHECK(RoundTrip(Outer{}) == Outer{});
}

TEST_CASE("Codec: integers at every boundary agree with an independent msgpack implementation") {
  for (int shift = 0; shift < 64; ++shift) {
    for (int64_t delta : {-1, 0, 1}) {
      int64_t value = static_cast<int64_t>((1ull << shift) + static_cast<uint64_t>(delta));
      for (int64_t signed_value : {value, static_cast<int64_t>(0ull - static_cast<uint64_t>(value))}) {
        std::string bytes = Encode(signed_value);
        CHECK(nlohmann::json::from_msgpack(bytes).get<int64_t>() == signed_value);
        std::vector<uint8_t> other = nlohmann::json::to_msgpack(nlohmann::json(signed_value));
        CHECK(bytes == std::string(other.begin(), other.end()));
        CHECK(RoundTrip(signed_value) == signed_value);
      }
    }
  }
  CHECK(RoundTrip(std::numeric_limits<uint64_t>::max()) == std::numeric_limits<uint64_t>::max());
}

TEST_CASE("Codec: strings and containers of every length class agree with an independent implementation") {
  for (size_t n : {0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536}) {
    std::string text(n, 'x');
    CHECK(nlohmann::json::from_msgpack(Encode(text)).get<std::string>() == text);
    CHECK(RoundTrip(text) == text);
    std::vector<int> numbers(n, 7);
    CHECK(nlohmann::json::from_msgpack(Encode(numbers)).get<std::vector<int>>() == numbers);
    CHECK(RoundTrip(numbers) == numbers);
  }
}

TEST_CASE("Codec: a newer peer's extra fields are ignored and an older peer's missing ones keep their defaults") {
  struct Old { int a = 0; };
  struct New { int a = 0; std::string b = "default"; std::vector<Inner> c; };
  absl::StatusOr<Old> old = Decode<Old>(Encode(New{5, "x", {Inner{"n", {1}}}}));
  REQUIRE(old.ok());
  CHECK(old->a == 5);
  absl::StatusOr<New> grown = Decode<New>(Encode(Old{6}));
  REQUIRE(grown.ok());
  CHECK(grown->a == 6);
  CHECK(grown->b == "default");
}

TEST_CASE("Codec: hostile bytes give an error, never a crash or a large allocation") {
  CHECK_FALSE(Decode<std::vector<int>>(std::string("\xdd\xff\xff\xff\xff", 5)).ok());
  CHECK_FALSE(Decode<std::string>(std::string("\xdb\xff\xff\xff\xff", 5)).ok());
  CHECK_FALSE(Decode<uint8_t>(Encode(300)).ok());
  CHECK_FALSE(Decode<unsigned>(Encode(-1)).ok());
  CHECK_FALSE(Decode<int>("").ok());
  CHECK_FALSE(Decode<NodeId>(Encode(std::string("short"))).ok());
  std::string deep(1000, static_cast<char>(0x91));
  CHECK_FALSE(Decode<Inner>("\x93\xa1" "a\x90" + deep).ok());
  Prng prng(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = Encode(Outer{-5, Inner{"a", {1, 2}}, {{"CPU", 1.5}}, std::string("x"), {}, {}, "t", {}});
    for (uint64_t flips = 1 + prng.Below(4); flips > 0; --flips) bytes[prng.Below(bytes.size())] = static_cast<char>(prng.Next());
    bytes.resize(prng.Below(bytes.size() + 1));
    (void)Decode<Outer>(bytes);
  }
}

TEST_CASE("ResourceSet: amounts are exact and errors name the resource") {
  absl::StatusOr<ResourceSet> set = ResourceSet::FromMap({{"CPU", 0.1}, {"GPU", 2}, {"zero", 0}});
  REQUIRE(set.ok());
  CHECK(set->ToString() == "CPU: 0.1, GPU: 2");
  ResourceSet total;
  for (int i = 0; i < 10; ++i) total.Add(*ResourceSet::FromMap({{"CPU", 0.1}}));
  CHECK(total.Get("CPU") == Amount::FromInt(1));
  for (int i = 0; i < 10; ++i) total.Subtract(*ResourceSet::FromMap({{"CPU", 0.1}}));
  CHECK(total.IsEmpty());
  CHECK(Message(ResourceSet::FromMap({{"GPU", 1.5}}).status()) == "resource GPU: 1.5 is above 1 and must be whole");
  CHECK_FALSE(ResourceSet::FromMap({{"CPU", -1}}).ok());
}

TEST_CASE("Id: hex and bytes round trip, and return ids differ") {
  NodeId id = NodeId::Random();
  CHECK(NodeId::FromHex(id.Hex()) == id);
  CHECK(NodeId::FromBytes(id.Bytes()) == id);
  CHECK_FALSE(NodeId::FromHex("xyz"));
  TaskId task = TaskId::Random();
  CHECK(ReturnId(task, 0) != ReturnId(task, 1));
  CHECK(ReturnId(task, 0).Bytes() != task.Bytes());
}

}  // namespace argosy
