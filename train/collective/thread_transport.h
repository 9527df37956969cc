#pragma once

#include <memory>
#include <vector>

#include "train/collective/transport.h"

namespace argosy::train {

// Ranks that are threads of one process. A receiver copies straight from the sender's buffer; nothing is queued in between.
// Element r is for rank r's thread. Closing one closes all: that is how the others learn of it.
std::vector<std::unique_ptr<Transport>> MakeThreadTransports(int size);

}  // namespace argosy::train
