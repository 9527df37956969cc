#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <typeinfo>

#include "runtime/api/process.h"

namespace argosy::internal {
namespace {

std::string Demangle(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string readable = status == 0 ? text : name;
  std::free(text);
  return readable;
}

std::string Where(const std::string& function) {
  std::shared_ptr<worker::Core> core = CurrentCoreOrNull();
  if (!core) return fmt::format("{} (in this process)", function);
  return fmt::format("{} (worker {}, node {})", function, core->address().worker.Short(),
                     core->node().node_name.empty() ? core->node().node.Short() : core->node().node_name);
}

// What user code threw, as it travels. Runs `body` in this.
template <class Body>
void Guarded(const FunctionEntry& function, const std::vector<std::string>* retry_exceptions, worker::ExecutionOutput& output, Body body) {
  auto fail = [&](wire::ErrorInfo::Kind kind, std::string type, std::string message) {
    wire::ErrorInfo error = worker::MakeError(kind, std::move(message));
    error.type = std::move(type);
    error.where = Where(function.readable);
    output.error = std::move(error);
    output.retry = kind == wire::ErrorInfo::kTask && retry_exceptions != nullptr && IsOneOf(*retry_exceptions, std::current_exception());
  };
  try {
    body();
  } catch (const ExitActor& exit) {
    output.exit_actor = exit.after_queue ? worker::ExecutionOutput::kAfterQueue : worker::ExecutionOutput::kAfterCalls;
    fail(wire::ErrorInfo::kActorDied, "", "the actor ended itself in this call");
  } catch (const CancelledError& error) {
    fail(wire::ErrorInfo::kCancelled, "", error.what());
  } catch (const std::exception& error) {
    fail(wire::ErrorInfo::kTask, Demangle(typeid(error).name()), error.what());
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    fail(wire::ErrorInfo::kTask, type != nullptr ? Demangle(type->name()) : "an unknown type", "not a std::exception");
  }
  // What it printed without a newline belongs to it, not to the next function.
  std::cout.flush();
  std::fflush(stdout);
}

worker::ExecutionOutput Run(worker::ExecutionInput& input, std::shared_ptr<void>& instance) {
  worker::ExecutionOutput output;
  const FunctionEntry* function = FindFunction(input.function);
  if (function == nullptr) {
    output.error = worker::MakeError(wire::ErrorInfo::kRuntime,
                                     fmt::format("this worker's program has no function \"{}\": does the driver run another build?", input.function));
    return output;
  }
  Invocation invocation;
  invocation.split = input.split;
  if (input.emit) {
    invocation.emit = [&input](EncodedValue value) {
      absl::Status status = input.emit(Outgoing(std::move(value)));
      if (!status.ok()) Throw(status);
    };
  }
  if (input.make_finish) {
    invocation.make_finish = [&input, function]() -> Invocation::Finish {
      return [finish = input.make_finish(), function, retry_exceptions = input.retry_exceptions](std::function<EncodedValue()> encode) {
        worker::ExecutionOutput late;
        Guarded(*function, retry_exceptions, late, [&] { late.results.push_back(Outgoing(encode())); });
        finish(std::move(late));
      };
    };
  }
  if (input.is_call) {
    if (!instance) {
      output.error = worker::MakeError(wire::ErrorInfo::kRuntime, "the actor's object was not constructed");
      output.error->where = Where(function->readable);
      return output;
    }
    invocation.instance = instance.get();
  }
  for (worker::ValueBytes& argument : input.arguments) {
    invocation.arguments.push_back({argument.body, std::move(argument.buffers), std::move(argument.owner)});
  }
  Guarded(*function, input.retry_exceptions, output, [&] {
    function->invoke(invocation);
    if (input.is_constructor) instance = std::move(invocation.created);
    for (EncodedValue& value : invocation.results) output.results.push_back(Outgoing(std::move(value)));
  });
  output.suspended = invocation.suspended && !output.error;
  return output;
}

}  // namespace

worker::Executor MakeExecutor() {
  auto instance = std::make_shared<std::shared_ptr<void>>();
  return [instance](worker::ExecutionInput& input) { return Run(input, *instance); };
}

}  // namespace argosy::internal
