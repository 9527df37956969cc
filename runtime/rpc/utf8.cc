#include "runtime/rpc/utf8.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace argosy::rpc {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Bytes of the character at the start of `text`, or 0 when there is none: no overlong forms, surrogates or numbers above U+10FFFF.
size_t CharacterSize(std::string_view text) {
  auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  unsigned first = at(0);
  if (first < 0x80) return 1;
  size_t size = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  if ((first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) >= 0xa0)) return 0;
  if ((first == 0xf0 && at(1) < 0x90) || (first == 0xf4 && at(1) >= 0x90)) return 0;
  return size;
}

std::string Replaced(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    size_t size = CharacterSize(text);
    if (size == 0) {
      out += "\xef\xbf\xbd";
      size = 1;
    } else {
      out += text.substr(0, size);
    }
    text.remove_prefix(size);
  }
  return out;
}

// Calls `visit(message, field, index)` for each value of a text field, at any depth; index is -1 when the field is not repeated.
// Stops at the first true.
bool VisitText(const Message& message, const std::function<bool(const Message&, const FieldDescriptor*, int)>& visit) {
  const Reflection* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    bool is_text = field->type() == FieldDescriptor::TYPE_STRING;
    bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!is_text && !is_message) continue;
    int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      int index = field->is_repeated() ? i : -1;
      if (is_text) {
        if (visit(message, field, index)) return true;
        continue;
      }
      const Message& inner = index < 0 ? reflection->GetMessage(message, field) : reflection->GetRepeatedMessage(message, field, i);
      if (VisitText(inner, visit)) return true;
    }
  }
  return false;
}

const std::string& TextOf(const Message& message, const FieldDescriptor* field, int index, std::string& scratch) {
  const Reflection* reflection = message.GetReflection();
  return index < 0 ? reflection->GetStringReference(message, field, &scratch)
                   : reflection->GetRepeatedStringReference(message, field, index, &scratch);
}

bool HasBadText(const Message& message) {
  return VisitText(message, [](const Message& owner, const FieldDescriptor* field, int index) {
    std::string scratch;
    return !IsUtf8(TextOf(owner, field, index, scratch));
  });
}

void Repair(Message& message) {
  const Reflection* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      int index = field->is_repeated() ? i : -1;
      if (field->type() == FieldDescriptor::TYPE_STRING) {
        std::string scratch;
        const std::string& text = TextOf(message, field, index, scratch);
        if (IsUtf8(text)) continue;
        std::string good = Replaced(text);
        if (index < 0) reflection->SetString(&message, field, std::move(good));
        else reflection->SetRepeatedString(&message, field, index, std::move(good));
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        Repair(index < 0 ? *reflection->MutableMessage(&message, field) : *reflection->MutableRepeatedMessage(&message, field, i));
      }
    }
  }
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    size_t size = CharacterSize(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

void MakeUtf8(Message& message) {
  // Looked at first, since nearly all messages are good: changing a map by reflection makes it slower to read afterwards.
  if (HasBadText(message)) Repair(message);
}

absl::Status CheckUtf8(const Message& message) {
  absl::Status result;
  VisitText(message, [&](const Message& owner, const FieldDescriptor* field, int index) {
    std::string scratch;
    const std::string& text = TextOf(owner, field, index, scratch);
    if (IsUtf8(text)) return false;
    std::string name(field->name());
    // A map's entries are messages of "key" and "value": the field that holds them says more.
    if (owner.GetDescriptor()->options().map_entry()) name = fmt::format("{} in {}", name, std::string(owner.GetDescriptor()->name()));
    std::string shown = Replaced(std::string_view(text).substr(0, 100));
    for (char& c : shown) {
      if (static_cast<unsigned char>(c) < 0x20) c = '?';   // a zero byte would end the message
    }
    result = InvalidArgument("{} \"{}\" is not UTF-8 text; only values may hold other bytes", name, shown);
    return true;
  });
  return result;
}

}  // namespace argosy::rpc
