#pragma once

// The authority for one node's resources.

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/id.h"
#include "runtime/base/resources.h"
#include "scheduler/demand.h"

namespace argosy::scheduler {

// A share of one GPU device.
struct DeviceShare {
  int device = 0;
  Amount amount;
  friend bool operator==(const DeviceShare&, const DeviceShare&) = default;
};

// What a lease got.
struct Granted {
  ResourceSet resources;
  std::vector<DeviceShare> devices;   // whole devices, or a part of one; empty without GPU
  std::optional<BundleKey> bundle;
  // For CUDA_VISIBLE_DEVICES: the devices' numbers, ascending.
  std::vector<int> gpu_indices() const;
};

// Grants leases and reserves bundles so that nothing is spent twice. Devices 0..n-1 stand for the node's GPU amount.
//
// A blocked worker's lease gives back its CPU (ReleaseCpu) and takes it again when it goes on (ReacquireCpu). Taking it
// again always succeeds: the CPU may then be below zero, and nothing that needs CPU is granted until it is back.
//
// Thread:   its owner's.
// Failure:  Unavailable: not now. FailedPrecondition: never here, or the id is held with other resources. NotFound:
//           no such bundle.
class NodeLedger {
 public:
  explicit NodeLedger(ResourceSet total);

  // Repeating a grant gives the same answer. With a bundle whose index is -1, any committed bundle of the group with
  // room.
  absl::StatusOr<Granted> Grant(LeaseId lease, const ResourceSet& resources,
                                std::optional<BundleAffinity> bundle = std::nullopt);
  // False when there is no such lease.
  bool Release(LeaseId lease);
  // Both are idempotent; false when there is no such lease.
  bool ReleaseCpu(LeaseId lease);
  bool ReacquireCpu(LeaseId lease);

  // Reserves; idempotent by key with equal resources. A prepared bundle grants nothing until it is committed.
  absl::Status PrepareBundle(BundleKey key, const ResourceSet& resources);
  // NotFound when it was not prepared (or was returned since).
  absl::Status CommitBundle(BundleKey key);
  // Frees the bundle. The leases inside it, which are released here: their workers must die. Nothing for an unknown
  // bundle.
  std::vector<LeaseId> ReturnBundle(BundleKey key);

  struct Bundle {
    ResourceSet total;
    ResourceSet available;   // as reported: never below zero
    bool committed = false;
  };

  const ResourceSet& total() const { return total_; }
  // Free outside bundles, never below zero: what is reported to the head.
  ResourceSet Available() const;
  // How much of the CPU is lent twice because blocked workers went on.
  Amount CpuOversubscribed() const;
  bool CouldEverGrant(const ResourceSet& resources) const { return total_.Contains(resources); }
  const Granted* Find(LeaseId lease) const;
  std::vector<LeaseId> Leases() const;
  std::vector<LeaseId> LeasesOf(BundleKey key) const;
  std::map<BundleKey, Bundle> Bundles() const;
  std::optional<Bundle> FindBundle(BundleKey key) const;
  // Grows with every change of what is available, so that a report can be skipped when it is unchanged.
  uint64_t version() const { return version_; }

 private:
  // Amounts, which may be below zero, and devices.
  struct Pool {
    ResourceSet total;
    ResourceSet available;
    std::map<int, Amount> devices;   // free share by device number
    bool Fits(const ResourceSet& resources) const;
    // None when the free GPU shares lie on too many devices.
    std::optional<std::vector<DeviceShare>> ChooseDevices(Amount gpu) const;
    void Take(const ResourceSet& resources, const std::vector<DeviceShare>& shares);
    void Give(const ResourceSet& resources, const std::vector<DeviceShare>& shares);
  };
  struct Lease {
    Granted granted;
    bool cpu_released = false;
  };
  struct BundleState {
    Pool pool;
    std::vector<DeviceShare> devices;
    bool committed = false;
  };

  Pool& PoolOf(const Lease& lease);
  // Takes from `pool`, or says why not. `where` begins the message.
  absl::StatusOr<std::vector<DeviceShare>> TakeFrom(Pool& pool, const ResourceSet& resources, const std::string& where);

  ResourceSet total_;
  Pool free_;
  std::unordered_map<LeaseId, Lease> leases_;
  std::map<BundleKey, BundleState> bundles_;
  uint64_t version_ = 1;
};

}  // namespace argosy::scheduler
