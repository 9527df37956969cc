#pragma once

// One file per command; main.cc registers them all.

namespace CLI {
class App;
}

namespace argosy::cli {

// Each adds its command to `app`. The chosen one runs in its callback; a failure prints why and throws CLI::RuntimeError with the
// exit code.
void RegisterDrain(CLI::App& app);
void RegisterGet(CLI::App& app);
void RegisterHead(CLI::App& app);
void RegisterJob(CLI::App& app);
void RegisterList(CLI::App& app);
void RegisterLogs(CLI::App& app);
void RegisterMemory(CLI::App& app);
void RegisterNode(CLI::App& app);
void RegisterStack(CLI::App& app);
void RegisterStart(CLI::App& app);
void RegisterStatus(CLI::App& app);
void RegisterStop(CLI::App& app);
void RegisterSummary(CLI::App& app);
void RegisterTimeline(CLI::App& app);

}  // namespace argosy::cli
