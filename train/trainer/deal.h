#pragma once

#include <vector>

#include "train/trainer/run_spec.h"

namespace argosy::train {

// How the rows of the next steps are dealt to the ranks: in proportion to the tokens that each computed a second in the last ones (`reports`, one
// list a rank), half way from `before`. A rank that had no rows keeps its part; nobody gets less than a twentieth of an equal part, so that
// a rank that has become fast again is seen. Empty `before`: equal parts.
std::vector<double> DealBySpeed(const std::vector<std::vector<StepReport>>& reports, const std::vector<double>& before);

}  // namespace argosy::train
