#include "train/trainer/event_file.h"

#include <cstring>
#include <span>

#include "train/checkpoint/crc32c.h"

namespace argosy::train {
namespace {

// The few shapes of protocol buffers' wire format that an Event needs.
void PutVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
template <class T>
void PutFixed(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}
void PutBytes(std::string& out, int field, std::string_view bytes) {
  PutVarint(out, static_cast<uint64_t>(field) << 3 | 2);
  PutVarint(out, bytes.size());
  out += bytes;
}
void PutDouble(std::string& out, int field, double value) {
  PutVarint(out, static_cast<uint64_t>(field) << 3 | 1);
  PutFixed(out, value);
}
void PutFloat(std::string& out, int field, float value) {
  PutVarint(out, static_cast<uint64_t>(field) << 3 | 5);
  PutFixed(out, value);
}

uint32_t MaskedCrc(std::string_view bytes) {
  uint32_t crc = ExtendCrc32c(0, std::as_bytes(std::span(bytes.data(), bytes.size())));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string Record(std::string_view event) {
  std::string out, length;
  PutFixed(length, static_cast<uint64_t>(event.size()));
  out = length;
  PutFixed(out, MaskedCrc(length));
  out += event;
  PutFixed(out, MaskedCrc(event));
  return out;
}

}  // namespace

std::string EventFileHead(double wall_time) {
  std::string event;
  PutDouble(event, 1, wall_time);
  PutBytes(event, 3, "brain.Event:2");
  return Record(event);
}

std::string ScalarEvent(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    PutBytes(value, 1, tag);
    PutFloat(value, 2, static_cast<float>(number));
    PutBytes(summary, 1, value);
  }
  std::string event;
  PutDouble(event, 1, wall_time);
  PutVarint(event, 2 << 3);
  PutVarint(event, static_cast<uint64_t>(step));
  PutBytes(event, 5, summary);
  return Record(event);
}

}  // namespace argosy::train
