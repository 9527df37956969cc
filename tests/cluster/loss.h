#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <argosy/argosy.h>
#include <argosy/testing.h>

namespace argosy::testing {

struct LossyCluster {
  static Cluster* cluster;

  // The id of a node that has joined by then.
  static NodeId Add(const NodeOptions& node) {
    cluster->AddNode(node);
    return IdOf(node.name);
  }
  // What the command line says; nothing when it fails.
  static std::string Argosy(const std::string& arguments) {
    const char* binary = std::getenv("ARGOSY_BINARY");
    std::string command = std::string(binary == nullptr ? "argosy" : binary) + " " + arguments + " --address " + cluster->address();
    std::FILE* said = ::popen(command.c_str(), "r");
    if (said == nullptr) return "";
    std::string text;
    for (char part[512]; std::size_t n = std::fread(part, 1, sizeof part, said);) text.append(part, n);
    return ::pclose(said) == 0 ? text : "";
  }
  static bool BecomesTrue(const std::function<bool()>& condition) {
    for (auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60); std::chrono::steady_clock::now() < deadline;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  static bool IsAlive(const std::string& name) {
    std::vector<Node> nodes = Nodes();
    return std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return node.name == name && node.alive; });
  }
  static NodeId IdOf(const std::string& name) {
    NodeId id;
    BecomesTrue([&] {
      for (const Node& node : Nodes()) {
        if (node.name == name && node.alive) id = node.id;
      }
      return !id.IsNil();
    });
    return id;
  }
};

}  // namespace argosy::testing
