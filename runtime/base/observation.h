#pragma once

// What workers, nodes and the head say to each other about what goes on: printed lines, task events, questions of the head to a node. In
// gRPC messages these travel encoded (see Codec), so fields may be added at the end only.

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/id.h"

namespace argosy {

// ---- what workers print -----------------------------------------------------------------------------------------------------

// Whole lines of one worker's standard output or error.
struct PrintedLines {
  NodeId node;
  std::string node_name;
  WorkerId worker;
  uint32_t pid = 0;
  std::string name;        // of the function or the actor's class; empty: not known
  bool is_error = false;
  std::string text;        // ends with a newline
  uint64_t skipped = 0;    // bytes before `text` that are not shown: too much was printed
};

struct JobPrints {
  JobId job;
  std::vector<PrintedLines> lines;
};

// ---- what became of tasks ---------------------------------------------------------------------------------------------------

// One attempt of a task, call or constructor, as somebody saw it last. Fields that the observer does not know are empty.
struct TaskEvent {
  enum State : uint8_t { kPending = 0, kRunning = 1, kFinished = 2, kFailed = 3 };
  enum Kind : uint8_t { kTask = 0, kCall = 1, kConstructor = 2 };
  TaskId task;
  uint32_t attempt = 0;
  State state = kPending;
  Kind kind = kTask;
  std::string name;
  ActorId actor;
  WorkerId owner;
  bool executed = false;         // by the sender, so that its worker, node and pid are the sender's
  int64_t submitted_us = 0;      // since the epoch, as the next two
  int64_t started_us = 0;
  int64_t ended_us = 0;
  std::string error;
  // What it printed lies in these bytes of its worker's logs.
  uint64_t out_begin = 0;
  uint64_t out_end = 0;
  uint64_t error_begin = 0;
  uint64_t error_end = 0;
  // While it is pending:
  std::map<std::string, double> resources;
  bool waits_for_arguments = false;
  // Of the trace it belongs to, hex; empty: none.
  std::string trace;
  std::string span;
  std::string parent_span;
};

struct TaskEvents {
  JobId job;
  NodeId node;
  std::string node_name;
  WorkerId worker;
  uint32_t pid = 0;
  std::vector<TaskEvent> events;
  uint64_t dropped = 0;          // events that were too many to send
};
// As wire::ReportTasks, whose body a node passes on as it is.
struct TaskReport { TaskEvents events; };

// ---- what the head asks a node ----------------------------------------------------------------------------------------------

// Sends what the job's workers have printed so far; then the answer (EmptyAnswer).
struct FlushPrintsQuestion { JobId job; };

struct WorkersQuestion {};
struct WorkerFacts {
  WorkerId worker;
  bool is_driver = false;
  JobId job;
  uint32_t pid = 0;
  std::string state;             // STARTING, IDLE, BUSY, ENDING; of a driver: CONNECTED
  ActorId actor;
  std::vector<uint32_t> gpu_ids;
  std::string address;
};
struct WorkersAnswer { std::vector<WorkerFacts> workers; };

struct ObjectsQuestion { uint32_t objects_max = 0; };
// In the node's store.
struct ObjectFacts {
  ObjectId object;
  uint64_t size = 0;
  WorkerId owner;
  JobId job;
  bool sealed = false;
  bool is_copy = false;          // the primary copy is elsewhere: may be evicted
  uint32_t pins = 0;             // readers, and the owner's pin
  bool spilled = false;          // on disk only
};
// What one process knows of an object: as its owner, or as one who holds it.
struct ReferenceFacts {
  ObjectId object;
  WorkerId holder;
  uint32_t pid = 0;
  WorkerId owner;
  int64_t handles = 0;           // in this process
  int64_t pins = 0;              // tasks in flight and stored values that hold it
  int64_t borrowers = 0;         // other processes, as its owner counts them
  std::string value;             // PENDING, INLINE, STORED, ERROR
  uint64_t size = 0;             // bytes, when the value is here or its place is known
  std::string made_by;           // the task or call, when it is this process's
};
struct References { std::vector<ReferenceFacts> references; uint64_t missing = 0; };
struct ObjectsAnswer {
  std::vector<ObjectFacts> objects;
  uint64_t missing = 0;          // objects and references that are not listed
  uint64_t used = 0;             // bytes, as the next two
  uint64_t capacity = 0;
  uint64_t backed = 0;           // by memory of the host
  std::vector<ReferenceFacts> references;
  std::vector<std::string> silent;   // processes that did not answer
  uint64_t spilled = 0;          // bytes on disk, as the next
  uint64_t spill_max = 0;
};

// A part of a log of this node: of the worker whose id begins so, or, when that is empty, of the daemon itself.
struct LogQuestion {
  std::string worker;
  bool error_stream = false;
  uint64_t offset = 0;
  uint64_t size_max = 0;
  bool from_end = false;         // the last size_max bytes
};
struct LogAnswer {
  bool found = false;
  std::string worker;            // hex
  std::string data;
  uint64_t offset = 0;
  uint64_t end = 0;              // of the file
  bool may_grow = false;
};

// Where every thread of a worker is.
struct StackQuestion { std::string worker; };
struct StackAnswer { bool found = false; std::string text; };

using NodeQuestion = std::variant<FlushPrintsQuestion, WorkersQuestion, ObjectsQuestion, LogQuestion, StackQuestion>;

struct EmptyAnswer {};

// ---- metrics of user code ---------------------------------------------------------------------------------------------------

struct MetricValue {
  enum Kind : uint8_t { kCounter = 0, kGauge = 1, kHistogram = 2 };
  Kind kind = kCounter;
  std::string name;
  std::string help;
  std::map<std::string, std::string> tags;
  double value = 0;                        // counter: so far; gauge: now; histogram: sum of all observations
  std::vector<double> bounds;              // histogram: upper bounds of the buckets; the last, +Inf, is not named
  std::vector<uint64_t> counts;            // one more than bounds, not cumulative
};
// All metrics of one process, from its start.
struct ProcessMetrics {
  JobId job;
  NodeId node;
  std::string node_name;
  WorkerId worker;
  std::vector<MetricValue> metrics;
  uint64_t dropped = 0;                    // series above the bound of a process
};
struct MetricsReported { ProcessMetrics metrics; };   // as wire::ReportMetrics

}  // namespace argosy
