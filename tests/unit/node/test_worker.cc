// A worker process for the tests of the node daemon: registers as its start-up block says, answers BecomeActor, and ends when its
// daemon is gone. Its first argument says what else it does: "exit" ends it at once, "refuse" makes it fail as an actor.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/async/loop.h"
#include "runtime/base/codec.h"
#include "runtime/wire/connection.h"
#include "runtime/wire/startup.h"

using namespace argosy;

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const char* variable = std::getenv(wire::kStartupVariable);
  if (variable == nullptr) return 2;
  std::string bytes;
  char buffer[4096];
  for (ssize_t n; (n = ::read(std::atoi(variable), buffer, sizeof buffer)) > 0;) bytes.append(buffer, static_cast<size_t>(n));
  absl::StatusOr<wire::StartupBlock> block = Decode<wire::StartupBlock>(bytes);
  if (!block.ok()) return 3;
  if (mode == "exit") {
    std::fprintf(stderr, "the worker says why\n");
    return 42;
  }
  const char* devices = std::getenv("CUDA_VISIBLE_DEVICES");
  std::printf("devices=%s\n", devices == nullptr ? "unset" : devices);
  std::fflush(stdout);

  async::Loop loop;
  wire::ConnectOptions options{.self = {wire::Role::kWorker, std::string(block->worker.Bytes())}, .token = Token(block->token)};
  std::shared_ptr<wire::Connection> node;
  wire::ConnectUnix(loop, block->node_socket, options, [&](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
    if (!connection.ok()) ::_exit(4);
    node = *connection;
    node->Start({
        .on_request =
            [&](wire::Call call) {
              wire::BecomeActorReply reply;
              if (mode == "refuse") reply.error = wire::ErrorInfo{wire::ErrorInfo::kTask, "no such luck", "std::runtime_error", ""};
              call.Answer(reply);
            },
        .on_notice = [](wire::Connection&, wire::Method method, std::string) { if (method == wire::Method::kExitWorker) ::_exit(0); },
        .on_closed = [](absl::Status) { ::_exit(0); },
    });
    wire::RegisterWorker registration{block->startup_number, static_cast<uint32_t>(::getpid()), {block->worker, block->node, block->worker_socket, ""}};
    node->Request(registration, [](absl::StatusOr<wire::WorkerRegistered> registered) {
      if (!registered.ok()) ::_exit(5);
    });
  });
  loop.Run();
  return 0;
}
