#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace argosy::train {

// The records of a TensorBoard event file: https://www.tensorflow.org/tutorials/load_data/tfrecord (length, masked CRC-32C, payload, masked
// CRC-32C) around tensorflow.Event messages.

// What such a file begins with.
std::string EventFileHead(double wall_time);
// One step's scalars.
std::string ScalarEvent(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

}  // namespace argosy::train
