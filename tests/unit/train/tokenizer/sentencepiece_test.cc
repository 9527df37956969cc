// tokenizer.model by the SentencePiece library, and as the tokenizer that is rebuilt from it.

#include <filesystem>
#include <fstream>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/prng.h"
#include "runtime/base/status.h"
#include "tests/support/assets.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/train/tokenizer/sentencepiece_oracle.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

// A model trained here: no asset is needed. Byte fallback, identity normalization, extra spaces kept, as Llama's and Mistral's.
std::string TrainModel(const std::string& folder, const std::string& more) {
  std::ofstream text(folder + "/text.txt");
  for (int i = 0; i < 300; ++i) {
    text << "the quick brown fox jumps over the lazy dog " << i << "\n  twice  spaced\tand tabbed, naïve café " << i * 37 << "\nwho would have thought it? "
         << i << " times!\n";
  }
  text.close();
  REQUIRE(SentencePieceOracle::Train("--minloglevel=2 --input=" + folder + "/text.txt --model_prefix=" + folder +
                                     "/tokenizer --vocab_size=420 --bos_id=1 --eos_id=2 --unk_id=0 " + more) == "");
  return *ReadFile(folder + "/tokenizer.model");
}

constexpr const char* kLlamaLike =
    "--model_type=bpe --byte_fallback=true --normalization_rule_name=identity --remove_extra_whitespaces=false --split_digits=true";

// Words of the text, runs of spaces, characters of many scripts, emoji, control characters.
std::string HardText(Prng& prng) {
  static const std::vector<std::string> kPieces = {"the", "quick", "dog", " ", "  ", "   ", "\n", "\t", "naïve", "日本語", "العربية", "हिन्दी", "🙂", "👩‍👩‍👧", "e\u0301",
                                                   "\x01", "\x7f", "1234", "0", "!?", "▁", "zzzzzzzz", "ß", "\u200b", "fox", "over", "\u2028", "\ufeff"};
  std::string text;
  for (uint64_t i = prng.Below(24); i > 0; --i) {
    if (prng.Below(6) == 0) {
      auto c = static_cast<char32_t>(prng.Below(0x11000));
      if (c != 0 && (c < 0xd800 || c > 0xdfff)) unicode::Append(text, c);
    } else {
      text += kPieces[prng.Below(kPieces.size())];
    }
  }
  return text;
}

void Compare(const std::string& folder, uint64_t seed, int texts) {
  SentencePieceOracle library(folder + "/tokenizer.model");
  auto tokenizer = Tokenizer::Load(folder);
  INFO(tokenizer.status());
  REQUIRE(tokenizer.ok());
  CHECK(tokenizer->VocabularySize() == library.PieceCount());
  CHECK(tokenizer->BosId().value_or(-1) == library.BosId());
  Prng prng(seed);
  for (int i = 0; i < texts; ++i) {
    std::string text = HardText(prng);
    INFO(nlohmann::json(text).dump());
    std::vector<int> want = library.Encode(text);
    Ids ids = tokenizer->Encode(text, {.add_special_tokens = false});
    CHECK(ids == Ids(want.begin(), want.end()));
    CHECK(tokenizer->Decode(ids, {.skip_special_tokens = false}) == library.Decode(want));
  }
}

TEST_CASE("SentencePiece: a tokenizer.model alone gives the library's ids and texts") {
  testing::TemporaryFolder folder;
  TrainModel(folder.path(), kLlamaLike);
  REQUIRE(WriteFileAtomic(folder.path() + "/tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>", "legacy": true})").ok());
  Compare(folder.path(), 1, 3000);
}

TEST_CASE("SentencePiece: real models agree with their tokenizer.json and with the library") {
  auto found = testing::FindAsset("tokenizers/mistral-v1");
  if (!found) return;
  fs::path assets = found->parent_path().parent_path();
  for (const char* name : {"tokenizers/mistral-v1", "models/stories260K"}) {
    INFO(name);
    testing::TemporaryFolder folder;
    fs::copy_file(assets / name / "tokenizer.model", folder.path() + "/tokenizer.model");
    if (fs::exists(assets / name / "tokenizer_config.json")) fs::copy_file(assets / name / "tokenizer_config.json", folder.path() + "/tokenizer_config.json");
    else REQUIRE(WriteFileAtomic(folder.path() + "/tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})").ok());
    Compare(folder.path(), 2, 500);
    auto from_json = Tokenizer::Load(assets / name), rebuilt = Tokenizer::Load(folder.path());
    REQUIRE(from_json.ok());
    Prng prng(3);
    for (int i = 0; i < 500; ++i) {
      std::string text = HardText(prng);
      INFO(nlohmann::json(text).dump());
      CHECK(rebuilt->Encode(text) == from_json->Encode(text));
    }
  }
}

TEST_CASE("SentencePiece: a rebuilt tokenizer is saved as a tokenizer.json that gives the same ids") {
  testing::TemporaryFolder folder, saved;
  TrainModel(folder.path(), kLlamaLike);
  auto tokenizer = Tokenizer::Load(folder.path());
  REQUIRE(tokenizer.ok());
  REQUIRE(tokenizer->Save(saved.path()).ok());
  CHECK(fs::exists(saved.path() + "/tokenizer.model"));
  auto again = Tokenizer::Load(saved.path());
  REQUIRE(again.ok());
  Prng prng(4);
  for (int i = 0; i < 300; ++i) {
    std::string text = HardText(prng);
    CHECK(again->Encode(text) == tokenizer->Encode(text));
  }
}

TEST_CASE("SentencePiece: what is not done here is refused by its name, and damage is seen") {
  testing::TemporaryFolder folder;
  auto error_of = [&] { return Message(Tokenizer::Load(folder.path()).status()); };
  TrainModel(folder.path(), "--model_type=unigram --hard_vocab_limit=false");
  CHECK(error_of().find("is of the Unigram kind; supported is BPE") != std::string::npos);
  TrainModel(folder.path(), "--model_type=bpe");
  CHECK(error_of().find("normalizes its text (\"nmt_nfkc\")") != std::string::npos);
  std::string model = TrainModel(folder.path(), kLlamaLike);
  for (size_t size : {size_t{1}, size_t{10}, model.size() / 2, model.size() - 1}) {
    REQUIRE(WriteFileAtomic(folder.path() + "/tokenizer.model", model.substr(0, size)).ok());
    INFO(size);
    CHECK(!Tokenizer::Load(folder.path()).ok());
  }
}

}  // namespace
}  // namespace argosy::train
