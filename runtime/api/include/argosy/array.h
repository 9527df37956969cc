#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/codec.h"

namespace argosy {

// An unchanging run of numbers (or other plain values) that travels without being encoded: its bytes are written once into shared
// memory, and who gets it reads them there. Copies share the bytes and keep them pinned.
template <class T>
class Array {
  static_assert(std::is_trivially_copyable_v<T>, "argosy::Array holds plain values; use std::vector for others");

 public:
  using value_type = T;

  Array() = default;
  explicit Array(std::vector<T> values) {
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    data_ = owner->data();
    size_ = owner->size();
    owner_ = std::move(owner);
  }
  explicit Array(std::span<const T> values) : Array(std::vector<T>(values.begin(), values.end())) {}
  // `owner` keeps the bytes alive and unchanged.
  Array(const T* data, size_t size, std::shared_ptr<const void> owner) : data_(data), size_(size), owner_(std::move(owner)) {}

  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  const T& operator[](size_t i) const { return data_[i]; }
  operator std::span<const T>() const { return {data_, size_}; }
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<const void> owner_;
};

namespace internal {

// The body holds [index of the buffer, element count].
template <class T>
void EncodeBuffer(Encoder& e, const T* data, size_t size, std::shared_ptr<const void> owner) {
  e.writer.Array(2);
  e.writer.Unsigned(e.buffers.size());
  e.writer.Unsigned(size);
  e.buffers.push_back({data, size * sizeof(T), std::move(owner)});
}

// Null when the value is bad (the decoder says why). Bytes that are not aligned for T are copied.
template <class T>
Array<T> DecodeBuffer(Decoder& d) {
  if (size_t n = d.reader.Array(); n != 2) {
    d.reader.Fail(fmt::format("an array has 2 values, not {}", n));
    return {};
  }
  uint64_t index = d.reader.Unsigned();
  uint64_t size = d.reader.Unsigned();
  if (!d.reader.ok()) return {};
  if (index >= d.buffers.size()) {
    d.reader.Fail(fmt::format("buffer {} of {}", index, d.buffers.size()));
    return {};
  }
  const Buffer& buffer = d.buffers[index];
  if (buffer.size % sizeof(T) != 0 || buffer.size / sizeof(T) != size) {
    d.reader.Fail(fmt::format("{} values of {} bytes in a buffer of {} bytes", size, sizeof(T), buffer.size));
    return {};
  }
  if (reinterpret_cast<uintptr_t>(buffer.data) % alignof(T) != 0) {
    std::vector<T> copy(size);
    if (size > 0) std::memcpy(copy.data(), buffer.data, buffer.size);
    return Array<T>(std::move(copy));
  }
  return Array<T>(static_cast<const T*>(buffer.data), size, buffer.owner);
}

}  // namespace internal

template <class T>
struct Codec<Array<T>> {
  static void Encode(Encoder& e, const Array<T>& v) { internal::EncodeBuffer(e, v.data(), v.size(), v.owner()); }
  static void Decode(Decoder& d, Array<T>& v) { v = internal::DecodeBuffer<T>(d); }
};

// As an argument or a parameter: the bytes are pinned while the call runs. What Get returns must own its pin, so it is an Array.
template <class T>
struct Codec<std::span<const T>> {
  static_assert(std::is_trivially_copyable_v<T>, "a span travels as plain bytes; use std::vector for other values");
  static void Encode(Encoder& e, const std::span<const T>& v) { internal::EncodeBuffer<T>(e, v.data(), v.size(), nullptr); }
  static void Decode(Decoder& d, std::span<const T>& v) {
    Array<T> array = internal::DecodeBuffer<T>(d);
    // The runtime keeps the decoder's buffers during the call; a realigned copy joins them.
    if (array.owner()) d.buffers.push_back({array.data(), array.size() * sizeof(T), array.owner()});
    v = array;
  }
};

}  // namespace argosy
