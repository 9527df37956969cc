#include "scheduler/ledger.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::scheduler {
namespace {

constexpr Amount kWholeDevice = Amount::FromInt(1);

// Subtracting may end below zero here: a blocked worker that went on.
void SubtractSigned(ResourceSet& from, const ResourceSet& amounts) {
  for (const auto& [name, amount] : amounts.amounts()) from.Set(name, from.Get(name) - amount);
}

ResourceSet NotBelowZero(const ResourceSet& amounts) {
  ResourceSet result;
  for (const auto& [name, amount] : amounts.amounts()) {
    if (amount > Amount()) result.Set(name, amount);
  }
  return result;
}

ResourceSet Only(const ResourceSet& amounts, const char* name) {
  ResourceSet result;
  result.Set(name, amounts.Get(name));
  return result;
}

// "GPU: 0 of 1 free" for the first amount that does not fit; empty when all fit.
std::string Missing(const ResourceSet& available, const ResourceSet& total, const ResourceSet& wanted) {
  for (const auto& [name, amount] : wanted.amounts()) {
    if (available.Get(name) < amount) {
      return fmt::format("{}: {} of {} free", name, std::max(available.Get(name), Amount()).ToString(),
                         total.Get(name).ToString());
    }
  }
  return {};
}

absl::Status CheckAmounts(const ResourceSet& resources) {
  for (const auto& [name, amount] : resources.amounts()) {
    if (amount < Amount()) return InvalidArgument("{} is {}: want 0 or more", name, amount.ToString());
    if (name == kGpu && amount > kWholeDevice && amount.raw() % Amount::kUnit != 0) {
      return InvalidArgument("GPU is {}: above 1 it must be whole", amount.ToString());
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int> Granted::gpu_indices() const {
  std::vector<int> indices;
  for (const DeviceShare& share : devices) indices.push_back(share.device);
  std::sort(indices.begin(), indices.end());
  return indices;
}

bool NodeLedger::Pool::Fits(const ResourceSet& resources) const { return available.Contains(resources); }

std::optional<std::vector<DeviceShare>> NodeLedger::Pool::ChooseDevices(Amount gpu) const {
  std::vector<DeviceShare> shares;
  if (gpu.IsZero()) return shares;
  if (gpu < kWholeDevice) {
    // The fullest device with room, so that whole ones stay free.
    const std::pair<const int, Amount>* best = nullptr;
    for (const auto& device : devices) {
      if (device.second >= gpu && (best == nullptr || device.second < best->second)) best = &device;
    }
    if (best == nullptr) return std::nullopt;
    shares.push_back({best->first, gpu});
    return shares;
  }
  Amount left = gpu;
  for (const auto& [device, free] : devices) {
    if (left.IsZero()) break;
    if (free < kWholeDevice) continue;
    shares.push_back({device, kWholeDevice});
    left -= kWholeDevice;
  }
  if (!left.IsZero()) return std::nullopt;
  return shares;
}

void NodeLedger::Pool::Take(const ResourceSet& resources, const std::vector<DeviceShare>& shares) {
  SubtractSigned(available, resources);
  for (const DeviceShare& share : shares) devices.at(share.device) -= share.amount;
}

void NodeLedger::Pool::Give(const ResourceSet& resources, const std::vector<DeviceShare>& shares) {
  available.Add(resources);
  for (const DeviceShare& share : shares) devices.at(share.device) += share.amount;
}

NodeLedger::NodeLedger(ResourceSet total) : total_(std::move(total)) {
  free_.total = total_;
  free_.available = total_;
  Amount left = total_.Get(kGpu);
  for (int device = 0; left > Amount(); ++device) {
    Amount share = std::min(left, kWholeDevice);
    free_.devices[device] = share;
    left -= share;
  }
}

absl::StatusOr<std::vector<DeviceShare>> NodeLedger::TakeFrom(Pool& pool, const ResourceSet& resources,
                                                              const std::string& where) {
  ARGOSY_RETURN_IF_ERROR(CheckAmounts(resources));
  if (!pool.total.Contains(resources)) {
    return FailedPrecondition("{} has {} in all, less than {}", where, pool.total.ToString(), resources.ToString());
  }
  if (!pool.Fits(resources))
    return Unavailable("{} is busy: {}", where, Missing(pool.available, pool.total, resources));
  std::optional<std::vector<DeviceShare>> shares = pool.ChooseDevices(resources.Get(kGpu));
  if (!shares) {
    // What fits the sum need not fit the devices: 0.5 free on each of two is no whole device.
    Amount largest;
    for (const auto& [device, free] : pool.devices) largest = std::max(largest, free);
    return Unavailable("{} is busy: GPU: {} free, but at most {} of one device", where,
                       pool.available.Get(kGpu).ToString(), largest.ToString());
  }
  pool.Take(resources, *shares);
  ++version_;
  return *std::move(shares);
}

absl::StatusOr<Granted> NodeLedger::Grant(LeaseId lease, const ResourceSet& resources,
                                          std::optional<BundleAffinity> bundle) {
  if (auto it = leases_.find(lease); it != leases_.end()) {
    const Granted& held = it->second.granted;
    const bool same_bundle = bundle.has_value() == held.bundle.has_value() &&
                             (!bundle || (bundle->group == held.bundle->group &&
                                          (bundle->bundle_index < 0 || bundle->bundle_index == held.bundle->index)));
    if (held.resources == resources && same_bundle) return held;
    return FailedPrecondition("lease {} is held already with {}", lease.Short(), held.resources.ToString());
  }
  Granted granted{resources, {}, std::nullopt};
  if (!bundle) {
    ARGOSY_ASSIGN_OR_RETURN(granted.devices, TakeFrom(free_, resources, "the node"));
  } else {
    absl::Status refusal =
        NotFound("the node holds no committed {}", bundle->bundle_index < 0
                                                       ? fmt::format("bundle of group {}", bundle->group.Short())
                                                       : BundleKey{bundle->group, bundle->bundle_index}.ToString());
    const int first = std::max(bundle->bundle_index, 0);
    const int last = bundle->bundle_index < 0 ? std::numeric_limits<int>::max() : bundle->bundle_index;
    for (auto it = bundles_.lower_bound({bundle->group, first});
         it != bundles_.end() && it->first.group == bundle->group && it->first.index <= last && !granted.bundle; ++it) {
      if (!it->second.committed) continue;
      absl::StatusOr<std::vector<DeviceShare>> shares = TakeFrom(it->second.pool, resources, it->first.ToString());
      if (shares.ok()) {
        granted.devices = *std::move(shares);
        granted.bundle = it->first;
      } else if (!absl::IsUnavailable(refusal)) {
        refusal = shares.status();   // "not now" of one bundle outweighs "never" of another
      }
    }
    if (!granted.bundle) return refusal;
  }
  leases_[lease] = {granted, false};
  return granted;
}

NodeLedger::Pool& NodeLedger::PoolOf(const Lease& lease) {
  return lease.granted.bundle ? bundles_.at(*lease.granted.bundle).pool : free_;
}

bool NodeLedger::Release(LeaseId lease) {
  auto it = leases_.find(lease);
  if (it == leases_.end()) return false;
  ResourceSet held = it->second.granted.resources;
  if (it->second.cpu_released) held.Set(kCpu, Amount());
  PoolOf(it->second).Give(held, it->second.granted.devices);
  leases_.erase(it);
  ++version_;
  return true;
}

bool NodeLedger::ReleaseCpu(LeaseId lease) {
  auto it = leases_.find(lease);
  if (it == leases_.end()) return false;
  if (std::exchange(it->second.cpu_released, true)) return true;
  PoolOf(it->second).Give(Only(it->second.granted.resources, kCpu), {});
  ++version_;
  return true;
}

bool NodeLedger::ReacquireCpu(LeaseId lease) {
  auto it = leases_.find(lease);
  if (it == leases_.end()) return false;
  if (!std::exchange(it->second.cpu_released, false)) return true;
  PoolOf(it->second).Take(Only(it->second.granted.resources, kCpu), {});
  ++version_;
  return true;
}

absl::Status NodeLedger::PrepareBundle(BundleKey key, const ResourceSet& resources) {
  if (auto it = bundles_.find(key); it != bundles_.end()) {
    if (it->second.pool.total == resources) return absl::OkStatus();
    return FailedPrecondition("{} is held already with {}", key.ToString(), it->second.pool.total.ToString());
  }
  ARGOSY_ASSIGN_OR_RETURN(std::vector<DeviceShare> shares, TakeFrom(free_, resources, "the node"));
  BundleState& bundle = bundles_[key];
  bundle.devices = shares;
  bundle.pool.total = resources;
  bundle.pool.available = resources;
  for (const DeviceShare& share : shares) bundle.pool.devices[share.device] = share.amount;
  return absl::OkStatus();
}

absl::Status NodeLedger::CommitBundle(BundleKey key) {
  auto it = bundles_.find(key);
  if (it == bundles_.end()) return NotFound("{} was not prepared here, or was returned since", key.ToString());
  it->second.committed = true;
  return absl::OkStatus();
}

std::vector<LeaseId> NodeLedger::ReturnBundle(BundleKey key) {
  auto it = bundles_.find(key);
  if (it == bundles_.end()) return {};
  std::vector<LeaseId> leases = LeasesOf(key);
  for (LeaseId lease : leases) leases_.erase(lease);
  free_.Give(it->second.pool.total, it->second.devices);
  bundles_.erase(it);
  ++version_;
  return leases;
}

ResourceSet NodeLedger::Available() const { return NotBelowZero(free_.available); }

Amount NodeLedger::CpuOversubscribed() const {
  Amount sum;
  auto count = [&](const Pool& pool) {
    if (Amount cpu = pool.available.Get(kCpu); cpu < Amount()) sum -= cpu;
  };
  count(free_);
  for (const auto& [key, bundle] : bundles_) count(bundle.pool);
  return sum;
}

const Granted* NodeLedger::Find(LeaseId lease) const {
  auto it = leases_.find(lease);
  return it == leases_.end() ? nullptr : &it->second.granted;
}

std::vector<LeaseId> NodeLedger::Leases() const {
  std::vector<LeaseId> ids;
  for (const auto& [id, lease] : leases_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<LeaseId> NodeLedger::LeasesOf(BundleKey key) const {
  std::vector<LeaseId> ids;
  for (const auto& [id, lease] : leases_) {
    if (lease.granted.bundle == key) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::map<BundleKey, NodeLedger::Bundle> NodeLedger::Bundles() const {
  std::map<BundleKey, Bundle> bundles;
  for (const auto& [key, bundle] : bundles_)
    bundles[key] = {bundle.pool.total, NotBelowZero(bundle.pool.available), bundle.committed};
  return bundles;
}

std::optional<NodeLedger::Bundle> NodeLedger::FindBundle(BundleKey key) const {
  auto it = bundles_.find(key);
  if (it == bundles_.end()) return std::nullopt;
  return Bundle{it->second.pool.total, NotBelowZero(it->second.pool.available), it->second.committed};
}

}  // namespace argosy::scheduler
