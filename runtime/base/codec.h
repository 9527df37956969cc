#pragma once

// Values <-> msgpack bytes. Codec<T> is the one place to teach the wire a new type:
//
//   template <> struct argosy::Codec<Color> {
//     static void Encode(Encoder& encoder, const Color& color);
//     static void Decode(Decoder& decoder, Color& color);
//   };
//
// Scalars, strings, containers, optional, variant, pair, tuple, ids and aggregates of up to 32 fields have one already. An aggregate
// is an array of its fields; a reader ignores trailing fields it does not know, and leaves fields that a shorter array lacks
// at their defaults, so that fields may be added at the end.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/aggregate.h"
#include "runtime/base/id.h"
#include "runtime/base/msgpack.h"
#include "runtime/base/shared_text.h"
#include "runtime/base/status.h"

namespace argosy {

template <class T>
struct Codec;

// Bytes that stay out of the message: written once into shared memory and read there. `owner` keeps them alive.
struct Buffer {
  const void* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;
};

// What codecs write to.
class Encoder {
 public:
  explicit Encoder(std::string& body) : writer(body) {}

  msgpack::Writer writer;
  // Out-of-band buffers, in the order in which the codec added them; the body holds their indices.
  std::vector<Buffer> buffers;
  // Objects whose refs the value holds. `refs_allowed` is false where they could not be counted.
  std::vector<ObjectId> refs;
  bool refs_allowed = false;
  std::string error;   // set by a codec that cannot encode its value

  template <class T>
  void Write(const T& value) { Codec<T>::Encode(*this, value); }
};

// What codecs read from.
class Decoder {
 public:
  explicit Decoder(std::string_view body) : reader(body) {}

  msgpack::Reader reader;
  std::vector<Buffer> buffers;
  // Set by the process's runtime when refs may be decoded; opaque here.
  void* ref_context = nullptr;
  // Keeps the objects of the refs in the value, and need not be kept by what is decoded: refs that are never used need no count of
  // their own then. Null: they do.
  std::shared_ptr<const void> keeps_refs;

