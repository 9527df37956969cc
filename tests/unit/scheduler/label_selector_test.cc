#include "scheduler/label_selector.h"

#include "runtime/base/status.h"
#include "tests/support/catch.h"

namespace argosy::scheduler {
namespace {

LabelSelector Parsed(std::string_view text) {
  absl::StatusOr<LabelSelector> selector = LabelSelector::Parse(text);
  INFO(text << ": " << Message(selector.status()));
  REQUIRE(selector.ok());
  return *selector;
}

const Labels kNode = {{"zone", "a"}, {"accelerator-type", "H100"}};

}  // namespace

TEST_CASE("LabelSelector: each operator matches what it says") {
  CHECK(Parsed("zone=a").Matches(kNode));
  CHECK(Parsed("zone==a").Matches(kNode));
  CHECK_FALSE(Parsed("zone=b").Matches(kNode));
  CHECK(Parsed("zone!=b").Matches(kNode));
  CHECK_FALSE(Parsed("zone!=a").Matches(kNode));
  CHECK(Parsed("accelerator-type in (A100, H100)").Matches(kNode));
  CHECK_FALSE(Parsed("accelerator-type in (A100)").Matches(kNode));
  CHECK(Parsed("zone not in (b,c)").Matches(kNode));
  CHECK_FALSE(Parsed("zone not in(a,c)").Matches(kNode));
  CHECK(Parsed("zone exists").Matches(kNode));
  CHECK_FALSE(Parsed("rack exists").Matches(kNode));
  CHECK(Parsed("").Matches(kNode));
}

TEST_CASE("LabelSelector: != and not in match a node without the key, the others do not") {
  CHECK(Parsed("rack!=r1").Matches(kNode));
  CHECK(Parsed("rack not in (r1,r2)").Matches(kNode));
  CHECK_FALSE(Parsed("rack=r1").Matches(kNode));
  CHECK_FALSE(Parsed("rack in (r1,r2)").Matches(kNode));
}

TEST_CASE("LabelSelector: terms are a conjunction, and those on one key are merged") {
  CHECK(Parsed("zone=a, accelerator-type exists").Matches(kNode));
  CHECK_FALSE(Parsed("zone=a, accelerator-type=A100").Matches(kNode));
  CHECK(Parsed("zone!=b,zone!=c") == Parsed("zone not in (c,b)"));
  CHECK(Parsed("zone in (a,b),zone!=b") == Parsed("zone=a"));
  CHECK(Parsed("zone exists, zone=a") == Parsed("zone=a"));
  CHECK_FALSE(Parsed("zone exists, zone!=a").Matches(kNode));
  CHECK_FALSE(Parsed("rack exists, rack!=a").Matches(kNode));
}

TEST_CASE("LabelSelector: the peer's JSON spelling parses to the same type") {
  auto from = [](const std::map<std::string, std::string>& map) {
    absl::StatusOr<LabelSelector> selector = LabelSelector::FromMap(map);
    REQUIRE(selector.ok());
    return *selector;
  };
  CHECK(from({{"zone", "a"}}) == Parsed("zone=a"));
  CHECK(from({{"zone", "!a"}}) == Parsed("zone!=a"));
  CHECK(from({{"zone", "in(a, b)"}}) == Parsed("zone in (a,b)"));
  CHECK(from({{"zone", "!in(a,b)"}}) == Parsed("zone not in (a,b)"));
  CHECK(from({}) == LabelSelector());
}

TEST_CASE("LabelSelector: text and map round trip") {
  for (const char* text : {"", "k=v", "k!=v", "k in (a,b)", "k not in (a,b)", "k exists", "k exists,k!=v",
                           "k exists,k not in (a,b)", "a=1,b!=2,c in (x,y)"}) {
    LabelSelector selector = Parsed(text);
    INFO(text << " -> " << selector.ToString());
    CHECK(Parsed(selector.ToString()) == selector);
    absl::StatusOr<LabelSelector> from_map = LabelSelector::FromMap(selector.ToMap());
    REQUIRE(from_map.ok());
    CHECK(*from_map == selector);
  }
  CHECK(Parsed("zone!=b, gpu in (H100,A100)").ToString() == "gpu in (A100,H100), zone!=b");
}

TEST_CASE("LabelSelector: bad text is refused with the term and what would be right") {
  auto error = [](std::string_view text) {
    absl::StatusOr<LabelSelector> selector = LabelSelector::Parse(text);
    REQUIRE_FALSE(selector.ok());
    return Message(selector.status());
  };
  CHECK(error("zone") == "label selector term \"zone\": want k=v, k!=v, k in (a,b), k not in (a,b) or k exists");
  CHECK(error("zone=a,,b=c").find("\"\"") != std::string::npos);
  CHECK(error("zone=").find("\"\" is not a label value") != std::string::npos);
  CHECK(error("=a").find("\"\" is not a label key") != std::string::npos);
  CHECK(error("zone in ()").find("\"\" is not a label value") != std::string::npos);
  CHECK(error("zone (a,b)").find("want k=v") != std::string::npos);
  CHECK(error("zone=a b").find("\"a b\" is not a label value") != std::string::npos);
  CHECK(error("zone=a,zone=b") == "label selector: no node can match both \"zone=a\" and \"zone=b\"");
  absl::StatusOr<LabelSelector> map = LabelSelector::FromMap({{"zone", "in(a"}});
  REQUIRE_FALSE(map.ok());
  CHECK(Message(map.status()) ==
        "label selector zone: \"in(a\": want v, !v, in(a,b), !in(a,b), exists() or exists(!in(a,b))");
}

TEST_CASE("ParseLabels: reads the flag and names what is wrong") {
  absl::StatusOr<Labels> labels = ParseLabels("zone=a, ray.io/node-group=gpu");
  REQUIRE(labels.ok());
  CHECK(*labels == Labels{{"zone", "a"}, {"ray.io/node-group", "gpu"}});
  CHECK(ParseLabels("")->empty());
  CHECK(Message(ParseLabels("zone").status()) == "label \"zone\": want key=value, several separated by commas");
  CHECK(Message(ParseLabels("zone=a,zone=b").status()) == "label zone is given twice: a and b");
  CHECK_FALSE(ParseLabels("zone=a b").ok());
  CHECK(LabelsToString(*labels) == "ray.io/node-group=gpu, zone=a");
  CHECK(CheckLabels(*labels).ok());
  CHECK_FALSE(CheckLabels({{"zone", ""}}).ok());
}

}  // namespace argosy::scheduler
