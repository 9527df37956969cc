#include "train/tokenizer/bpe_trainer.h"

#include <filesystem>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/id.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"

namespace argosy::train {
namespace {

using Ids = std::vector<int32_t>;

std::vector<std::string> Texts() {
  std::vector<std::string> texts;
  for (int i = 0; i < 50; ++i) {
    texts.push_back(fmt::format("<START_Q>How much is {} and {}?<END_Q> That is {}.", i, i + 7, 2 * i + 7));
  }
  return texts;
}

}  // namespace

TEST_CASE("TrainBpe: the most frequent pair becomes the first merge, equal counts by the smaller ids") {
  auto tokenizer = TrainBpe({"ab ab ab", "cd cd cd", "ab"}, {.vocabulary_size = 1 + 256 + 3, .eos_token = "<eos>"});
  REQUIRE(tokenizer.ok());
  // " ab" is of a space and ab: (Ġ a) 2, (a b) 4, (Ġ c) 2, (c d) 3.
  CHECK(tokenizer->IdToToken(257) == "ab");
  CHECK(tokenizer->IdToToken(258) == "cd");
  CHECK(tokenizer->IdToToken(259) == "Ġab");
  CHECK(tokenizer->VocabularySize() == 260);
  CHECK(tokenizer->Encode("ab ab") == Ids{257, 259});
}

TEST_CASE("TrainBpe: special tokens come first and no merge looks into them") {
  auto tokenizer = TrainBpe(Texts(), {.vocabulary_size = 400, .special_tokens = {"<START_Q>", "<END_Q>"}, .bos_token = "<s>", .eos_token = "</s>"});
  REQUIRE(tokenizer.ok());
  CHECK(tokenizer->TokenToId("<START_Q>") == 0);
  CHECK(tokenizer->TokenToId("<END_Q>") == 1);
  CHECK(tokenizer->BosId() == 2);
  CHECK(tokenizer->EosId() == 3);
  CHECK_FALSE(tokenizer->PadId());
  CHECK_FALSE(tokenizer->TokenToId("START"));
  Ids ids = tokenizer->Encode(Texts()[3]);
  CHECK(ids.front() == 0);
  CHECK(tokenizer->Decode(ids, {.skip_special_tokens = false}) == Texts()[3]);
}

TEST_CASE("TrainBpe: digits stay single when asked for") {
  auto tokenizer = TrainBpe(Texts(), {.vocabulary_size = 400, .individual_digits = true});
  REQUIRE(tokenizer.ok());
  CHECK(tokenizer->Encode("1234").size() == 4);
  for (int32_t id = 0; id < tokenizer->VocabularySize(); ++id) {
    std::string token = *tokenizer->IdToToken(id);
    bool digit = token.find_first_of("0123456789") != std::string::npos;
    CHECK((!digit || token.size() == 1));
  }
}

TEST_CASE("TrainBpe: any bytes go there and back") {
  auto tokenizer = TrainBpe(Texts(), {.vocabulary_size = 300});
  REQUIRE(tokenizer.ok());
  for (std::string text : {std::string("\0\x01\x7f", 3), std::string("日本語 🚀 é\n\t  x"), std::string(" ")}) {
    CHECK(tokenizer->Decode(tokenizer->Encode(text)) == text);
  }
}

TEST_CASE("TrainBpe: saved files load with the same ids") {
  std::filesystem::path folder = std::filesystem::temp_directory_path();
  unsigned char random[8];
  internal::FillRandom(random, sizeof(random));
  folder /= "argosy-bpe-test-" + internal::ToHex(random, sizeof(random));
  auto tokenizer = TrainBpe(Texts(), {.vocabulary_size = 350, .special_tokens = {"<START_Q>", "<END_Q>"}, .individual_digits = true,
                                      .bos_token = "<s>", .pad_token = "<pad>", .add_bos = true, .padding_side = PaddingSide::kLeft, .model_max_length = 64});
  REQUIRE(tokenizer.ok());
  REQUIRE(tokenizer->Save(folder).ok());
  auto loaded = Tokenizer::Load(folder);
  REQUIRE(loaded.ok());
  for (const std::string& text : Texts()) CHECK(loaded->Encode(text) == tokenizer->Encode(text));
  CHECK(loaded->Encode("x").front() == *loaded->BosId());
  CHECK(loaded->PadId() == tokenizer->PadId());
  CHECK(loaded->padding_side() == PaddingSide::kLeft);
  auto config = nlohmann::json::parse(*ReadFile(folder / "tokenizer_config.json"));
  CHECK(config["model_max_length"] == 64);
  CHECK(config["tokenizer_class"] == "PreTrainedTokenizerFast");
  std::filesystem::remove_all(folder);
}

TEST_CASE("TrainBpe: equal texts give equal tokenizers; what cannot be is refused") {
  auto a = TrainBpe(Texts(), {.vocabulary_size = 350}), b = TrainBpe(Texts(), {.vocabulary_size = 350});
  REQUIRE((a.ok() && b.ok()));
  for (int32_t id = 0; id < a->VocabularySize(); ++id) CHECK(a->IdToToken(id) == b->IdToToken(id));
  CHECK(Message(TrainBpe({}, {.vocabulary_size = 100}).status()) ==
        "vocabulary_size 100 is too small; 1 special tokens and 256 bytes need 257");
  CHECK_FALSE(TrainBpe({}, {.add_bos = true}).ok());
  auto few = TrainBpe({"ab"}, {.vocabulary_size = 1000});
  REQUIRE(few.ok());
  CHECK(few->VocabularySize() == 257);
}

}  // namespace argosy::train
