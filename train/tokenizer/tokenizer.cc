#include "train/tokenizer/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "spdlog/spdlog.h"
#include "train/tokenizer/bpe_model.h"
#include "train/tokenizer/decoder.h"
#include "train/tokenizer/json_fields.h"
#include "train/tokenizer/json_scan.h"
#include "train/tokenizer/normalizer.h"
#include "train/tokenizer/post_processor.h"
#include "train/tokenizer/pre_tokenizer.h"
#include "train/tokenizer/sentencepiece_model.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kSpecialTokenKeys[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// "<s>" or {"content": "<s>", ...}; empty for anything else.
std::string TokenContent(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object()) return value.value("content", std::string());
  return {};
}

absl::StatusOr<AddedToken> ParseAddedToken(const Json& entry, std::string_view where) {
  AddedToken token;
  ARGOSY_ASSIGN_OR_RETURN(token.content, StringField(entry, "content", where));
  if (auto id = entry.find("id"); id != entry.end() && id->is_number_integer()) token.id = id->get<int32_t>();
  token.single_word = BoolField(entry, "single_word", false);
  token.lstrip = BoolField(entry, "lstrip", false);
  token.rstrip = BoolField(entry, "rstrip", false);
  token.special = BoolField(entry, "special", false);
  token.normalized = BoolField(entry, "normalized", !token.special);
  return token;
}

OrderedJson Describe(const AddedToken& token) {
  return {{"content", token.content}, {"lstrip", token.lstrip},           {"normalized", token.normalized},
          {"rstrip", token.rstrip},   {"single_word", token.single_word}, {"special", token.special}};
}

absl::StatusOr<Json> ParseFile(const std::string& text, std::string_view name, bool required) {
  if (text.empty() && !required) return Json::object();
  Json parsed = Json::parse(text, nullptr, false);
  if (parsed.is_discarded()) return InvalidArgument("{} is not valid JSON", name);
  if (!parsed.is_object()) return InvalidArgument("{} holds {} where an object is expected", name, parsed.type_name());
  return parsed;
}

absl::StatusOr<std::string> ReadIfThere(const std::string& path) {
  if (!std::filesystem::exists(path)) return std::string();
  return ReadFile(path);
}

std::string Dump(const OrderedJson& json) { return json.dump(2) + "\n"; }

}  // namespace

struct Tokenizer::Impl {
  TokenizerFiles files;
  std::string directory;  // empty when not loaded from one
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  PostProcessor post_processor;
  Decoder decoder;

  std::map<int32_t, AddedToken> added;
  absl::flat_hash_map<std::string, int32_t> added_ids;
  AddedTokenMatcher raw_matcher, normalized_matcher;
  std::map<int32_t, std::string> normalized_contents;  // what tokens found in normalized text decode to
  bool added_changed = false;  // tokenizer.json no longer says what `added` says

  std::optional<int32_t> bos, eos, pad, unknown;
  PaddingSide padding_side = PaddingSide::kRight;
  std::string chat_template;

  explicit Impl(BpeModel the_model) : model(std::move(the_model)) {}

  std::optional<int32_t> TokenToId(std::string_view token) const {
    if (auto found = added_ids.find(ToAbsl(token)); found != added_ids.end()) return found->second;
    return model.TokenToId(token);
  }

  // The id the token now has; true in `fresh` when it had none. BuildMatchers must follow.
  int32_t Add(AddedToken token, bool& fresh) {
    std::optional<int32_t> known = TokenToId(token.content);
    fresh = !known;
    int32_t next = static_cast<int32_t>(model.Size());
    if (!added.empty()) next = std::max(next, added.rbegin()->first + 1);
    token.id = known.value_or(next);
    int32_t id = token.id;
    added_ids[token.content] = id;
    added[id] = std::move(token);
    return id;
  }

  void BuildMatchers() {
    raw_matcher = {};
    normalized_matcher = {};
    normalized_contents.clear();
    for (const auto& [id, token] : added) {
      if (token.normalized) {
        Piece pattern{.text = token.content};
        normalizer.Apply(pattern);
        normalized_matcher.Add(pattern.text, token);
        normalized_contents[id] = std::move(pattern.text);
      } else {
        raw_matcher.Add(token.content, token);
      }
    }
  }

