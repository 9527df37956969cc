// Runs every target of targets.h over its corpus and over mutations of it that a seed alone decides, so that the same inputs are tried
// everywhere. A failure leaves the input in the working folder as "fuzz-TARGET.input":
//
//   fuzz_corpus_test [--mutations N] [TARGET [FILE]]
//
// With clang, the preset "fuzz" builds fuzz_TARGET for libFuzzer, on the same corpus: fuzz_jinja NEW_FOLDER tests/fuzz/corpus/jinja. What that finds is
// kept in the corpus.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/file.h"
#include "runtime/base/prng.h"
#include "runtime/base/status.h"
#include "tests/fuzz/targets.h"

namespace argosy::fuzz {
namespace {

std::string current_name;
std::string_view current_input;

void KeepInput(int number) {
  int fd = ::open(current_name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && ::write(fd, current_input.data(), current_input.size()) >= 0) ::close(fd);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

// Pieces that readers of JSON, templates and headers stumble over.
constexpr std::string_view kPieces[] = {
    "{", "}", "[", "]", "\"", "\\", ",", ":", "{%", "%}", "{{", "}}", "{#", "-%}", "null", "true", "\"auto\"", "-1", "0", "1e999", "5e8", "0.1", "9223372036854775807",
    "-9223372036854775808", "18446744073709551616", "\xff", "\xc3", "\xef\xbb\xbf", "\\ud800", "\\u0000", std::string_view("\0", 1), "\n", "\r\n", "((((((((", "[[[[[[[[",
    "{\"a\":{\"a\":", " for x in range(1000000) ", " * 1000000000 ", "{% for a in 'aaaa' %}", "endfor", "(a+)+$", "\\p{L}", "[^\\s]*+", ".*"};

std::string Mutate(const std::string& seed, const std::vector<std::string>& corpus, Prng& prng) {
  std::string input = seed;
  for (uint64_t edits = 1 + prng.Below(4); edits > 0; --edits) {
    size_t at = prng.Below(input.size() + 1), count = std::min<size_t>(input.size() - at, 1 + prng.Below(prng.Below(8) == 0 ? 200 : 8));
    switch (prng.Below(6)) {
      case 0: if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1u << prng.Below(8))); break;
      case 1: input.erase(at, count); break;
      case 2: input.insert(at, input.substr(at, count)); break;
      case 3: input.insert(at, kPieces[prng.Below(std::size(kPieces))]); break;
      case 4: input.replace(at, count, kPieces[prng.Below(std::size(kPieces))]); break;
      case 5: {
        const std::string& other = corpus[prng.Below(corpus.size())];
        size_t from = prng.Below(other.size() + 1);
        input.replace(at, count, other.substr(from, prng.Below(100)));
        break;
      }
    }
  }
  return input;
}

void Run(const Target& target, const std::string& input, double& slowest) {
  current_input = input;
  auto begin = std::chrono::steady_clock::now();
  target.run(input);
  slowest = std::max(slowest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

int Main(int argc, char** argv) {
  uint64_t mutations = 2000;
  std::string_view only, file;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) mutations = std::strtoull(argv[++i], nullptr, 10);
    else if (only.empty()) only = argv[i];
    else file = argv[i];
  }
  for (int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGALRM}) ::signal(number, KeepInput);
  size_t ran = 0;
  for (const Target& target : Targets()) {
    if (!only.empty() && target.name != only) continue;
    current_name = fmt::format("fuzz-{}.input", target.name);
    std::vector<std::string> paths, corpus;
    if (!file.empty()) paths.emplace_back(file);
    else for (const auto& entry : std::filesystem::directory_iterator(fmt::format("tests/fuzz/corpus/{}", target.name))) paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) {
      absl::StatusOr<std::string> content = ReadFile(path);
      if (!content.ok()) {
        std::fprintf(stderr, "%s\n", Message(content.status()).c_str());
        return 2;
      }
      corpus.push_back(*std::move(content));
    }
    double slowest = 0;
    size_t inputs = 0;
    Prng prng(7);
    for (size_t i = 0; i < corpus.size(); ++i) {
      ::alarm(20);   // a reader that does not come to an end is a failure too
      Run(target, corpus[i], slowest);
      for (uint64_t m = 0; m < (file.empty() ? mutations : 0); ++m) {
        ::alarm(20);
        Run(target, Mutate(corpus[i], corpus, prng), slowest);
      }
      inputs += 1 + (file.empty() ? mutations : 0);
    }
    ::alarm(0);
    std::printf("%-12s %zu files, %zu inputs, slowest %.3f s\n", std::string(target.name).c_str(), corpus.size(), inputs, slowest);
    if (corpus.empty()) return 1;
    ran += inputs;
  }
  return ran > 0 ? 0 : 2;
}

}  // namespace
}  // namespace argosy::fuzz

int main(int argc, char** argv) { return argosy::fuzz::Main(argc, argv); }
