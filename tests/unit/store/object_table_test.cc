#include "runtime/store/object_table.h"

#include "tests/support/catch.h"
#include "tests/unit/store/objects.h"

namespace argosy::store {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

struct Table {
  explicit Table(uint64_t capacity, size_t waiting_max = 10) : table({.capacity = capacity, .waiting_creates_max = waiting_max}) {}

  // The answer of this create when it comes at once.
  std::optional<absl::StatusOr<Place>> Create(uint64_t object, uint64_t size, ClientNumber client = 1, bool is_copy = false) {
    ObjectTable::Ticket ticket = table.Create({.object = Object(object), .size = size, .client = client, .owner = WorkerId::FromNumber(client),
                                               .job = JobId::FromNumber(7), .is_copy = is_copy}, now);
    for (ObjectTable::Answer& answer : table.TakeAnswers(now)) {
      if (answer.ticket == ticket) return std::move(answer.place);
    }
    return std::nullopt;
  }
  void CreateSealed(uint64_t object, uint64_t size, ClientNumber client = 1, bool is_copy = false) {
    auto place = Create(object, size, client, is_copy);
    REQUIRE(place.has_value());
    REQUIRE(place->ok());
    REQUIRE(table.Seal(Object(object), client).ok());
  }

  ObjectTable table;
  absl::Time now = kStart;
};

}  // namespace

TEST_CASE("ObjectTable: an object can be read once it is sealed, not before") {
  Table t(1 << 20);
  REQUIRE(t.Create(1, 100)->ok());
  REQUIRE_FALSE(t.table.Pin(Object(1), 2).ok());
  REQUIRE_FALSE(t.table.Seal(Object(1), 2).ok());   // another client's
  REQUIRE(t.table.Seal(Object(1), 1).ok());
  REQUIRE_FALSE(t.table.Seal(Object(1), 1).ok());
  REQUIRE(t.table.Pin(Object(1), 2)->size == 100);
  REQUIRE(t.Create(1, 100, 3)->status().code() == absl::StatusCode::kAlreadyExists);   // another owner's
}

