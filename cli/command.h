#pragma once

// One file per command; main.cc registers them all.

namespace CLI {
class App;
}

namespace argosy::cli {

// Each adds its command to `app`. The chosen one runs in its callback; a failure prints why and throws CLI::RuntimeError with the
// exit code.
void RegisterJob(CLI::App& app);

}  // namespace argosy::cli
