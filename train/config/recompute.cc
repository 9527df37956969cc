#include "train/config/recompute.h"

#include "runtime/base/status.h"

namespace argosy::train {

std::string_view RecomputeName(Recompute recompute) {
  return recompute == Recompute::kNone ? "none" : recompute == Recompute::kSelective ? "selective" : "full";
}

absl::StatusOr<Recompute> RecomputeFromName(std::string_view name) {
  for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    if (name == RecomputeName(recompute)) return recompute;
  }
  return InvalidArgument("\"{}\": none, selective or full", name);
}

}  // namespace argosy::train