TEST_CASE("ObjectTable: what its owner makes again takes the place of what is here, also of a copy; a copy takes nobody's") {
  Table t(1 << 20);
  t.CreateSealed(1, 100);
  REQUIRE(t.Create(1, 200, 1, true)->status().code() == absl::StatusCode::kAlreadyExists);
  REQUIRE(t.table.Pin(Object(1), 2).ok());
  t.CreateSealed(1, 200);
  REQUIRE(t.table.Pin(Object(1), 3)->size == 200);
  REQUIRE(t.table.used() == Allocator::RoundUp(100) + Allocator::RoundUp(200));   // whoever reads the old one may go on
  REQUIRE(t.table.Release(Object(1), 2));
  REQUIRE(t.table.used() == Allocator::RoundUp(200));
  t.CreateSealed(2, 100, 0, true);
  t.CreateSealed(2, 300, 5);
  REQUIRE(t.table.Pin(Object(2), 3)->size == 300);
  // Being created: not before that is over.
  REQUIRE(t.Create(3, 100)->ok());
  REQUIRE(t.Create(3, 100)->status().code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("ObjectTable: what a task makes again takes the place of a copy that is on its way, or waits for space") {
  Table t(1 << 20);
  REQUIRE(t.Create(1, 600 << 10, 0, true)->ok());   // being pulled
  auto made = t.Create(1, 600 << 10, 5);
  REQUIRE(made.has_value());
  REQUIRE(made->ok());                              // there is no room for both
  REQUIRE(t.table.TakeAborted() == std::vector<ObjectId>{Object(1)});
  REQUIRE_FALSE(t.table.IsMaking(Object(1), 0, **made));
  REQUIRE(t.table.IsMaking(Object(1), 5, **made));
  REQUIRE_FALSE(t.table.Seal(Object(1), 0).ok());
  REQUIRE(t.table.Seal(Object(1), 5).ok());
  ObjectTable::Ticket copy = t.table.Create({.object = Object(2), .size = 600 << 10, .client = 0, .is_copy = true}, t.now);
  REQUIRE(t.table.TakeAnswers(t.now).empty());
  REQUIRE_FALSE(t.Create(2, 600 << 10, 5).has_value());   // it waits in the copy's place
  REQUIRE(t.table.waiting_creates() == 1);
  REQUIRE(t.table.Delete(Object(1)));
  std::vector<ObjectTable::Answer> answers = t.table.TakeAnswers(t.now);
  REQUIRE(answers.size() == 1);
  REQUIRE(answers[0].ticket > copy);
  REQUIRE(answers[0].place.ok());
  REQUIRE(t.table.IsMaking(Object(2), 5, *answers[0].place));
}

TEST_CASE("ObjectTable: a deleted object that is read keeps its space until its last release") {
  Table t(1 << 20);
  t.CreateSealed(1, 1000);
  REQUIRE(t.table.Pin(Object(1), 2).ok());
  REQUIRE(t.table.Pin(Object(1), 3).ok());
  uint64_t used = t.table.used();
  REQUIRE(t.table.Delete(Object(1)));
  REQUIRE_FALSE(t.table.Pin(Object(1), 4).ok());
  REQUIRE(t.table.used() == used);
  // The id can be used again meanwhile, and the old pins stay the old object's.
  t.CreateSealed(1, 2000);
  REQUIRE(t.table.Release(Object(1), 2));
  REQUIRE(t.table.Release(Object(1), 3));
  REQUIRE_FALSE(t.table.Release(Object(1), 3));
  REQUIRE(t.table.used() == Allocator::RoundUp(2000));
}

TEST_CASE("ObjectTable: the least recently used copy without readers goes first; primary copies never") {
  Table t(4096);
  t.CreateSealed(3, 1024);
  t.CreateSealed(1, 1024, 1, true);
  t.CreateSealed(2, 1024, 1, true);
  // Reading 1 makes 2 the older one.
  REQUIRE(t.table.Pin(Object(1), 5).ok());
  REQUIRE(t.table.Release(Object(1), 5));
  t.CreateSealed(4, 2048);
  REQUIRE(t.table.StateOf(Object(2)) == ObjectTable::State::kAbsent);
  REQUIRE(t.table.StateOf(Object(1)) == ObjectTable::State::kSealed);
  REQUIRE(t.table.StateOf(Object(3)) == ObjectTable::State::kSealed);
}

TEST_CASE("ObjectTable: copies stay when evicting all of them would not make room") {
  Table t(4096);
  t.CreateSealed(1, 2048);
  t.CreateSealed(2, 1024, 1, true);
  REQUIRE_FALSE(t.Create(3, 3000).has_value());
  REQUIRE(t.table.StateOf(Object(2)) == ObjectTable::State::kSealed);
}

TEST_CASE("ObjectTable: creates wait in order, within a bound, and fail with the sizes after their time") {
  Table t(4096, 2);
  t.CreateSealed(1, 4096);
  REQUIRE_FALSE(t.Create(2, 3000).has_value());
  REQUIRE_FALSE(t.Create(3, 64).has_value());   // behind the first, though it would fit sooner
  auto refused = t.Create(4, 64);
  REQUIRE(refused->status().code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(t.Create(5, 5000)->status().code() == absl::StatusCode::kResourceExhausted);

  REQUIRE(t.table.Delete(Object(1)));
  auto answers = t.table.TakeAnswers(t.now);
  REQUIRE(answers.size() == 2);
  REQUIRE(answers[0].object == Object(2));
  REQUIRE(answers[1].object == Object(3));
  REQUIRE(answers[1].place.ok());

  REQUIRE_FALSE(t.Create(6, 4000).has_value());
  REQUIRE(t.table.NextDeadline() == kStart + absl::Seconds(60));
  answers = t.table.TakeAnswers(kStart + absl::Seconds(60));
  REQUIRE(answers.size() == 1);
  REQUIRE(answers[0].place.status().code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(std::string(answers[0].place.status().message()).find("4000 bytes") != std::string::npos);
}

TEST_CASE("ObjectTable: a client's end releases its pins and aborts what it had not sealed") {
  Table t(4096);
  t.CreateSealed(1, 1024, 1);
  REQUIRE(t.Create(2, 1024, 2)->ok());
  REQUIRE(t.table.Pin(Object(1), 2).ok());
  REQUIRE_FALSE(t.Create(3, 4000, 2).has_value());
  REQUIRE(t.table.Delete(Object(1)));
  t.table.ClientGone(2);
  REQUIRE(t.table.used() == 0);
  REQUIRE(t.table.waiting_creates() == 0);
  REQUIRE(t.table.objects() == 0);
}

TEST_CASE("ObjectTable: an owner's end takes its primary copies, a job's end everything of it") {
  Table t(1 << 20);
  t.CreateSealed(1, 100, 1);
  t.CreateSealed(2, 100, 2);
  t.CreateSealed(3, 100, 1, true);
  t.table.OwnerGone(WorkerId::FromNumber(1));
  REQUIRE(t.table.StateOf(Object(1)) == ObjectTable::State::kAbsent);
  REQUIRE(t.table.StateOf(Object(2)) == ObjectTable::State::kSealed);
  REQUIRE(t.table.StateOf(Object(3)) == ObjectTable::State::kSealed);
  t.table.JobGone(JobId::FromNumber(7));
  REQUIRE(t.table.used() == 0);
}

}  // namespace argosy::store
