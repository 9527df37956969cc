#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace argosy::train {

// What a template wrote, and the byte ranges of it that stood in {% generation %} blocks.
struct RenderedTemplate {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generated;
};

// A template in the subset of Jinja that chat templates use, with trim_blocks and lstrip_blocks as transformers sets them.
//
//   statements   if/elif/else, for (else, inline if, break, continue, loop.*), set (also of a namespace's field, and as a block),
//                macro, generation
//   expressions  literals, lists, tuples, dicts, attributes, subscripts, slices, calls, filters, tests, a if b else c,
//                or and not in == != < <= > >= + - * / // % ** ~
//   functions    range, namespace, dict, raise_exception, strftime_now
//   filters, tests and methods: the lists in jinja.cc
//
// Anything else is refused by its name when the template is parsed, or where it is reached.
//
// Thread:   const calls from any thread.
// Failure:  errors name the construct and the template's line; what the template itself raises is passed on.
class JinjaTemplate {
 public:
  static absl::StatusOr<JinjaTemplate> Parse(std::string_view source);

  // `variables` is an object; `now` is what strftime_now formats (seconds since 1970, local time).
  absl::StatusOr<RenderedTemplate> Render(const nlohmann::ordered_json& variables, int64_t now = 0) const;

  struct Node;

 private:
  explicit JinjaTemplate(std::shared_ptr<const Node> root) : root_(std::move(root)) {}
  std::shared_ptr<const Node> root_;
};

}  // namespace argosy::train
