#include "train/tokenizer/post_processor.h"

#include "train/tokenizer/json_fields.h"

namespace argosy::train {

absl::StatusOr<PostProcessor> PostProcessor::Parse(const nlohmann::json& part) {
  PostProcessor processor;
  if (!part.is_null()) ARGOSY_RETURN_IF_ERROR(processor.Add(part));
  return processor;
}

absl::Status PostProcessor::Add(const nlohmann::json& part) {
  ARGOSY_ASSIGN_OR_RETURN(std::string type, TypeOf(part, "post_processor"));
  if (type == "Sequence") {
    auto list = part.find("processors");
    if (list == part.end() || !list->is_array()) return InvalidArgument("post_processor Sequence: \"processors\" is missing");
    for (const auto& item : *list) ARGOSY_RETURN_IF_ERROR(Add(item));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") return absl::OkStatus();
  Around around;
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    for (auto [key, ids] : {std::pair{"cls", &around.before}, std::pair{"sep", &around.after}}) {
      auto pair = part.find(key);
      if (pair == part.end() || !pair->is_array() || pair->size() != 2 || !(*pair)[1].is_number_integer()) {
        return InvalidArgument("post_processor {}: \"{}\" is no [token, id]", type, key);
      }
      ids->push_back((*pair)[1].get<int32_t>());
    }
  } else if (type == "TemplateProcessing") {
    auto single = part.find("single");
    auto special = part.find("special_tokens");
    if (single == part.end() || !single->is_array()) {
      return InvalidArgument("post_processor TemplateProcessing: \"single\" is missing or no array");
    }
    int sequences = 0;
    for (const auto& item : *single) {
      if (item.contains("Sequence")) {
        ++sequences;
        continue;
      }
      std::string name = item.is_object() && item.contains("SpecialToken") ? item["SpecialToken"].value("id", std::string()) : "";
      const nlohmann::json* ids = nullptr;
      if (special != part.end() && special->is_object() && special->contains(name)) {
        const auto& entry = (*special)[name];
        if (entry.contains("ids") && entry["ids"].is_array()) ids = &entry["ids"];
      }
      if (!ids) return InvalidArgument("post_processor TemplateProcessing: no ids for special token \"{}\"", name);
      for (const auto& id : *ids) {
        if (!id.is_number_integer()) return InvalidArgument("post_processor TemplateProcessing: an id of \"{}\" is {}", name, id.dump());
        (sequences ? around.after : around.before).push_back(id.get<int32_t>());
      }
    }
    if (sequences != 1) return InvalidArgument("post_processor TemplateProcessing: \"single\" has {} sequences; expected 1", sequences);
  } else {
    return InvalidArgument(
        "post_processor {} is not supported; supported: Sequence, TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing", type);
  }
  steps_.push_back(std::move(around));
  return absl::OkStatus();
}

std::vector<int32_t> PostProcessor::Apply(std::vector<int32_t> ids) const {
  for (const Around& around : steps_) {
    ids.insert(ids.begin(), around.before.begin(), around.before.end());
    ids.insert(ids.end(), around.after.begin(), around.after.end());
  }
  return ids;
}

}  // namespace argosy::train
