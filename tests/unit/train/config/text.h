#pragma once

#include <string>

namespace argosy::train {

inline bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace argosy::train
