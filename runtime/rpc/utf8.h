#pragma once

// Text fields of protobuf hold UTF-8 and nothing else: a receiver refuses the whole message for one wrong byte, and with it the
// stream that it came on. What users name, and what their programs print and throw, may be any bytes.

#include <google/protobuf/message.h>

#include <string_view>

#include "absl/status/status.h"

namespace argosy::rpc {

bool IsUtf8(std::string_view text);

// For what people read: every byte that belongs to no character becomes U+FFFD, in all text fields.
void MakeUtf8(google::protobuf::Message& message);

// For what means something (names, keys, paths): INVALID_ARGUMENT that names the field and the value.
absl::Status CheckUtf8(const google::protobuf::Message& message);

}  // namespace argosy::rpc
