#include "train/tokenizer/tokenizer.h"

#include <chrono>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/id.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tokenizer/json_scan.h"
#include "train/tokenizer/regex.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// A tokenizer of the letters a to e, the space and ▁, with the merges ab, abc, de; other parts are set by the test.
Json Letters() {
  return Json::parse(R"({
    "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": null, "fuse_unk": false, "byte_fallback": false,
      "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, " ": 5, "▁": 6, "ab": 7, "abc": 8, "de": 9, "?": 10, "<0xC3>": 11, "<0xA9>": 12},
      "merges": ["a b", ["ab", "c"], "d e"]}})");
}

Tokenizer Make(const Json& json, const std::string& config = "", const std::string& map = "") {
  auto tokenizer = Tokenizer::FromFiles({.tokenizer_json = json.dump(), .tokenizer_config_json = config, .special_tokens_map_json = map});
  INFO(tokenizer.status());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::string ErrorOf(const Json& json) { return Message(Tokenizer::FromFiles({.tokenizer_json = json.dump()}).status()); }

Json Added(int id, const std::string& content, Json more = Json::object()) {
  Json token = {{"id", id}, {"content", content}, {"single_word", false}, {"lstrip", false}, {"rstrip", false}, {"normalized", false}, {"special", true}};
  token.update(more);
  return token;
}

}  // namespace

TEST_CASE("Tokenizer: merges go by rank, and both spellings of a merge are read") {
  Tokenizer tokenizer = Make(Letters());
  CHECK(tokenizer.Encode("abcde") == Ids{8, 9});
  CHECK(tokenizer.Encode("aab") == Ids{0, 7});
  CHECK(tokenizer.Encode("") == Ids{});
  CHECK(tokenizer.Decode(Ids{8, 9, 999, -1}) == "abcde");
  CHECK(tokenizer.VocabularySize() == 13);
}

TEST_CASE("Tokenizer: what the vocabulary lacks becomes bytes, the unknown token, or nothing") {
  Json json = Letters();
  CHECK(Make(json).Encode("aéb") == Ids{7});
  json["model"]["byte_fallback"] = true;
  CHECK(Make(json).Encode("aéb") == Ids{0, 11, 12, 1});
  json["model"]["unk_token"] = "?";
  CHECK(Make(json).Encode("aéüüb") == Ids{0, 11, 12, 10, 10, 1});
  json["model"]["fuse_unk"] = true;
  CHECK(Make(json).Encode("aüüb") == Ids{0, 10, 1});
}

TEST_CASE("Tokenizer: ill-formed text is read as U+FFFD") {
  Json json = Letters();
  json["model"]["unk_token"] = "?";
  CHECK(Make(json).Encode("a\xff" "b") == Ids{0, 10, 1});
  CHECK(unicode::ToValid("a\xe2\x82z\xf0\x9f\x92") == "a\xef\xbf\xbdz\xef\xbf\xbd");
  CHECK_FALSE(unicode::IsValid("\xed\xa0\x80"));
}

TEST_CASE("Tokenizer: ignore_merges takes a whole piece that is a token") {
  Json json = Letters();
  json["model"]["vocab"]["edc"] = 13;
  CHECK(Make(json).Encode("edc") == Ids{4, 3, 2});
  json["model"]["ignore_merges"] = true;
  CHECK(Make(json).Encode("edc") == Ids{13});
}

TEST_CASE("Tokenizer: added tokens are found first, the longest at the leftmost place") {
  Json json = Letters();
  json["added_tokens"] = {Added(20, "ab"), Added(21, "abcd"), Added(22, "cab")};
  Tokenizer tokenizer = Make(json);
  // "ab" is in the vocabulary and keeps its id; the others follow the vocabulary.
  CHECK(tokenizer.Encode("abcdab") == Ids{13, 7});
  CHECK(tokenizer.Encode("cabcd") == Ids{14, 2, 3});
  CHECK(tokenizer.Decode(Ids{7, 0}) == "a");
  CHECK(tokenizer.Decode(Ids{7, 0}, {.skip_special_tokens = false}) == "aba");
}

TEST_CASE("Tokenizer: added tokens strip, stand alone and see normalized text as they say") {
  Json json = Letters();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = {Added(13, "<l>", {{"lstrip", true}}), Added(14, "<r>", {{"rstrip", true}}), Added(15, "cc", {{"single_word", true}}),
                          Added(16, "DD", {{"normalized", true}})};
  Tokenizer tokenizer = Make(json);
  CHECK(tokenizer.Encode("a <l> b") == Ids{0, 13, 5, 1});
  CHECK(tokenizer.Encode("a <r> b") == Ids{0, 5, 14, 1});
  CHECK(tokenizer.Encode("cc accb") == Ids{15, 5, 0, 2, 2, 1});
  CHECK(tokenizer.Encode("dddd") == Ids{16, 16});
  CHECK(tokenizer.Encode("dDD") == Ids{16, 3});
}

