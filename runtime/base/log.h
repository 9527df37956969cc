#pragma once

#include <string>

#include "spdlog/spdlog.h"

namespace argosy {

struct LogOptions {
  std::string process;        // "head", "node", "worker", ... printed on every line
  std::string file;           // empty: stderr
  std::string level = "info"; // trace debug info warning error
};

// Sets the process's logger; called once, in main. After it, code logs with spdlog::info("...", ...) and the like.
// Lines: "2026-11-30 10:00:00.000 I head: message".
void InitLog(const LogOptions& options);

}  // namespace argosy
