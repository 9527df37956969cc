// Replays tests/scenario/*.txt. ARGOSY_REWRITE=1 writes what happened into the files instead of comparing.

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/scenario/scheduler_world.h"
#include "tests/scenario/transcript.h"
#include "tests/support/catch.h"

namespace argosy::scenario {
namespace {

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

}  // namespace

TEST_CASE("Scenarios: each transcript happens as it is written") {
  const bool rewrite = std::getenv("ARGOSY_REWRITE") != nullptr;
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/scenario")) {
    if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt") paths.insert(entry.path());
  }
  REQUIRE(!paths.empty());
  for (const auto& path : paths) {
    const std::string text = ReadAll(path);
    Transcript transcript = ParseTranscript(text);
    SchedulerWorld world;
    REQUIRE(!transcript.blocks.empty());
    for (Transcript::Block& block : transcript.blocks) {
      std::string actual;
      for (const std::string& line : block.input) {
        try {
          actual += world.Run(line);
        } catch (const std::exception& error) {
          FAIL(path.string() << ":" << block.line << ": \"" << line << "\": " << error.what());
        }
      }
      if (!rewrite && actual != block.expected) {
        FAIL_CHECK(path.string() << ":" << block.line << "\nexpected:\n" << block.expected << "actual:\n" << actual);
      }
      block.expected = actual;
    }
    if (rewrite) {
      std::ofstream(path) << PrintTranscript(transcript);
    } else {
      // The file is in the form that a rewrite gives, so that a rewrite shows only what changed.
      CHECK(ParseTranscript(PrintTranscript(transcript)).blocks.size() == transcript.blocks.size());
    }
  }
}

TEST_CASE("Scenarios: a transcript prints as it was read") {
  const std::string text = "# about\n\n# first\na\nb\n----\nx\n\nc\n----\n";
  Transcript transcript = ParseTranscript(text);
  REQUIRE(transcript.blocks.size() == 2);
  CHECK(transcript.blocks[0].input == std::vector<std::string>{"a", "b"});
  CHECK(transcript.blocks[0].expected == "x\n");
  CHECK(transcript.blocks[1].expected.empty());
  CHECK(PrintTranscript(transcript) == text);
}

}  // namespace argosy::scenario
