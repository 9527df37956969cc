#include <memory>
#include <string>

#include "runtime/base/codec.h"
#include "runtime/base/shared_text.h"
#include "runtime/base/unique_function.h"
#include "tests/support/catch.h"

namespace argosy {
namespace {

struct Address {
  SharedText path;
  int port = 0;
  bool operator==(const Address&) const = default;
};
struct PlainAddress {
  std::string path;
  int port = 0;
};

TEST_CASE("SharedText: equal texts are equal whether they share or not, and an empty one is the default") {
  SharedText made(std::string("/run/worker")), shared = made, other(std::string("/run/worker"));
  CHECK(made == shared);
  CHECK(made == other);
  CHECK_FALSE(made == SharedText("/run/other"));
  CHECK(&made.str() == &shared.str());
  CHECK(&made.str() != &other.str());
  CHECK(SharedText() == SharedText(""));
  CHECK(SharedText().empty());
  CHECK(SharedText().str().empty());
  CHECK(fmt::format("{}|{:>4}", made, SharedText("a")) == "/run/worker|   a");
}

TEST_CASE("SharedText: travels as a text does, and one that comes again is not made again") {
  std::string bytes = Encode(Address{"/run/a", 7});
  CHECK(bytes == Encode(PlainAddress{"/run/a", 7}));
  absl::StatusOr<Address> first = Decode<Address>(bytes), second = Decode<Address>(bytes);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(*first == Address{"/run/a", 7});
  CHECK(&first->path.str() == &second->path.str());
  // More texts than are remembered: each is right all the same.
  for (int i = 0; i < 1000; ++i) {
    Address address{std::to_string(i % 300), i};
    CHECK(Decode<Address>(Encode(address)).value() == address);
  }
}

TEST_CASE("UniqueFunction: holds small and large captures, moves them, and destroys them once") {
  auto count = std::make_shared<int>(0);
  struct Large { char bytes[200]; };
  {
    UniqueFunction<int(int)> small = [count](int x) { return x + ++*count; };
    UniqueFunction<int(int)> large = [count, filler = Large{}](int x) { return x + ++*count + filler.bytes[0]; };
    CHECK(count.use_count() == 3);
    CHECK(small(10) == 11);
    CHECK(large(10) == 12);
    UniqueFunction<int(int)> moved = std::move(small);
    CHECK_FALSE(small);
    CHECK(moved(10) == 13);
    moved = std::move(large);
    CHECK(count.use_count() == 2);
    CHECK(moved(10) == 14);
  }
  CHECK(count.use_count() == 1);
}

TEST_CASE("UniqueFunction: takes what cannot be copied, and is empty like what it was made of") {
  UniqueFunction<int()> holder = [only = std::make_unique<int>(5)] { return *only; };
  CHECK(holder() == 5);
  CHECK_FALSE(UniqueFunction<void()>(std::function<void()>()));
  CHECK_FALSE(UniqueFunction<void()>(nullptr));
}

}  // namespace
}  // namespace argosy