TEST_CASE("Tokenizer: the post-processor's tokens are added unless told otherwise") {
  Json json = Letters();
  json["added_tokens"] = {Added(13, "<s>"), Added(14, "</s>")};
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [13], "tokens": ["<s>"]}, "</s>": {"id": "</s>", "ids": [14], "tokens": ["</s>"]}}})");
  Tokenizer tokenizer = Make(json);
  CHECK(tokenizer.Encode("a") == Ids{13, 0, 14});
  CHECK(tokenizer.Encode("a", {.add_special_tokens = false}) == Ids{0});
}

TEST_CASE("Tokenizer: Metaspace cuts in front of spaces and writes them back") {
  Json json = Letters();
  Json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  json["pre_tokenizer"] = metaspace;
  json["decoder"] = metaspace;
  json["added_tokens"] = {Added(13, "<s>")};
  Tokenizer tokenizer = Make(json);
  CHECK(tokenizer.Encode("ab ab") == Ids{6, 7, 6, 7});
  CHECK(tokenizer.Encode("<s>ab") == Ids{13, 7});
  CHECK(tokenizer.Decode(Ids{6, 7, 6, 7}) == "ab ab");
}

TEST_CASE("Tokenizer: ids of BOS, EOS and PAD come from the config, the map, then the model's config") {
  Json json = Letters();
  json["added_tokens"] = {Added(13, "<s>"), Added(14, "</s>")};
  auto tokenizer = Tokenizer::FromFiles({.tokenizer_json = json.dump(),
                                         .tokenizer_config_json = R"({"bos_token": {"content": "<s>"}, "padding_side": "left", "pad_token": null})",
                                         .special_tokens_map_json = R"({"eos_token": "</s>"})",
                                         .model_config_json = R"({"pad_token_id": 3, "eos_token_id": [1, 2], "bos_token_id": 9})"});
  REQUIRE(tokenizer.ok());
  CHECK(tokenizer->BosId() == 13);
  CHECK(tokenizer->EosId() == 14);
  CHECK(tokenizer->PadId() == 3);
  CHECK_FALSE(tokenizer->UnknownId());
  CHECK(tokenizer->padding_side() == PaddingSide::kLeft);
  CHECK(Make(json, R"({"tokenizer_class": "LlamaTokenizer"})").padding_side() == PaddingSide::kLeft);
  CHECK(Make(json, R"({"tokenizer_class": "GPT2Tokenizer"})").padding_side() == PaddingSide::kRight);
}

TEST_CASE("Tokenizer: tokens that only tokenizer_config.json knows are added") {
  Tokenizer tokenizer = Make(Letters(), R"({"added_tokens_decoder": {"13": {"content": "<x>", "special": true}}, "eos_token": "<eos>"})");
  CHECK(tokenizer.Encode("a<x>a") == Ids{0, 13, 0});
  CHECK(tokenizer.EosId() == 14);
  CHECK(tokenizer.IsSpecial(14));
}

TEST_CASE("Tokenizer: AddTokens appends ids, and saved files give them again") {
  testing::TemporaryFolder folder;
  Json json = Letters();
  json["added_tokens"] = {Added(13, "<s>")};
  json["extra"] = {{"kept", 1.50}};
  std::string source = json.dump(1);
  auto tokenizer = Tokenizer::FromFiles({.tokenizer_json = source, .tokenizer_config_json = R"({"bos_token": "<s>", "chat_template": "x", "model_max_length": 77})"});
  REQUIRE(tokenizer.ok());
  REQUIRE(tokenizer->Save(folder / "same").ok());
  CHECK(*ReadFile(folder / "same/tokenizer.json") == source);

  CHECK(tokenizer->AddTokens(std::vector<std::string>{"<START_Q>", "ab", "<START_Q>", "<END_Q>"}) == 2);
  CHECK(tokenizer->AddTokens(std::vector<std::string>{"<END_Q>"}) == 0);
  CHECK(tokenizer->VocabularySize() == 16);
  Ids ids = tokenizer->Encode("<START_Q>abc<END_Q>");
  CHECK(ids == Ids{14, 7, 2, 15});
  REQUIRE(tokenizer->Save(folder / "more").ok());
  auto again = Tokenizer::Load(folder / "more");
  REQUIRE(again.ok());
  CHECK(again->Encode("<START_Q>abc<END_Q>") == ids);
  CHECK(again->IsSpecial(15));
  CHECK(again->BosId() == 13);

  Json saved = Json::parse(*ReadFile(folder / "more/tokenizer.json"));
  CHECK(saved["extra"]["kept"] == 1.5);
  CHECK(saved["model"] == json["model"]);
  CHECK(saved["added_tokens"].size() == 4);
  Json config = Json::parse(*ReadFile(folder / "more/tokenizer_config.json"));
  CHECK(config["chat_template"] == "x");
  CHECK(config["model_max_length"] == 77);
  CHECK(config["added_tokens_decoder"]["15"]["content"] == "<END_Q>");
  CHECK(Json::parse(*ReadFile(folder / "more/added_tokens.json")) == Json{{"<s>", 13}, {"<START_Q>", 14}, {"<END_Q>", 15}});
  CHECK(Json::parse(*ReadFile(folder / "more/special_tokens_map.json")) == Json{{"bos_token", "<s>"}});
}

