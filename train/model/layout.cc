#include "train/model/layout.h"

#include <algorithm>

namespace argosy::train {

const TensorRange* UnitLayout::Find(std::string_view suffix) const {
  for (const TensorRange& range : ranges) {
    std::string_view name = range.name;
    if (!name.ends_with(suffix)) continue;
    if (name.size() == suffix.size() || name[name.size() - suffix.size() - 1] == '.') return &range;
  }
  return nullptr;
}

int64_t ModelLayout::ElementsMax() const {
  int64_t most = 0;
  for (const UnitLayout& unit : units) most = std::max(most, unit.elements);
  return most;
}

int64_t ModelLayout::ParameterCount() const {
  int64_t count = 0;
  for (const UnitLayout& unit : units) {
    for (const TensorRange& range : unit.ranges) count += range.elements;
  }
  return count;
}

std::vector<TensorRange> ModelLayout::Ranges() const {
  std::vector<TensorRange> ranges;
  for (const UnitLayout& unit : units) ranges.insert(ranges.end(), unit.ranges.begin(), unit.ranges.end());
  return ranges;
}

ModelLayout MakeLayout(const ModelConfig& config) {
  ModelLayout layout;
  layout.tied = config.tie_word_embeddings;
  for (const UnitSpec& spec : config.Units()) {
    UnitLayout unit{.name = spec.name};
    for (const TensorSpec& tensor : spec.tensors) {
      int64_t elements = tensor.Elements();
      unit.ranges.push_back({.name = tensor.name, .shape = tensor.shape, .offset = unit.elements, .elements = elements});
      unit.elements += (elements + kRangeGrain - 1) / kRangeGrain * kRangeGrain;
    }
    layout.units.push_back(std::move(unit));
  }
  return layout;
}

}  // namespace argosy::train
