#include "train/trainer/run_log.h"

#include <cstring>
#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "train/trainer/event_file.h"

namespace argosy::train {
namespace {

using testing::TemporaryFolder;

// Lengths of the records of an event file; the checks of their framing against the bytes that TensorFlow's own writer makes are below.
std::vector<std::string> Records(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    REQUIRE(at + 12 <= file.size());
    uint64_t length;
    std::memcpy(&length, file.data() + at, 8);
    REQUIRE(at + 16 + length <= file.size());
    records.push_back(file.substr(at + 12, length));
    at += 16 + length;
  }
  return records;
}

TEST_CASE("Event file: its head is byte for byte what TensorBoard's writers begin with") {
  // Event{wall_time: 1, file_version: "brain.Event:2"}: 24 bytes; the masked CRC-32C of the length 24 is a3 7f 4b 22.
  std::string head = EventFileHead(1.0);
  const unsigned char want[] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22, 0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x1a, 0x0d};
  REQUIRE(head.size() == 12 + 24 + 4);
  CHECK(std::memcmp(head.data(), want, sizeof want) == 0);
  CHECK(head.substr(23, 13) == "brain.Event:2");
}

TEST_CASE("Event file: a step's scalars are in one event with its number") {
  std::vector<std::string> records = Records(ScalarEvent(2.0, 300, {{"train/loss", 1.5}, {"train/lr", 0.25}}));
  REQUIRE(records.size() == 1);
  const std::string& event = records[0];
  CHECK(event.substr(9, 3) == std::string("\x10\xac\x02"));   // step: 300
  CHECK(event.find("\x0a\x0atrain/loss\x15") != std::string::npos);
  CHECK(event.find(std::string("train/lr\x15\0\0\x80\x3e", 13)) != std::string::npos);
}

TEST_CASE("Run log: a run that goes on keeps the records up to its step, and a new one begins the files") {
  TemporaryFolder root;
  RunLog first;
  REQUIRE(first.Open(root.path(), 0).ok());
  std::string lines;
  for (int step = 1; step <= 5; ++step) lines += fmt::format("{{\"total_step\":{},\"loss\":{}}}\n", step, 6 - step);
  REQUIRE(first.Append("{\"base_eval_loss\":9,\"total_step\":0}\n" + lines + "{\"failure\":1,\"total_step\":5}\n{\"exact\":3}\n").ok());
  const std::string metrics = root / "metrics.jsonl";
  CHECK(ReadFile(metrics).value().ends_with("{\"exact\":3}\n"));

  RunLog second;
  REQUIRE(second.Open(root.path(), 3).ok());
  CHECK(ReadFile(metrics).value() == "{\"base_eval_loss\":9,\"total_step\":0}\n{\"total_step\":1,\"loss\":5}\n{\"total_step\":2,\"loss\":4}\n"
                                     "{\"total_step\":3,\"loss\":3}\n{\"failure\":1,\"total_step\":5}\n");
  REQUIRE(second.Append("{\"total_step\":4,\"loss\":2.5}\n").ok());
  CHECK(ReadFile(metrics).value().ends_with("{\"total_step\":4,\"loss\":2.5}\n"));
  size_t events = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root / "tensorboard")) {
    events += Records(ReadFile(entry.path().string()).value()).size();
  }
  CHECK(events >= 1 + 6 + 1);   // both parts; in one second they share a file, with a head each

  RunLog third;
  REQUIRE(third.Open(root.path(), 0).ok());
  CHECK(ReadFile(metrics).value().empty());
  CHECK(KeepRecords("{\"total_step\":1}\n{\"total_st", 9) == "{\"total_step\":1}\n");
}

}  // namespace
}  // namespace argosy::train
