#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "runtime/wire/messages.h"

namespace argosy::node {

// Which of the workers is ended when memory runs short; none when there are none. Work that can be run again goes first: the newest of the
// job whose workers take most memory. When nothing can be run again: the newest work of the largest job.
std::optional<size_t> ChooseVictim(const std::vector<wire::MemoryWorker>& workers);

}  // namespace argosy::node