TEST_CASE("Tokenizer: what is not supported is refused by its name") {
  auto with = [](const char* key, Json value) {
    Json json = Letters();
    json[key] = std::move(value);
    return ErrorOf(json);
  };
  CHECK(with("normalizer", {{"type", "Nmt"}}).starts_with("normalizer Nmt is not supported"));
  CHECK(with("pre_tokenizer", {{"type", "UnicodeScripts"}}).starts_with("pre_tokenizer UnicodeScripts is not supported"));
  CHECK(with("post_processor", {{"type", "Other"}}).starts_with("post_processor Other is not supported"));
  CHECK(with("decoder", {{"type", "CTC"}}).starts_with("decoder CTC is not supported"));
  CHECK(with("model", {{"type", "Unigram"}}) == "model type Unigram is not supported; supported: BPE");
  CHECK(with("normalizer", 5) == "normalizer: expected an object, not number");
  Json json = Letters();
  json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "[a-z&&[^b]]"}}}, {"behavior", "Isolated"}};
  CHECK(ErrorOf(json).find("class intersection") != std::string::npos);
  json["pre_tokenizer"]["pattern"]["Regex"] = "(a";
  CHECK(ErrorOf(json).find("does not compile") != std::string::npos);
  json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", 3}};
  CHECK_FALSE(ErrorOf(json).empty());
  json = Letters();
  json["model"]["dropout"] = 0.1;
  CHECK(ErrorOf(json).find("dropout") != std::string::npos);
  json = Letters();
  json["model"]["merges"].push_back("a z");
  CHECK(ErrorOf(json) == "model: merge 3 of \"a\" and \"z\" needs \"z\" in the vocabulary");
  json = Letters();
  json["model"]["vocab"]["f"] = 4;
  CHECK(ErrorOf(json).find("have the same id 4") != std::string::npos);
  CHECK(Message(Tokenizer::FromFiles({.tokenizer_json = "{"}).status()) == "tokenizer.json is not valid JSON");
}

TEST_CASE("Tokenizer: a folder without a tokenizer says so") {
  testing::TemporaryFolder folder;
  CHECK(Message(Tokenizer::Load(folder.path()).status()).find("has neither tokenizer.json nor tokenizer.model") != std::string::npos);
  REQUIRE(WriteFileAtomic(folder / "tokenizer.model", "not one").ok());
  CHECK(Message(Tokenizer::Load(folder.path()).status()).find("is no SentencePiece model") != std::string::npos);
}