  absl::Status ReadAddedTokens(const Json& tokenizer, const Json& config, const Json& map, const Json& extra);
  void ReadSpecialIds(const Json& config, const Json& map, const Json& generation, const Json& model_config);
};

absl::Status Tokenizer::Impl::ReadAddedTokens(const Json& tokenizer, const Json& config, const Json& map, const Json& extra) {
  bool fresh = false;
  if (auto list = tokenizer.find("added_tokens"); list != tokenizer.end() && list->is_array()) {
    for (const auto& entry : *list) {
      ARGOSY_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry, "added_tokens"));
      if (token.content.empty()) continue;
      int32_t written = token.id;
      std::string content = token.content;
      int32_t id = Add(std::move(token), fresh);
      if (written >= 0 && written != id) {
        spdlog::warn("tokenizer.json gives the added token \"{}\" the id {}; the vocabulary says {}, which is used", content, written, id);
      }
    }
  }
  // What Hugging Face's slow files add: they win nothing over tokenizer.json, but may know more tokens.
  std::map<int32_t, AddedToken> more;
  if (auto decoder_tokens = config.find("added_tokens_decoder"); decoder_tokens != config.end() && decoder_tokens->is_object()) {
    for (const auto& [key, entry] : decoder_tokens->items()) {
      ARGOSY_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry, "tokenizer_config.json: added_tokens_decoder"));
      int32_t id = -1;
      auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0) {
        return InvalidArgument("tokenizer_config.json: added_tokens_decoder has the key \"{}\"; expected an id", key);
      }
      more[id] = std::move(token);
    }
  }
  for (const auto& [content, id] : extra.items()) {
    if (!id.is_number_integer()) return InvalidArgument("added_tokens.json: the id of \"{}\" is {}", content, id.dump());
    more.try_emplace(id.get<int32_t>(), AddedToken{.content = content, .normalized = true});
  }
  for (auto& [id, token] : more) {
    if (token.content.empty() || added_ids.contains(token.content)) continue;
    std::string content = token.content;
    int32_t got = Add(std::move(token), fresh);
    added_changed = true;
    if (got != id) spdlog::warn("the added token \"{}\" should have the id {}; the vocabulary gives it {}, which is used", content, id, got);
  }
  auto add_special = [&](const std::string& content) {
    if (content.empty() || added_ids.contains(content)) return;
    Add({.content = content, .special = true}, fresh);
    added_changed = true;
  };
  for (const char* key : kSpecialTokenKeys) {
    for (const Json* source : {&config, &map}) {
      if (auto value = source->find(key); value != source->end()) add_special(TokenContent(*value));
    }
  }
  for (const Json* source : {&config, &map}) {
    auto list = source->find("additional_special_tokens");
    if (list == source->end() || !list->is_array()) continue;
    for (const auto& value : *list) add_special(TokenContent(value));
  }
  BuildMatchers();
  return absl::OkStatus();
}

void Tokenizer::Impl::ReadSpecialIds(const Json& config, const Json& map, const Json& generation, const Json& model_config) {
  auto find = [&](const char* token_key, const char* id_key) -> std::optional<int32_t> {
    for (const Json* source : {&config, &map}) {
      if (auto value = source->find(token_key); value != source->end()) {
        if (auto id = TokenToId(TokenContent(*value))) return id;
      }
    }
    for (const Json* source : {&generation, &model_config}) {
      auto value = source->find(id_key);
      if (value == source->end()) continue;
      const Json& first = value->is_array() && !value->empty() ? value->front() : *value;
      if (first.is_number_integer()) return first.get<int32_t>();
    }
    return std::nullopt;
  };
  bos = find("bos_token", "bos_token_id");
  eos = find("eos_token", "eos_token_id");
  pad = find("pad_token", "pad_token_id");
  unknown = find("unk_token", "unk_token_id");

  chat_template = files.chat_template_jinja;
  if (auto value = config.find("chat_template"); chat_template.empty() && value != config.end()) {
    if (value->is_string()) chat_template = value->get<std::string>();
    if (value->is_array()) {
      for (const Json& one : *value) {
        if (one.is_object() && one.value("name", std::string()) == "default") chat_template = one.value("template", std::string());
      }
    }
  }

  std::string side = config.value("padding_side", std::string());
  std::string kind = config.value("tokenizer_class", std::string());
  bool llama = kind.starts_with("Llama") || kind.starts_with("CodeLlama");
  padding_side = side == "left" || (side.empty() && llama) ? PaddingSide::kLeft : PaddingSide::kRight;
}

