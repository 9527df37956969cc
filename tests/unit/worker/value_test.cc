#include "runtime/worker/value.h"

#include "tests/support/catch.h"

namespace argosy::worker {

TEST_CASE("Value: body and buffers come back in place, aligned, whatever their sizes") {
  std::string a(1000, 'a'), b, c(64, 'c');
  for (size_t count = 0; count <= 3; ++count) {
    std::vector<Buffer> buffers;
    for (const std::string* text : {&a, &b, &c}) {
      if (buffers.size() < count) buffers.push_back({text->data(), text->size(), nullptr});
    }
    std::string packed = Pack("the body", buffers);
    CHECK(packed.size() == PackedSize("the body", buffers));
    absl::StatusOr<Unpacked> unpacked = Unpack(packed, nullptr);
    REQUIRE(unpacked.ok());
    CHECK(unpacked->body == "the body");
    REQUIRE(unpacked->buffers.size() == count);
    for (size_t i = 0; i < count; ++i) {
      const Buffer& buffer = unpacked->buffers[i];
      CHECK(std::string_view(static_cast<const char*>(buffer.data), buffer.size) ==
            std::string_view(static_cast<const char*>(buffers[i].data), buffers[i].size));
      CHECK((static_cast<const char*>(buffer.data) - packed.data()) % 64 == 0);
    }
  }
}

TEST_CASE("Value: a buffer that several threads copy arrives whole") {
  for (size_t size : {(size_t{8} << 20) - 1, size_t{8} << 20, (size_t{17} << 20) + 13}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + (i >> 12));
    std::string packed = Pack("the body", {{bytes.data(), bytes.size(), nullptr}});
    absl::StatusOr<Unpacked> unpacked = Unpack(packed, nullptr);
    REQUIRE(unpacked.ok());
    REQUIRE(unpacked->buffers.size() == 1);
    bool same = std::string_view(static_cast<const char*>(unpacked->buffers[0].data), unpacked->buffers[0].size) == bytes;
    CHECK(same);
  }
}

TEST_CASE("Value: bytes that are cut or lie about their sizes are refused") {
  std::string text(100, 'x');
  std::string packed = Pack("body", {{text.data(), text.size(), nullptr}});
  for (size_t n = 0; n < packed.size(); ++n) CHECK_FALSE(Unpack(std::string_view(packed).substr(0, n), nullptr).ok());
  for (size_t i = 0; i < 32; ++i) {
    std::string bad = packed;
    bad[i] = static_cast<char>(0xff);
    absl::StatusOr<Unpacked> unpacked = Unpack(bad, nullptr);
    if (!unpacked.ok()) continue;
    for (const Buffer& buffer : unpacked->buffers) {
      CHECK(static_cast<const char*>(buffer.data) + buffer.size <= bad.data() + bad.size());
    }
  }
}

}  // namespace argosy::worker
