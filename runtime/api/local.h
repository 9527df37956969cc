#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "argosy/bridge.h"
#include "argosy/cluster.h"
#include "argosy/context.h"
#include "runtime/api/process.h"

namespace argosy::internal {

// Local mode: what a cluster would run runs in this process, in the call that submits it, so that a debugger sees one program. No daemon,
// no other process; resources and placement are not looked at, and nothing is ever pending. A generator has a thread of its own.
//
// Thread:   any; calls of one actor run one after the other.
// Lifetime: from Connect to Shutdown.
// Failure:  as in a cluster: what a function throws is thrown by Get.
class LocalRuntime {
 public:
  explicit LocalRuntime(std::string ns);
  ~LocalRuntime();

  std::vector<CellPtr> SubmitTask(const Submission& submission, const TaskOptions& options, std::vector<OutgoingArgument> arguments);
  std::vector<CellPtr> SubmitCall(ActorId actor, const Submission& submission, std::vector<OutgoingArgument> arguments);
  ActorId CreateActor(const FunctionEntry& constructor, const std::string& class_name, const ActorOptions& options,
                      std::vector<OutgoingArgument> arguments);
  ActorId FindActor(const std::string& name, const std::string& ns);
  void KillActor(ActorId actor, const std::string& reason);

  CellPtr Put(EncodedValue value);
  ValueView Fetch(const CellPtr& cell);
  CellPtr MakeHandle(ObjectId object);
  CellPtr NextOfStream(const StreamHandle& handle, Timeout timeout);
  void CloseStream(const StreamHandle& handle);

  RuntimeContext Context() const;
  std::vector<Node> Nodes() const;

  // Keys, as in a cluster; under the namespace.
  std::map<std::string, std::string>& keys() { return keys_; }
  std::mutex& keys_mutex() { return keys_mutex_; }

 private:
  struct Object;
  struct Actor;
  struct Stream;

  std::shared_ptr<Object> NewObject(ObjectId id);
  CellPtr HandleOf(const std::shared_ptr<Object>& object);
  void Fill(Object& object, worker::OutgoingValue value);
  worker::ValueBytes BytesOf(const worker::ObjectState& state) const;
  // Runs it and fills its returns.
  void Run(const worker::Executor& executor, worker::ExecutionInput input, int retries, const std::string& readable,
           std::vector<OutgoingArgument> arguments, const std::vector<std::shared_ptr<Object>>& returns, worker::ExecutionOutput* ended);
  std::vector<CellPtr> Start(const worker::Executor& executor, const Submission& submission, worker::ExecutionInput input, int retries,
                             std::vector<OutgoingArgument> arguments, worker::ExecutionOutput* ended);

  const std::string ns_;
  const JobId job_ = JobId::Random();
  const NodeId node_ = NodeId::Random();
  const WorkerId worker_ = WorkerId::Random();
  const worker::Executor tasks_;

  std::mutex mutex_;                                       // for all below, not while user code runs
  std::unordered_map<ObjectId, std::weak_ptr<Object>> objects_;
  size_t sweep_at_ = 1024;
  std::map<ActorId, std::shared_ptr<Actor>> actors_;
  std::map<const worker::StreamState*, std::shared_ptr<Stream>> streams_;

  std::mutex keys_mutex_;
  std::map<std::string, std::string> keys_;
};

// Null in a cluster.
std::shared_ptr<LocalRuntime> Local();
void SetLocal(std::shared_ptr<LocalRuntime> local);

}  // namespace argosy::internal