absl::StatusOr<Tokenizer> Tokenizer::FromFiles(TokenizerFiles files) {
  ARGOSY_ASSIGN_OR_RETURN(Json config, ParseFile(files.tokenizer_config_json, "tokenizer_config.json", false));
  if (files.tokenizer_json.empty() && !files.tokenizer_model.empty()) {
    absl::StatusOr<std::string> rebuilt = TokenizerJsonFromSentencePiece(files.tokenizer_model, config);
    if (!rebuilt.ok()) return Annotate(rebuilt.status(), "tokenizer.model");
    files.tokenizer_json = *std::move(rebuilt);
  }
  ARGOSY_ASSIGN_OR_RETURN(Json tokenizer, ParseFile(files.tokenizer_json, "tokenizer.json", true));
  ARGOSY_ASSIGN_OR_RETURN(Json map, ParseFile(files.special_tokens_map_json, "special_tokens_map.json", false));
  ARGOSY_ASSIGN_OR_RETURN(Json extra, ParseFile(files.added_tokens_json, "added_tokens.json", false));
  ARGOSY_ASSIGN_OR_RETURN(Json model_config, ParseFile(files.model_config_json, "config.json", false));
  ARGOSY_ASSIGN_OR_RETURN(Json generation, ParseFile(files.generation_config_json, "generation_config.json", false));
  auto part = [&](const char* key) { return tokenizer.contains(key) ? tokenizer[key] : Json(); };
  try {
    ARGOSY_ASSIGN_OR_RETURN(BpeModel model, BpeModel::Parse(tokenizer["model"]));
    auto impl = std::make_unique<Impl>(std::move(model));
    ARGOSY_ASSIGN_OR_RETURN(impl->normalizer, Normalizer::Parse(part("normalizer")));
    ARGOSY_ASSIGN_OR_RETURN(impl->pre_tokenizer, PreTokenizer::Parse(part("pre_tokenizer")));
    ARGOSY_ASSIGN_OR_RETURN(impl->post_processor, PostProcessor::Parse(part("post_processor")));
    ARGOSY_ASSIGN_OR_RETURN(impl->decoder, Decoder::Parse(part("decoder")));
    ARGOSY_RETURN_IF_ERROR(impl->ReadAddedTokens(tokenizer, config, map, extra));
    for (int32_t id : impl->post_processor.Ids()) {
      int32_t size = std::max(impl->model.IdsEnd(), impl->added.empty() ? 0 : impl->added.rbegin()->first + 1);
      if (id < 0 || id >= size) return InvalidArgument("tokenizer.json: \"post_processor\" adds the id {}, and ids end at {}", id, size - 1);
    }
    impl->files = std::move(files);
    impl->ReadSpecialIds(config, map, generation, model_config);
    return Tokenizer(std::move(impl));
  } catch (const Json::exception& error) {  // a field of the wrong type, read by value()
    return InvalidArgument("tokenizer.json: {}", error.what());
  }
}

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& directory) {
  namespace fs = std::filesystem;
  fs::path folder(directory);
  std::error_code error;
  if (!fs::is_directory(folder, error)) return NotFound("{}: there is no such folder", directory);
  TokenizerFiles files;
  ARGOSY_ASSIGN_OR_RETURN(files.tokenizer_json, ReadIfThere(folder / "tokenizer.json"));
  if (files.tokenizer_json.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(files.tokenizer_model, ReadIfThere(folder / "tokenizer.model"));
    if (files.tokenizer_model.empty()) return NotFound("{} has neither tokenizer.json nor tokenizer.model", directory);
  }
  ARGOSY_ASSIGN_OR_RETURN(files.chat_template_jinja, ReadIfThere(folder / "chat_template.jinja"));
  ARGOSY_ASSIGN_OR_RETURN(files.tokenizer_config_json, ReadIfThere(folder / "tokenizer_config.json"));
  ARGOSY_ASSIGN_OR_RETURN(files.special_tokens_map_json, ReadIfThere(folder / "special_tokens_map.json"));
  ARGOSY_ASSIGN_OR_RETURN(files.added_tokens_json, ReadIfThere(folder / "added_tokens.json"));
  ARGOSY_ASSIGN_OR_RETURN(files.model_config_json, ReadIfThere(folder / "config.json"));
  ARGOSY_ASSIGN_OR_RETURN(files.generation_config_json, ReadIfThere(folder / "generation_config.json"));
  absl::StatusOr<Tokenizer> tokenizer = FromFiles(std::move(files));
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), directory);
  tokenizer->impl_->directory = directory;
  return tokenizer;
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<Piece> Tokenizer::Pieces(std::string_view text) const {
  Piece whole{.text = unicode::IsValid(text) ? std::string(text) : unicode::ToValid(text), .at_start = true};
  std::vector<Piece> raw, pieces;
  impl_->raw_matcher.Split(std::move(whole), raw);
  for (Piece& piece : raw) {
    if (piece.token >= 0) {
      pieces.push_back(std::move(piece));
      continue;
    }
    impl_->normalizer.Apply(piece);
    impl_->normalized_matcher.Split(std::move(piece), pieces);
  }
  impl_->pre_tokenizer.Apply(pieces);
  return pieces;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, EncodeOptions options) const {
  std::vector<int32_t> ids;
  for (const Piece& piece : Pieces(text)) {
    if (piece.token >= 0) ids.push_back(piece.token);
    else impl_->model.Tokenize(piece.text, ids);
  }
  return options.add_special_tokens ? impl_->post_processor.Apply(std::move(ids)) : ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, DecodeOptions options) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (int32_t id : ids) {
    if (options.skip_special_tokens && IsSpecial(id)) continue;
    if (auto normalized = impl_->normalized_contents.find(id); normalized != impl_->normalized_contents.end()) {
      tokens.push_back(normalized->second);
    } else if (auto token = IdToToken(id)) {
      tokens.push_back(*std::move(token));
    }
  }
  return impl_->decoder.Apply(std::move(tokens));
}

