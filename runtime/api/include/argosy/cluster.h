#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "argosy/options.h"

namespace argosy {

struct Node {
  NodeId id;
  std::string name;
  std::string ip;
  Resources resources;
  Resources available;
  std::map<std::string, std::string> labels;
  bool alive = true;
  bool is_head_node = false;
};

std::vector<Node> Nodes();

// What `resources` would need to be placed, in the scheduler's words, and whether some node could take it.
struct PlacementExplanation { bool placeable = false; std::string text; };
PlacementExplanation Explain(const Resources& resources, const LabelSelector& label_selector = {});

// Small values kept by the head, journalled: acknowledged writes survive it.
namespace kv {
struct PutOptions { bool overwrite = true; };
// True when the key is new.
bool Put(const std::string& key, const std::string& value, PutOptions options = {});
std::optional<std::string> Get(const std::string& key);
bool Delete(const std::string& key);
std::vector<std::string> List(const std::string& prefix);
}  // namespace kv

}  // namespace argosy
