#pragma once

// What a node daemon tells a worker process that it starts. Encoded (see Codec) in a pipe that the worker inherits: the environment
// variable ARGOSY_WORKER holds the descriptor's number. Read it to the end, close it, remove the variable.

#include <cstdint>
#include <string>

#include "runtime/base/id.h"
#include "runtime/wire/messages.h"

namespace argosy::wire {

inline constexpr char kStartupVariable[] = "ARGOSY_WORKER";
// In a submitted job's entrypoint: the package that it runs in, "gcs://NAME"; its workers run in it too.
inline constexpr char kWorkingDirVariable[] = "ARGOSY_JOB_WORKING_DIR_URI";

struct StartupBlock {
  uint64_t startup_number = 0;   // for RegisterWorker
  std::string node_socket;       // the daemon's Unix socket
  std::string token;             // for TCP between workers; empty: authentication is off
  std::string tcp_host;          // where to listen for workers of other hosts (port 0)
  WorkerId worker;               // the id to use
  NodeId node;
  std::string worker_socket;     // Unix socket to listen on, short enough, in a 0700 folder
  std::string session_dir;
  CodePackage code;              // what it runs; its own tasks and actors are started with the same
  std::string tcp_advertised;    // how workers of other hosts reach this one; empty: tcp_host
  uint16_t tcp_port_min = 0;     // where to listen; 0: any free port
  uint16_t tcp_port_max = 0;
};

}  // namespace argosy::wire
