#include "train/data/token_cache.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <new>

#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/train/data/scratch.h"
#include "train/tokenizer/bpe_trainer.h"

namespace argosy::train {
namespace {

Tokenizer Bytes() {
  auto tokenizer = TrainBpe({}, {.vocabulary_size = 1 + 256, .eos_token = "<eos>"});
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

bool Same(const SampleSet& a, const SampleSet& b) {
  return std::ranges::equal(a.tokens, b.tokens) && std::ranges::equal(a.begins, b.begins) && std::ranges::equal(a.is_target, b.is_target) &&
         a.counts == b.counts;
}

std::string Rows(int count) {
  std::string rows;
  for (int i = 0; i < count; ++i) rows += fmt::format("{{\"input\": \"question {} = {}\"}}\n", i, i * i);
  return rows + "not a row\n";
}

// What a child does with `mebibytes` more of data than it has: 0 done, 3 out of memory.
template <class F>
int WithMemory(int64_t mebibytes, F work) {
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::ifstream status("/proc/self/status");
    int64_t kilobytes = 0;
    for (std::string word; status >> word;) {
      if (word == "VmData:") status >> kilobytes;
    }
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>((kilobytes << 10) + (mebibytes << 20));
    if (::setrlimit(RLIMIT_DATA, &limit) != 0) ::_exit(9);
    try {
      ::_exit(work() ? 0 : 1);
    } catch (const std::bad_alloc&) {
      ::_exit(3);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("Token cache: it has what reading the rows gives, and is made again when content, tokenizer or options change") {
  Scratch scratch;
  Tokenizer tokenizer = Bytes();
  const std::string path = scratch.Write("rows.jsonl", Rows(200)), folder = scratch / "cache";
  RowOptions options{.ctx_len = 15, .answer_marker = "=", .long_rows = LongRows::kSplit, .skip_bad_rows = true};
  auto read = [&] {
    auto cached = ReadSamplesCached(path, tokenizer, options, folder);
    INFO(cached.status());
    REQUIRE(cached.ok());
    CHECK(Same(cached->samples, ReadSamples(path, tokenizer, options).value()));
    CHECK(Same(OpenTokenCache(cached->path, cached->id).value(), cached->samples));
    return *std::move(cached);
  };
  CachedSamples first = read();
  CHECK(first.note == "made");
  CHECK(first.samples.counts.bad == 1);
  CHECK(first.samples.counts.split > 150);
  CHECK(read().note == "reused");

  options.ctx_len = 20;
  CHECK(read().note.starts_with("made again: options changed (were: ctx_len 15"));
  CHECK(OpenTokenCache(first.path, first.id).status().code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE(tokenizer.AddTokens(std::vector<std::string>{"question"}) == 1);
  CHECK(read().note == "made again: the tokenizer changed");
  // One byte, equal length.
  std::string rows = Rows(200);
  rows[rows.find("question 7 ") + 9] = '8';
  scratch.Write("rows.jsonl", rows);
  CHECK(read().note == "made again: " + path + " changed");
  CHECK(read().note == "reused");
  // The earlier mapping is still the earlier content.
  CHECK(first.samples.size() > 0);
  CHECK(first.samples.tokens.back() == *tokenizer.EosId());
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files += entry.is_regular_file();
  CHECK(files == 1);
}

TEST_CASE("Token cache: damage anywhere is noticed, and a run that failed leaves nothing") {
  Scratch scratch;
  Tokenizer tokenizer = Bytes();
  const std::string path = scratch.Write("rows.jsonl", "{\"input\": \"abc\"}\n{\"input\": \"de\"}\n"), folder = scratch / "cache";
  CachedSamples made = ReadSamplesCached(path, tokenizer, {}, folder).value();
  const std::string good = ReadFile(made.path).value();
  auto noticed = [&](const std::string& content) {
    REQUIRE(WriteFileAtomic(made.path, content).ok());
    INFO(content.size() << " bytes");
    CHECK_FALSE(OpenTokenCache(made.path, made.id).ok());
  };
  for (size_t n = 0; n < good.size(); ++n) noticed(good.substr(0, n));
  size_t harmless = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    REQUIRE(WriteFileAtomic(made.path, damaged).ok());
    auto opened = OpenTokenCache(made.path, made.id);
    // Padding between the parts means nothing.
    if (opened.ok()) CHECK(Same(*opened, made.samples));
    harmless += opened.ok();
  }
  CHECK(harmless < 3 * 64);
  noticed("ARGTOK01");
  CachedSamples again = ReadSamplesCached(path, tokenizer, {}, folder).value();
  CHECK(again.note.starts_with("made again: " + made.path));
  CHECK(ReadFile(made.path).value() == good);

  std::filesystem::remove(made.path);
  scratch.Write("rows.jsonl", "{\"input\": \"abc\"}\n{\"input\": 3}\n");
  auto failed = ReadSamplesCached(path, tokenizer, {}, folder);
  CHECK(Message(failed.status()) == path + ":2: row 2: \"input\" is number; expected text");
  CHECK(std::filesystem::is_empty(folder));
}

TEST_CASE("Token cache: rows whose tokens are more than the memory there is are read, which in memory they cannot be") {
  Scratch scratch;
  Tokenizer tokenizer = Bytes();
  std::string path = scratch / "large.jsonl";
  {
    std::ofstream file(path);
    std::string words;
    while (words.size() < 1000) words += "some words and ";
    for (int i = 0; i < 6000; ++i) file << "{\"input\": \"" << i << words << "\"}\n";
  }
  const int64_t tokens = static_cast<int64_t>(std::filesystem::file_size(path));   // about: a byte is a token of 4
  constexpr int64_t kMebibytes = 16;
  REQUIRE(4 * tokens > (kMebibytes << 20) * 5 / 4);
  RowOptions options{.ctx_len = 2048};
  CHECK(WithMemory(kMebibytes, [&] { return ReadSamples(path, tokenizer, options).ok(); }) == 3);
  CHECK(WithMemory(kMebibytes, [&] {
          auto cached = ReadSamplesCached(path, tokenizer, options, scratch / "cache");
          if (!cached.ok() || cached->samples.size() != 6000) return false;
          int64_t targets = 0;
          for (int64_t i = 0; i < 6000; ++i) targets += cached->samples.Length(i) - 1;
          return targets == cached->samples.counts.target_tokens;
        }) == 0);
  auto reused = ReadSamplesCached(path, tokenizer, options, scratch / "cache");
  REQUIRE(reused.ok());
  CHECK(reused->note == "reused");
}

}  // namespace argosy::train
