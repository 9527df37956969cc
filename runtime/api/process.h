#pragma once

// The process's one connection to its cluster, as the files of this folder share it.

#include <memory>
#include <string>

#include "argosy/bridge.h"
#include "runtime/worker/core.h"

namespace argosy::internal {

// Throws RuntimeError before Connect and after Shutdown.
std::shared_ptr<worker::Core> CurrentCore();
std::shared_ptr<worker::Core> CurrentCoreOrNull();
void SetCurrentCore(std::shared_ptr<worker::Core> core);

// Throws the exception that fits.
[[noreturn]] void Throw(const wire::ErrorInfo& error);
[[noreturn]] void Throw(const absl::Status& status);

// The registered function of that wire name, or null. Prepared once by CheckFunctions.
const FunctionEntry* FindFunction(const std::string& name);
// Throws RuntimeError when two functions share a name (with both places) or a lambda has none.
void CheckFunctions();

// Is the exception of one of these registered types, or derived from one? "*" is every type.
bool IsOneOf(const std::vector<std::string>& types, const std::exception_ptr& thrown);

// Runs registered functions; owns the actor's object when this worker hosts one.
worker::Executor MakeExecutor();

// The driver's executable and libraries.
wire::CodePackage MakeCodePackage(int argc, char** argv, const std::map<std::string, std::string>& env_vars);

// Checked; a folder is packed and sent to the head when it is first named, by way of `core` (null: this process's). Throws RuntimeError,
// RuntimeEnvError.
worker::RuntimeEnv EnvironmentOf(worker::Core* core, const std::map<std::string, std::string>& env_vars, const std::string& working_dir,
                                 const std::vector<std::string>& library_path);

// Thrown through user code by Exit; `after_queue`: the calls that wait run first.
struct ExitActor { bool after_queue = false; };

absl::Time DeadlineOf(Timeout timeout);

inline worker::OutgoingValue Outgoing(EncodedValue value) { return {std::move(value.body), std::move(value.buffers), std::move(value.refs)}; }

}  // namespace argosy::internal
