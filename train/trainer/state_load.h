#pragma once

// A training state on its way back: it lies where rank 0 sees it, and rank 0 reads for the others.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/training_state.h"
#include "train/collective/transport.h"
#include "train/model/weight_source.h"

namespace argosy::train {

// The three parts of a training state as sources for an engine.
//
// Thread:   one.
// Lifetime: of loading; the transport outlives it.
// Failure:  reads fail as the files or the transport do.
class StateSource {
 public:
  // Checks that `directory`, which NewestUsableState has found whole, holds what is trained: these tensors, which all ranks name alike.
  static absl::StatusOr<std::unique_ptr<StateSource>> Open(const std::string& directory, std::vector<TensorRange> trained);
  // On ranks above 0: every read is asked of rank 0, which must be in Serve for this rank.
  static std::unique_ptr<StateSource> Remote(Transport& transport, std::vector<TensorRange> trained, absl::Duration deadline);
  ~StateSource();

  const WeightSource& masters() const;
  const WeightSource& moment1() const;
  const WeightSource& moment2() const;

  // On rank 0: reads for `peer` until that rank's Done. Ranks take turns: each waits up to `deadline` for its own.
  absl::Status Serve(Transport& transport, int peer, absl::Duration deadline);
  // On ranks above 0: no more reads.
  absl::Status Done();

  struct Impl;

 private:
  explicit StateSource(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace argosy::train
