#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/node/package_cache.h"
#include "runtime/node/process.h"
#include "runtime/transfer/code_files.h"
#include "runtime/wire/messages.h"
#include "runtime/wire/startup.h"

namespace argosy::node {

struct WorkerProcessesOptions {
  std::string log_dir;
  std::string socket_dir;                    // of the workers' own sockets
  std::string node_name;                     // for people
  std::vector<std::string> gpu_devices;      // names for CUDA_VISIBLE_DEVICES by GPU number; missing ones are the number
  wire::StartupBlock startup;                // what all have in common
};

// The worker processes of this node: starts each with its driver's code and argv in its runtime environment, its start-up block in an
// inherited pipe, its output in <log_dir>/worker-<id>.{out,err}, and tells how it ended.
//
// Thread:   the loop's.
// Lifetime: the loop, the code files and the packages outlive it; destroying it kills all.
// Failure:  a worker that cannot be started ends, with the reason; `environment_failed` when its code, its package or a library folder is not
//           to be had.
class WorkerProcesses {
 public:
  struct End { WorkerId worker; std::string reason; int exit_code = 0; bool out_of_memory = false; bool environment_failed = false; };
  using Ended = std::function<void(const End& end)>;
  WorkerProcesses(async::Loop& loop, transfer::CodeFiles& code_files, PackageCache& packages, WorkerProcessesOptions options, Ended ended);
  ~WorkerProcesses();

  // The code's files, and the package of its working directory, are fetched first when they are not here.
  void Start(WorkerId worker, const wire::CodePackage& code, const std::vector<uint32_t>& gpu_ids);
  // `reason` becomes the reason of its end. Unknown workers: nothing.
  void Kill(WorkerId worker, const std::string& reason, bool out_of_memory = false);
  // Its reason, when it ends by itself.
  void ExpectEnd(WorkerId worker, const std::string& reason);
  // The worker whose start-up block has this number and whose process is `pid`; it has now registered.
  std::optional<WorkerId> Register(uint64_t startup_number, uint32_t pid);

  size_t size() const { return children_.size(); }
  // 0: unknown, or not started yet.
  uint32_t Pid(WorkerId worker) const;
  void SetNode(NodeId node) { options_.startup.node = node; }

 private:
  struct Child {
    uint64_t startup_number = 0;
    std::unique_ptr<Process> process;   // null while the code is fetched
    std::string kill_reason;
    bool out_of_memory = false;
    bool registered = false;
    std::string error_log;
  };
  struct Prepared {
    wire::CodePackage code;
    std::vector<uint32_t> gpu_ids;
    transfer::CodeFiles::Located located;
    std::string working_dir;           // where the package is; empty: there is none
    std::vector<std::string> loader_path;
  };
  void OnLocated(WorkerId worker, std::shared_ptr<Prepared> prepared);
  void OnPrepared(WorkerId worker, const Prepared& prepared);
  absl::Status CheckFolders(Prepared& prepared) const;
  absl::Status Spawn(WorkerId worker, Child& child, const Prepared& prepared);
  void OnEnd(WorkerId worker, const ProcessEnd& end);
  std::string SocketPath(WorkerId worker) const;
  void Fail(WorkerId worker, const std::string& reason, bool environment_failed = false);

  async::Loop& loop_;
  transfer::CodeFiles& code_files_;
  PackageCache& packages_;
  WorkerProcessesOptions options_;
  Ended ended_;
  std::unordered_map<WorkerId, Child> children_;
  uint64_t next_startup_number_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::node
