#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace argosy {

// What every call of this API throws when the runtime, a remote function or the cluster failed. what() is one readable line.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(what) {}
};

// The remote function threw.
class TaskError : public Error {
 public:
  TaskError(std::string type, std::string message, std::string where)
      : Error(where + " threw " + type + ": " + message), type_(std::move(type)), message_(std::move(message)), where_(std::move(where)) {}

  const std::string& type() const { return type_; }        // of the remote exception, e.g. "std::out_of_range"
  const std::string& message() const { return message_; }  // its what()
  const std::string& where() const { return where_; }      // function, worker and node

 private:
  std::string type_, message_, where_;
};

// The worker process that ran the task died more often than max_retries allows.
class WorkerDiedError : public Error { public: using Error::Error; };
// The actor is dead; the text says why and on which node.
class ActorDiedError : public Error { public: using Error::Error; };
// The actor restarted while the call was in flight, and the call may not be repeated (max_task_retries).
class ActorUnavailableError : public Error { public: using Error::Error; };
// max_pending_calls of the actor's options are unanswered, and fail_when_full is set.
class PendingCallsLimitError : public Error { public: using Error::Error; };
// Every copy of the object is gone.
class ObjectLostError : public Error { public: using Error::Error; };
// The process that owned the object died, and its objects with it.
class OwnerDiedError : public Error { public: using Error::Error; };
// The worker was killed because the host ran short of memory, or a value does not fit the object store.
class OutOfMemoryError : public Error { public: using Error::Error; };
// The value was not there in time. It may still come.
class GetTimeoutError : public Error { public: using Error::Error; };
// The task was cancelled, or the caller itself was while it waited.
class CancelledError : public Error { public: using Error::Error; };
// No node can run it, or none could before its deadline; the text is the scheduler's explanation.
class UnschedulableError : public Error { public: using Error::Error; };
// The worker's environment cannot be set up: the package of its working directory, a folder of its library path or the driver's program is
// not to be had on the node that the text names.
class RuntimeEnvError : public Error { public: using Error::Error; };
// A name, key or actor that is not there.
class NotFoundError : public Error { public: using Error::Error; };
// The runtime could not do what was asked: no cluster, a bad option, a value that cannot be encoded.
class RuntimeError : public Error { public: using Error::Error; };
// The node daemon through which this process is in the cluster died: what it waited for and what it had in the object store is lost, and its
// job ends. Values that are here can still be read; all else throws this, until the Runtime is gone and Connect makes a new one.
class NodeDiedError : public RuntimeError { public: using RuntimeError::RuntimeError; };

}  // namespace argosy
