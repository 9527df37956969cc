#pragma once

// Tasks, actors and objects on a cluster, in C++.
//
//   int Square(int x) { return x * x; }
//
//   int main(int argc, char** argv) {
//     argosy::Runtime runtime = argosy::Connect(argc, argv);
//     argosy::ObjectRef<int> nine = argosy::Task<Square>().Submit(3);
//     return argosy::Get(nine) == 9 ? 0 : 1;
//   }

#include "argosy/actor.h"
#include "argosy/actor_pool.h"
#include "argosy/array.h"
#include "argosy/async.h"
#include "argosy/channel.h"
#include "argosy/cluster.h"
#include "argosy/context.h"
#include "argosy/error.h"
#include "argosy/generator.h"
#include "argosy/map.h"
#include "argosy/object_ref.h"
#include "argosy/metrics.h"
#include "argosy/options.h"
#include "argosy/placement_group.h"
#include "argosy/queue.h"
#include "argosy/runtime.h"
#include "argosy/stream.h"
#include "argosy/task.h"
