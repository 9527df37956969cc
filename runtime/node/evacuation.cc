#include "runtime/node/evacuation.h"

#include <algorithm>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/resources.h"
#include "runtime/base/status.h"
#include "runtime/wire/connection.h"

namespace argosy::node {
namespace {

constexpr size_t kMovingMax = 8;
constexpr uint64_t kMovingBytesMax = 256ull << 20;
constexpr int kTriesMax = 3;
constexpr absl::Duration kHeirsFresh = absl::Seconds(2);

double Room(const wire::NodeInfo& node) {
  auto total = node.resources_total.find(kObjectStoreMemory);
  return (total == node.resources_total.end() ? 0 : total->second) - static_cast<double>(node.object_store_used);
}

}  // namespace

std::vector<store::ObjectTable::Listed> Evacuation::Left() const {
  std::vector<store::ObjectTable::Listed> left;
  for (store::ObjectTable::Listed& object : parts_.store.table().List()) {
    if (!object.sealed || object.is_copy || object.deleted || object.owner_tcp.empty() || options_.lives_here(object.owner)) continue;
    if (given_up_.contains(object.object)) continue;
    left.push_back(std::move(object));
  }
  return left;
}

void Evacuation::FindHeirs() {
  if (asking_) return;
  asking_ = true;
  parts_.cluster.ListNodes([this, weak = std::weak_ptr<bool>(alive_)](absl::StatusOr<wire::ListNodesReply> reply) {
    if (weak.expired()) return;
    asking_ = false;
    if (!reply.ok()) return;   // the head is away: asked again
    heirs_known_ = Clock::Real().Now();
    heirs_.clear();
    for (wire::NodeInfo& node : reply->nodes) {
      if (node.alive && !node.draining && node.node != options_.self) heirs_.push_back(std::move(node));
    }
    auto silent = [&](const wire::NodeInfo& node) { return unreachable_.contains(node.node); };
    if (std::all_of(heirs_.begin(), heirs_.end(), silent)) unreachable_.clear();
    std::erase_if(heirs_, silent);
    std::sort(heirs_.begin(), heirs_.end(), [](const auto& a, const auto& b) { return Room(a) > Room(b); });
    next_heir_ = 0;
    Step();
  });
}

void Evacuation::Step() {
  std::vector<store::ObjectTable::Listed> left = Left();
  done_ = left.empty();
  if (done_) return;
  if (Clock::Real().Now() - heirs_known_ > kHeirsFresh) return FindHeirs();
  if (heirs_.empty()) {
    done_ = moving_.empty();   // there is no other node
    return;
  }
  uint64_t bytes = 0;
  for (const auto& [object, size] : moving_) bytes += size;
  for (const store::ObjectTable::Listed& object : left) {
    if (moving_.size() >= kMovingMax || (bytes > 0 && bytes + object.size > kMovingBytesMax)) return;
    if (moving_.contains(object.object)) continue;
    bytes += object.size;
    Move(object);
    if (heirs_.empty()) return;   // the last of them failed at once
  }
}

void Evacuation::Move(const store::ObjectTable::Listed& object) {
  moving_[object.object] = object.size;
  const wire::NodeInfo heir = heirs_[next_heir_++ % heirs_.size()];
  wire::AdoptObject adopt;
  adopt.object = object.object;
  adopt.owner = object.owner;
  adopt.owner_tcp = object.owner_tcp;
  adopt.job = object.job;
  adopt.from = {options_.self, options_.wire_address, object.size};
  std::weak_ptr<bool> weak = alive_;
  parts_.peers.Get(heir.wire_address, [this, weak, object, adopt, heir = heir.node](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
    if (weak.expired()) return;
    if (!connection.ok()) return HeirFailed(object, heir, connection.status());
    (*connection)->Request(adopt, [this, weak, object, heir](absl::StatusOr<wire::ObjectLocation> to) {
      if (weak.expired()) return;
      if (!to.ok() && absl::IsUnavailable(to.status())) return HeirFailed(object, heir, to.status());
      if (!to.ok()) return Finish(object, to.status());
      TellOwner(object, *to);
    });
  });
}

void Evacuation::HeirFailed(const store::ObjectTable::Listed& object, NodeId heir, const absl::Status& why) {
  unreachable_.insert(heir);
  std::erase_if(heirs_, [&](const wire::NodeInfo& node) { return node.node == heir; });
  if (heirs_.empty()) {
    heirs_known_ = absl::InfinitePast();   // all are asked for again, those that were silent too
    return Finish(object, why);
  }
  moving_.erase(object.object);
}

void Evacuation::TellOwner(const store::ObjectTable::Listed& object, const wire::ObjectLocation& to) {
  std::weak_ptr<bool> weak = alive_;
  parts_.peers.Get(object.owner_tcp, [this, weak, object, to](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
    if (weak.expired()) return;
    auto failed = [this, object, to](const absl::Status& why) {
      parts_.mover.DropElsewhere({object.object}, {to});
      Finish(object, Annotate(why, "its owner was not told"));
    };
    if (!connection.ok()) return failed(connection.status());
    wire::ObjectMoved message{object.object, options_.self, to};
    (*connection)->Request(message, [this, weak, object, to, failed](absl::StatusOr<wire::ObjectMovedReply> reply) {
      if (weak.expired()) return;
      if (!reply.ok()) return failed(reply.status());
      if (reply->known) ++moved_;
      else parts_.mover.DropElsewhere({object.object}, {to});   // nobody wants it any more
      parts_.store.Delete(object.object);
      Finish(object, absl::OkStatus());
    });
  });
}

void Evacuation::Finish(const store::ObjectTable::Listed& object, const absl::Status& status) {
  moving_.erase(object.object);
  if (!status.ok() && ++failures_[object.object] >= kTriesMax) {
    spdlog::warn("object {} of {} bytes cannot be moved to another node: {}", object.object.Short(), object.size, Message(status));
    given_up_.insert(object.object);
  }
  if (status.ok()) failures_.erase(object.object);
}

}  // namespace argosy::node