TEST_CASE("TextStream: the pieces are the whole text, and no character is cut") {
  Json bytes = Letters();
  for (int i = 0; i < 256; ++i) bytes["model"]["vocab"][fmt::format("<0x{:02X}>", i)] = 100 + i;
  bytes["model"]["vocab"]["<end>"] = 500;
  bytes["added_tokens"] = {Added(500, "<end>")};
  bytes["decoder"] = Json::parse(R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                     {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  Json level = Letters();
  for (int i = 0; i < 256; ++i) {
    std::string c;
    unicode::Append(c, unicode::ByteToCodePoint(static_cast<uint8_t>(i)));
    if (!level["model"]["vocab"].contains(c)) level["model"]["vocab"][c] = 100 + i;
  }
  level["decoder"] = {{"type", "ByteLevel"}};
  uint64_t state = 7;
  for (const Json& json : {bytes, level}) {
    Tokenizer tokenizer = Make(json);
    for (int round = 0; round < 400; ++round) {
      Ids ids;
      // Tokens, whole characters in bytes, and bytes that are none.
      std::string emoji = "🙂";
      for (int i = 0; i < 12; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        auto pick = static_cast<uint32_t>(state >> 33);
        if (pick % 3 == 0) {
          for (char c : emoji) ids.push_back(100 + static_cast<uint8_t>(c));
        } else {
          ids.push_back(pick % 3 == 1 ? static_cast<int32_t>(pick / 3 % 10) : 100 + static_cast<int32_t>(pick / 3 % 256));
        }
        if (pick % 50 == 0) ids.push_back(pick % 100 == 0 ? 500 : 777);   // a special token, or none
      }
      for (bool skip : {false, true}) {
        TextStream stream(tokenizer, {.skip_special_tokens = skip});
        std::string text;
        for (int32_t id : ids) {
          std::string piece = stream.Push(id);
          CHECK(unicode::IsValid(piece));
          text += piece;
        }
        text += stream.Finish();
        INFO(Json(ids).dump());
        CHECK(text == tokenizer.Decode(ids, {.skip_special_tokens = skip}));
      }
    }
  }
}

TEST_CASE("Tokenizer: a megabyte without a space takes time near-linear in its length") {
  Json json = Letters();
  Tokenizer tokenizer = Make(json);
  auto seconds = [&](size_t size) {
    std::string text;
    while (text.size() < size) text += "abcdeabdeabccab";
    auto start = std::chrono::steady_clock::now();
    size_t tokens = tokenizer.Encode(text).size();
    REQUIRE(tokens > size / 4);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds(1 << 16);
  // Quadratic merging would take minutes here; 20 s leaves room for a busy machine and sanitizers.
  CHECK(seconds(1 << 20) < 20);
}

TEST_CASE("Regex: Oniguruma's spellings mean the same here") {
  auto found = [](std::string_view pattern, std::string_view text) {
    auto regex = Regex::Compile(pattern);
    INFO(regex.status());
    REQUIRE(regex.ok());
    std::vector<std::string> parts;
    for (auto [begin, end] : regex->FindAll(text)) parts.emplace_back(text.substr(begin, end - begin));
    return parts;
  };
  using Parts = std::vector<std::string>;
  CHECK(found(R"(\p{N}{1,3}+)", "1234567 8") == Parts{"1234567", "8"});
  CHECK(found(R"(\w+)", "a\u0301_\u00b2 b") == Parts{"a\u0301_\u00b2", "b"});
  CHECK(found(R"(\s+)", "a\u180e\u00a0\u3000b") == Parts{"\u00a0\u3000"});
  CHECK(found(R"([\h]+)", "xBEEF") == Parts{"BEEF"});
  CHECK(found(R"((?m:a.))", "a\nab") == Parts{"a\n", "ab"});
  CHECK(found(R"(^b$)", "a\nb\nc") == Parts{"b"});
  CHECK(found(R"(ab{,2}c)", "ac abbc abbbc") == Parts{"ac", "abbc"});
  CHECK(found(R"(\bof\b)", "of of\u24b6 \u00e9of") == Parts{"of"});
  CHECK(found("x*", "axb") == Parts{"", "x", ""});
  CHECK(found(R"((?i:'s|'t))", "'S 't '\u017f") == Parts{"'S", "'t", "'\u017f"});
}

TEST_CASE("ScanJsonMembers: finds values in order and says where JSON breaks") {
  std::string text = "{\"b\": [1, {\"]\": \"}\"}],\n \"a\\u0041\" : \"x\\\"}\" , \"c\":-1.5e3}";
  auto members = ScanJsonMembers(text);
  REQUIRE(members.ok());
  REQUIRE(members->size() == 3);
  auto value = [&](size_t i) { return text.substr(members->at(i).begin, members->at(i).end - members->at(i).begin); };
  CHECK(members->at(0).key == "b");
  CHECK(value(0) == "[1, {\"]\": \"}\"}]");
  CHECK(members->at(1).key == "aA");
  CHECK(value(1) == "\"x\\\"}\"");
  CHECK(value(2) == "-1.5e3");
  CHECK(Message(ScanJsonMembers("{\"a\": 1\n \"b\": 2}").status()).starts_with("line 2: expected ',' or '}'"));
  CHECK_FALSE(ScanJsonMembers("[1, 2").ok());
  CHECK_FALSE(ScanJsonMembers("[1,]").ok());
  CHECK_FALSE(ScanJsonMembers("[1] 2").ok());
  CHECK(ScanJsonMembers("[]")->empty());
}

}  // namespace argosy::train
