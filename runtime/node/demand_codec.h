#pragma once

// wire::Demand -> scheduler::Demand, refusing what the scheduler must never see.

#include "absl/status/statusor.h"
#include "runtime/base/resources.h"
#include "runtime/wire/messages.h"
#include "scheduler/demand.h"

namespace argosy::node {

// INVALID_ARGUMENT names the field and the value.
absl::StatusOr<scheduler::Demand> ParseDemand(const wire::Demand& demand);

// What an actor holds while it lives: its running resources, and of its placement's everything but CPU.
absl::StatusOr<ResourceSet> ActorResources(const wire::ActorSpec& spec);

}  // namespace argosy::node
