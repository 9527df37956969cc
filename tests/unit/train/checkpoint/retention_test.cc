#include "train/checkpoint/retention.h"

#include <cmath>
#include <set>

#include "tests/unit/train/checkpoint/support.h"

namespace argosy::train {
namespace {

SavedCheckpoint At(int64_t step, std::optional<double> perplexity = std::nullopt) {
  SavedCheckpoint checkpoint{.directory = fmt::format("step-{:03}", step), .notes = {.step = step}};
  if (perplexity) checkpoint.notes.metrics["perplexity"] = *perplexity;
  return checkpoint;
}

std::set<int64_t> Removed(const std::vector<SavedCheckpoint>& all, const RetentionPolicy& policy) {
  std::set<int64_t> steps;
  for (const SavedCheckpoint& checkpoint : ChooseRemovals(all, policy)) steps.insert(checkpoint.notes.step);
  return steps;
}

void Save(const std::string& directory, int64_t step, double perplexity) {
  std::vector<TensorSpec> tensors = {{"w", {4}}};
  auto writer = CheckpointWriter::Create({.directory = directory,
                                          .layout = PlanCheckpoint(tensors).value(),
                                          .notes = {.step = step, .epoch = step, .metrics = {{"perplexity", perplexity}}}});
  REQUIRE(writer.ok());
  Fill(**writer);
  REQUIRE((*writer)->Commit().ok());
}

}  // namespace

TEST_CASE("Retention: without a metric the newest stay") {
  std::vector<SavedCheckpoint> all = {At(1), At(2), At(3), At(4)};
  CHECK(Removed(all, {}).empty());
  CHECK(Removed(all, {.num_to_keep = 2}) == std::set<int64_t>{1, 2});
  CHECK(Removed(all, {.num_to_keep = 9}).empty());
  CHECK(Removed(all, {.num_to_keep = 0}) == std::set<int64_t>{1, 2, 3});
}

TEST_CASE("Retention: with a metric the best stay, and the newest in any case") {
  std::vector<SavedCheckpoint> all = {At(1, 5.0), At(2, 3.0), At(3, 4.0), At(4, 9.0)};
  CHECK(Removed(all, {.num_to_keep = 2, .metric = "perplexity"}) == std::set<int64_t>{1});
  CHECK(Removed(all, {.num_to_keep = 1, .metric = "perplexity"}) == std::set<int64_t>{1, 3});
  CHECK(Removed(all, {.num_to_keep = 1, .metric = "perplexity", .higher_is_better = true}) == std::set<int64_t>{1, 2, 3});
  std::vector<SavedCheckpoint> holes = {At(1, 5.0), At(2), At(3, NAN), At(4, 6.0)};
  CHECK(Removed(holes, {.num_to_keep = 2, .metric = "perplexity"}) == std::set<int64_t>{2, 3});
}

TEST_CASE("Retention: finished checkpoints are listed oldest first, others are left alone") {
  TemporaryFolder root;
  Save(root / "epoch-2", 20, 3.0);
  Save(root / "epoch-10", 100, NAN);
  Save(root / "epoch-1", 10, 5.0);
  REQUIRE(MakeDirectories(root / "data").ok());
  Put(root / "data/train.jsonl", "x");
  std::vector<SavedCheckpoint> all = ListCheckpoints(root.path()).value();
  REQUIRE(all.size() == 3);
  CHECK(all[0].directory == root / "epoch-1");
  CHECK(all[2].notes.step == 100);
  CHECK(std::isnan(all[2].notes.metrics["perplexity"]));
  CHECK(ListCheckpoints(root / "nowhere").value().empty());

  REQUIRE(ApplyRetention(root.path(), {.num_to_keep = 1, .metric = "perplexity"}).ok());
  CHECK(Names(root.path()) == std::set<std::string>{"data", "epoch-2", "epoch-10"});
  CHECK_FALSE(RemoveCheckpoint(root / "data").ok());
  CHECK(Names(root / "data").size() == 1);
}

TEST_CASE("Retention: removing a checkpoint keeps files that are not its own, and ends an interrupted removal") {
  TemporaryFolder root;
  Save(root / "a", 1, 1.0);
  Put(root / "a/notes.txt", "precious");
  REQUIRE(RemoveCheckpoint(root / "a").ok());
  CHECK(Names(root / "a") == std::set<std::string>{"notes.txt"});

  Save(root / "b", 2, 1.0);
  Save(root / "c", 3, 1.0);
  std::filesystem::rename(root / "b", root / ".b.removing");
  std::filesystem::remove(root / ".b.removing/model.safetensors");
  REQUIRE(ApplyRetention(root.path(), {}).ok());
  CHECK(Names(root.path()) == std::set<std::string>{"a", "c"});
}

}  // namespace argosy::train