std::string TextStream::Push(int32_t id) {
  // What decodes to nothing must not come between the bytes of a character.
  if ((options_.skip_special_tokens && tokenizer_.IsSpecial(id)) || !tokenizer_.IdToToken(id)) return "";
  ids_.push_back(id);
  // A run of byte tokens is text as a whole or not at all.
  if (tokenizer_.IsByte(id)) return "";
  std::string old_text = tokenizer_.Decode(std::span(ids_).first(written_), options_), text = tokenizer_.Decode(ids_, options_);
  if (text.size() <= old_text.size() || text.ends_with("\xef\xbf\xbd")) return "";
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(written_));
  written_ = ids_.size();
  return text.substr(old_text.size());
}

std::string TextStream::Finish() {
  std::string old_text = tokenizer_.Decode(std::span(ids_).first(written_), options_), text = tokenizer_.Decode(ids_, options_);
  ids_.clear();
  written_ = 0;
  return text.substr(std::min(old_text.size(), text.size()));
}

int32_t Tokenizer::VocabularySize() const {
  int32_t end = impl_->model.IdsEnd();
  return impl_->added.empty() ? end : std::max(end, impl_->added.rbegin()->first + 1);
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const { return impl_->TokenToId(token); }

std::optional<std::string> Tokenizer::IdToToken(int32_t id) const {
  if (auto found = impl_->added.find(id); found != impl_->added.end()) return found->second.content;
  if (const std::string* token = impl_->model.IdToToken(id)) return *token;
  return std::nullopt;
}

std::string Tokenizer::Identity() const {
  const TokenizerFiles& files = impl_->files;
  std::string text = files.tokenizer_json + files.tokenizer_model + '\n' + impl_->chat_template;
  for (const auto& [id, token] : impl_->added) {
    text += fmt::format("\n{} {} {}{}{}{}{}", id, token.content, token.single_word, token.lstrip, token.rstrip, token.normalized, token.special);
  }
  for (std::optional<int32_t> id : {impl_->bos, impl_->eos, impl_->pad, impl_->unknown}) text += fmt::format("\n{}", id.value_or(-1));
  return text;
}

bool Tokenizer::IsByte(int32_t id) const {
  std::optional<std::string> token = IdToToken(id);
  return token && token->size() == 6 && token->starts_with("<0x") && token->back() == '>';
}

bool Tokenizer::IsSpecial(int32_t id) const {
  auto found = impl_->added.find(id);
  return found != impl_->added.end() && found->second.special;
}

std::optional<int32_t> Tokenizer::BosId() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::EosId() const { return impl_->eos; }
std::optional<int32_t> Tokenizer::PadId() const { return impl_->pad; }
std::optional<int32_t> Tokenizer::UnknownId() const { return impl_->unknown; }
PaddingSide Tokenizer::padding_side() const { return impl_->padding_side; }
const std::string& Tokenizer::ChatTemplateSource() const { return impl_->chat_template; }

std::vector<AddedToken> Tokenizer::AddedTokens() const {
  std::vector<AddedToken> tokens;
  for (const auto& [id, token] : impl_->added) tokens.push_back(token);
  return tokens;
}

int32_t Tokenizer::AddTokens(std::span<const std::string> contents, AddTokensOptions options) {
  int32_t fresh_count = 0;
  for (const std::string& content : contents) {
    if (content.empty() || impl_->added_ids.contains(content)) continue;
    bool fresh = false;
    impl_->Add({.content = content, .normalized = !options.special, .special = options.special}, fresh);
    fresh_count += fresh;
    impl_->added_changed = true;
  }
  impl_->BuildMatchers();
  return fresh_count;
}

absl::Status Tokenizer::Save(const std::string& directory) const {
  namespace fs = std::filesystem;
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(directory));
  fs::path folder(directory);

  std::string tokenizer_json = impl_->files.tokenizer_json;
  if (impl_->added_changed) {
    OrderedJson list = OrderedJson::array();
    for (const auto& [id, token] : impl_->added) {
      list.push_back({{"id", id}, {"content", token.content}, {"single_word", token.single_word}, {"lstrip", token.lstrip},
                      {"rstrip", token.rstrip}, {"normalized", token.normalized}, {"special", token.special}});
    }
    std::string text = list.dump(2);
    for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 3)) text.insert(at + 1, "  ");
    ARGOSY_ASSIGN_OR_RETURN(std::vector<JsonMember> members, ScanJsonMembers(tokenizer_json));
    auto old = std::find_if(members.begin(), members.end(), [](const JsonMember& m) { return m.key == "added_tokens"; });
    if (old != members.end()) {
      tokenizer_json.replace(old->begin, old->end - old->begin, text);
    } else {
      tokenizer_json.insert(tokenizer_json.find('{') + 1, "\n  \"added_tokens\": " + text + (members.empty() ? "" : ","));
    }
  }
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(folder / "tokenizer.json", tokenizer_json));

  // Both were parsed when the tokenizer was loaded.
  OrderedJson config = impl_->files.tokenizer_config_json.empty() ? OrderedJson::object()
                                                                  : OrderedJson::parse(impl_->files.tokenizer_config_json);
  OrderedJson map = impl_->files.special_tokens_map_json.empty() ? OrderedJson::object()
                                                                 : OrderedJson::parse(impl_->files.special_tokens_map_json);
  OrderedJson& described = config["added_tokens_decoder"];
  if (!described.is_object()) described = OrderedJson::object();
  for (const auto& [id, token] : impl_->added) {
    std::string key = std::to_string(id);
    if (!described.contains(key)) described[key] = Describe(token);
  }
  if (!config.contains("tokenizer_class")) config["tokenizer_class"] = "PreTrainedTokenizerFast";
  for (const char* key : kSpecialTokenKeys) {
    if (!map.contains(key) && config.contains(key) && !config[key].is_null()) map[key] = config[key];
  }
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(folder / "tokenizer_config.json", Dump(config)));
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(folder / "special_tokens_map.json", Dump(map)));

  OrderedJson beyond = OrderedJson::object();
  for (const auto& [id, token] : impl_->added) {
    if (!impl_->model.IdToToken(id)) beyond[token.content] = id;
  }
  if (!beyond.empty()) ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(folder / "added_tokens.json", Dump(beyond)));

  if (!impl_->directory.empty()) {
    for (const char* name : {"tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja"}) {
      fs::path source = fs::path(impl_->directory) / name;
      std::error_code error;
      if (!fs::exists(source, error) || fs::equivalent(source, folder / name, error)) continue;
      ARGOSY_ASSIGN_OR_RETURN(std::string content, ReadFile(source));
      ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(folder / name, content));
    }
  }
  return absl::OkStatus();
}

}  // namespace argosy::train