  template <class T>
  void Read(T& value) { Codec<T>::Decode(*this, value); }
};

template <class T>
std::string Encode(const T& value) {
  std::string body;
  Encoder encoder(body);
  encoder.Write(value);
  return body;
}

// Error when the bytes are not a T; bytes after the value are an error too.
template <class T>
absl::StatusOr<T> Decode(std::string_view body) {
  Decoder decoder(body);
  T value{};
  decoder.Read(value);
  if (!decoder.reader.ok()) return decoder.reader.status();
  if (!decoder.reader.AtEnd()) return InvalidArgument("{} bytes after the value", body.size() - decoder.reader.Offset());
  return value;
}

namespace internal {
template <class T>
inline constexpr bool kIsEncodable = requires(Encoder& e, Decoder& d, T& v) { Codec<T>::Encode(e, v); Codec<T>::Decode(d, v); };
}

template <>
struct Codec<bool> {
  static void Encode(Encoder& e, bool v) { e.writer.Bool(v); }
  static void Decode(Decoder& d, bool& v) { v = d.reader.Bool(); }
};

template <class T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
struct Codec<T> {
  static void Encode(Encoder& e, T v) {
    if constexpr (std::is_signed_v<T>) e.writer.Signed(v);
    else e.writer.Unsigned(v);
  }
  static void Decode(Decoder& d, T& v) {
    if constexpr (std::is_signed_v<T>) {
      int64_t wide = d.reader.Signed();
      v = static_cast<T>(wide);
      if (v != wide) d.reader.Fail(fmt::format("{} does not fit {} bytes", wide, sizeof(T)));
    } else {
      uint64_t wide = d.reader.Unsigned();
      v = static_cast<T>(wide);
      if (v != wide) d.reader.Fail(fmt::format("{} does not fit {} bytes", wide, sizeof(T)));
    }
  }
};

template <class T>
  requires(std::is_enum_v<T>)
struct Codec<T> {
  static void Encode(Encoder& e, T v) { e.Write(static_cast<std::underlying_type_t<T>>(v)); }
  static void Decode(Decoder& d, T& v) {
    std::underlying_type_t<T> raw{};
    d.Read(raw);
    v = static_cast<T>(raw);
  }
};

template <>
struct Codec<float> {
  static void Encode(Encoder& e, float v) { e.writer.Float(v); }
  static void Decode(Decoder& d, float& v) { v = static_cast<float>(d.reader.Double()); }
};
template <>
struct Codec<double> {
  static void Encode(Encoder& e, double v) { e.writer.Double(v); }
  static void Decode(Decoder& d, double& v) { v = d.reader.Double(); }
};

// Written as a msgpack string, whatever its bytes; read from string or binary.
template <>
struct Codec<std::string> {
  static void Encode(Encoder& e, const std::string& v) { e.writer.String(v); }
  static void Decode(Decoder& d, std::string& v) { v = std::string(d.reader.Binary()); }
};

template <>
struct Codec<SharedText> {
  static void Encode(Encoder& e, const SharedText& v) { e.writer.String(v.str()); }
  static void Decode(Decoder& d, SharedText& v) { v = SharedText::Interned(d.reader.Binary()); }
};

template <class Tag>
struct Codec<Id<Tag>> {
  static void Encode(Encoder& e, const Id<Tag>& v) { e.writer.Binary(v.Bytes()); }
  static void Decode(Decoder& d, Id<Tag>& v) {
    std::string_view bytes = d.reader.Binary();
    if (auto id = Id<Tag>::FromBytes(bytes)) v = *id;
    else d.reader.Fail(fmt::format("an id has 16 bytes, not {}", bytes.size()));
  }
};

template <class T>
struct Codec<std::optional<T>> {
  static void Encode(Encoder& e, const std::optional<T>& v) {
    if (v) e.Write(*v);
    else e.writer.Nil();
  }
  static void Decode(Decoder& d, std::optional<T>& v) {
    if (d.reader.TryNil()) v.reset();
    else d.Read(v.emplace());
  }
};

namespace internal {

inline constexpr size_t kReserveMax = 4096;

template <class Sequence>
struct SequenceCodec {
  using Value = typename Sequence::value_type;
  static void Encode(Encoder& e, const Sequence& v) {
    e.writer.Array(v.size());
    for (const auto& item : v) e.Write(static_cast<const Value&>(item));
  }
  static void Decode(Decoder& d, Sequence& v) {
    v.clear();
    size_t n = d.reader.Array();
    // A count is no larger than the bytes that are left, an element may be: not all room is made on the sender's word.
    if constexpr (requires { v.reserve(n); }) v.reserve(std::min(n, kReserveMax));
    for (; n > 0 && d.reader.ok(); --n) {
      Value item{};
      d.Read(item);
      v.insert(v.end(), std::move(item));
    }
  }
};

template <class Map>
struct MapCodec {
  static void Encode(Encoder& e, const Map& v) {
    e.writer.Map(v.size());
    for (const auto& [key, value] : v) {
      e.Write(key);
      e.Write(value);
    }
  }
  static void Decode(Decoder& d, Map& v) {
    v.clear();
    for (size_t n = d.reader.Map(); n > 0 && d.reader.ok(); --n) {
      typename Map::key_type key{};
      typename Map::mapped_type value{};
      d.Read(key);
      d.Read(value);
      v.insert_or_assign(std::move(key), std::move(value));
    }
  }
};

template <class Tuple>
struct TupleCodec {
  static void Encode(Encoder& e, const Tuple& v) {
    std::apply([&](const auto&... item) {
      e.writer.Array(sizeof...(item));
      (e.Write(item), ...);
    }, v);
  }
  static void Decode(Decoder& d, Tuple& v) {
    std::apply([&](auto&... item) {
      size_t n = d.reader.Array();
      if (n != sizeof...(item)) return d.reader.Fail(fmt::format("want {} values, found {}", sizeof...(item), n));
      (d.Read(item), ...);
    }, v);
  }
};

}  // namespace internal

template <class T> struct Codec<std::vector<T>> : internal::SequenceCodec<std::vector<T>> {};
template <class T> struct Codec<std::deque<T>> : internal::SequenceCodec<std::deque<T>> {};
template <class T> struct Codec<std::set<T>> : internal::SequenceCodec<std::set<T>> {};
template <class T> struct Codec<std::unordered_set<T>> : internal::SequenceCodec<std::unordered_set<T>> {};
template <class K, class V, class C> struct Codec<std::map<K, V, C>> : internal::MapCodec<std::map<K, V, C>> {};
template <class K, class V> struct Codec<std::unordered_map<K, V>> : internal::MapCodec<std::unordered_map<K, V>> {};
template <class A, class B> struct Codec<std::pair<A, B>> : internal::TupleCodec<std::pair<A, B>> {};
template <class... T> struct Codec<std::tuple<T...>> : internal::TupleCodec<std::tuple<T...>> {};

template <class T, size_t N>
struct Codec<std::array<T, N>> {
  static void Encode(Encoder& e, const std::array<T, N>& v) {
    e.writer.Array(N);
    for (const T& item : v) e.Write(item);
  }
  static void Decode(Decoder& d, std::array<T, N>& v) {
    size_t n = d.reader.Array();
    if (n != N) return d.reader.Fail(fmt::format("want {} values, found {}", N, n));
    for (T& item : v) d.Read(item);
  }
};

template <>
struct Codec<std::monostate> {
  static void Encode(Encoder& e, std::monostate) { e.writer.Nil(); }
  static void Decode(Decoder& d, std::monostate&) { d.reader.Nil(); }
};

template <class Rep, class Period>
struct Codec<std::chrono::duration<Rep, Period>> {
  static void Encode(Encoder& e, const std::chrono::duration<Rep, Period>& v) { e.Write(v.count()); }
  static void Decode(Decoder& d, std::chrono::duration<Rep, Period>& v) {
    Rep count{};
    d.Read(count);
    v = std::chrono::duration<Rep, Period>(count);
  }
};

// [index of the alternative, value].
template <class... T>
struct Codec<std::variant<T...>> {
  static void Encode(Encoder& e, const std::variant<T...>& v) {
    e.writer.Array(2);
    e.writer.Unsigned(v.index());
    std::visit([&](const auto& item) { e.Write(item); }, v);
  }
  static void Decode(Decoder& d, std::variant<T...>& v) {
    if (size_t n = d.reader.Array(); n != 2) return d.reader.Fail(fmt::format("a variant has 2 values, not {}", n));
    size_t index = d.reader.Unsigned();
    if (index >= sizeof...(T)) return d.reader.Fail(fmt::format("alternative {} of {}", index, sizeof...(T)));
    DecodeAlternative(d, v, index, std::index_sequence_for<T...>());
  }

 private:
  template <size_t... I>
  static void DecodeAlternative(Decoder& d, std::variant<T...>& v, size_t index, std::index_sequence<I...>) {
    ((index == I ? d.Read(v.template emplace<I>()) : void()), ...);
  }
};

template <internal::Aggregate T>
struct Codec<T> {
  static void Encode(Encoder& e, const T& v) {
    internal::VisitFields(v, [&](const auto&... field) {
      e.writer.Array(sizeof...(field));
      (e.Write(field), ...);
    });
  }
  static void Decode(Decoder& d, T& v) {
    internal::VisitFields(v, [&](auto&... field) {
      size_t n = d.reader.Array();
      size_t at = 0;
      ((at++ < n && d.reader.ok() ? d.Read(field) : void()), ...);
      for (; at < n && d.reader.ok(); ++at) d.reader.Skip();
    });
  }
};

}  // namespace argosy
