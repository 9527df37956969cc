#include "runtime/node/worker_prints.h"

#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/run_until.h"
#include "tests/support/temporary_folder.h"

namespace argosy::node {
namespace {

struct PrintsFixture {
  explicit PrintsFixture(WorkerPrintsOptions options = {}) {
    std::filesystem::create_directory(folder / "logs");
    options.session_dir = folder.path();
    options.node_name = "here";
    prints.emplace(loop, options, [this](JobPrints message) {
      for (PrintedLines& lines : message.lines) {
        CHECK(message.job == job);
        shown.push_back(std::move(lines));
      }
    });
    Write(".out", "");
    Write(".err", "");
  }
  void Write(const std::string& suffix, const std::string& text) {
    std::ofstream(folder / ("logs/worker-" + worker.Hex() + suffix), std::ios::app) << text;
  }
  std::string Text() const {
    std::string text;
    for (const PrintedLines& lines : shown) text += lines.text;
    return text;
  }
  testing::TemporaryFolder folder;
  async::Loop loop;
  const WorkerId worker = WorkerId::FromNumber(7);
  const JobId job = JobId::FromNumber(1);
  std::vector<PrintedLines> shown;
  std::optional<WorkerPrints> prints;
};

}  // namespace

TEST_CASE("WorkerPrints: whole lines come as they are written, a line without an end when its worker ends") {
  PrintsFixture f;
  f.prints->Add(f.worker, f.job, 12);
  f.Write(".out", "one\ntw");
  REQUIRE(testing::RunUntil(f.loop, [&] { return f.Text() == "one\n"; }));
  CHECK(f.shown[0].pid == 12);
  CHECK(f.shown[0].node_name == "here");
  CHECK_FALSE(f.shown[0].is_error);
  f.Write(".out", "o\nthr");
  f.Write(".err", "bad\n");
  REQUIRE(testing::RunUntil(f.loop, [&] { return f.shown.size() == 3; }));
  CHECK(f.shown[1].text == "two\n");
  CHECK(f.shown[2].text == "bad\n");
  CHECK(f.shown[2].is_error);
  f.prints->Ended(f.worker);
  REQUIRE(f.shown.size() == 4);
  CHECK(f.shown[3].text == "thr\n");
}

TEST_CASE("WorkerPrints: each byte has the name of the function that wrote it") {
  PrintsFixture f;
  auto names = wire::PrintedNames::Create(wire::PrintedNamesPath(f.folder.path(), f.worker.Hex()));
  REQUIRE(names.ok());
  f.prints->Add(f.worker, f.job, 12);
  names->Add(0, 0, "First");
  f.Write(".out", "a\nb\n");
  names->Add(4, 0, "Second");
  names->Add(4, 0, "Third");
  f.Write(".out", "c\n");
  f.Write(".err", "d\n");
  f.prints->Flush(f.job);
  REQUIRE(f.shown.size() == 3);
  CHECK((f.shown[0].name == "First" && f.shown[0].text == "a\nb\n"));
  CHECK((f.shown[1].name == "Third" && f.shown[1].text == "c\n"));
  CHECK((f.shown[2].name == "Third" && f.shown[2].is_error));
}

TEST_CASE("WorkerPrints: notes that were overwritten leave their bytes without a name, and no wrong one") {
  PrintsFixture f;
  auto names = wire::PrintedNames::Create(wire::PrintedNamesPath(f.folder.path(), f.worker.Hex()));
  REQUIRE(names.ok());
  f.prints->Add(f.worker, f.job, 12);
  for (uint64_t i = 0; i < 100; ++i) names->Add(2 * i, 0, std::to_string(i));
  std::string text;
  for (int i = 0; i < 100; ++i) text += "x\n";
  f.Write(".out", text);
  f.prints->Flush(f.job);
  REQUIRE(f.Text() == text);
  CHECK(f.shown.front().name.empty());
  CHECK(f.shown.front().text.size() == 2 * 36);
  CHECK(f.shown[1].name == "36");
  CHECK(f.shown.back().name == "99");
}

TEST_CASE("WorkerPrints: who is too far behind is skipped to whole lines near the end, with a count") {
  PrintsFixture f({.bytes_a_period = 1000, .behind_max = 10'000});
  f.prints->Add(f.worker, f.job, 12);
  std::string line(99, 'x');
  for (int i = 0; i < 500; ++i) f.Write(".out", line + "\n");
  f.Write(".out", "the end\n");
  f.prints->Flush(f.job);
  REQUIRE_FALSE(f.shown.empty());
  CHECK(f.shown.front().skipped + f.Text().size() == 50'008);
  CHECK(f.Text().size() <= 1000);
  CHECK(f.shown.front().text.starts_with(line + "\n"));
  CHECK(f.Text().ends_with("the end\n"));
}

TEST_CASE("WorkerPrints: one job's workers share its bound, and each gets its turn") {
  PrintsFixture f({.period = absl::Milliseconds(5), .bytes_a_period = 100, .job_bytes_a_period = 100});
  WorkerId other = WorkerId::FromNumber(8);
  for (const char* suffix : {".out", ".err"}) std::ofstream(f.folder / ("logs/worker-" + other.Hex() + suffix), std::ios::app);
  std::ofstream more(f.folder / ("logs/worker-" + other.Hex() + ".out"), std::ios::app);
  for (int i = 0; i < 50; ++i) {
    f.Write(".out", "0123456789012345678\n");
    more << "abcdefghijklmnopqrs\n" << std::flush;
  }
  f.prints->Add(f.worker, f.job, 12);
  f.prints->Add(other, f.job, 13);
  REQUIRE(testing::RunUntil(f.loop, [&] { return f.Text().size() >= 400; }));
  std::map<uint32_t, size_t> by_pid;
  for (const PrintedLines& lines : f.shown) by_pid[lines.pid] += lines.text.size();
  CHECK(by_pid.size() == 2);
  REQUIRE(testing::RunUntil(f.loop, [&] { return f.Text().size() == 2000; }));
}

TEST_CASE("WorkerPrints: a muted job is not read") {
  PrintsFixture f;
  f.prints->Mute(f.job);
  f.prints->Add(f.worker, f.job, 12);
  f.Write(".out", "unseen\n");
  f.prints->Flush(f.job);
  f.prints->Ended(f.worker);
  CHECK(f.shown.empty());
}

TEST_CASE("WorkerPrints: a worker that was silent for long is read when it prints again") {
  PrintsFixture f({.period = absl::Milliseconds(5)});
  f.prints->Add(f.worker, f.job, 12);
  f.Write(".out", "one\n");
  REQUIRE(testing::RunUntil(f.loop, [&] { return f.Text() == "one\n"; }));
  for (int i = 0; i < 3; ++i) {
    size_t before = f.Text().size();
    // Nothing is due: the loop has no timer left but this one.
    bool passed = false;
    async::Timer quiet(f.loop);
    quiet.After(absl::Milliseconds(50), [&] { passed = true; });
    REQUIRE(testing::RunUntil(f.loop, [&] { return passed; }));
    f.Write(i % 2 == 0 ? ".err" : ".out", "more\n");
    REQUIRE(testing::RunUntil(f.loop, [&] { return f.Text().size() == before + 5; }));
  }
}

}  // namespace argosy::node
