#include "train/config/relaxed_json.h"

#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/support/catch.h"

namespace argosy::train {
namespace {

TEST_CASE("Hjson: files as people write them are what the hjson package makes of them") {
  // tests/parity/make_hjson.py.
  const auto cases = nlohmann::json::parse(std::ifstream("tests/parity/hjson.json"));
  REQUIRE(cases.size() > 20);
  for (const auto& one : cases) {
    const std::string text = one["hjson"];
    const PlainJson plain = JsonFromHjson(text);
    INFO(text << "\n" << plain.text);
    CHECK(plain.places.size() == plain.text.size() + 1);
    const nlohmann::json read = nlohmann::json::parse(plain.text, nullptr, false);
    if (one.contains("json")) CHECK(read == one["json"]);
    else CHECK(read.is_discarded());
  }
}

TEST_CASE("Hjson: what is broken is broken JSON too, and places are those of the source") {
  for (const char* text : {"{a: 1", "{a 1}", "{a: }", "{: 1}", "[1, 2", "{\"a\": \"x", "{a: '''x}", "{a: 1,, b: 2}", "{a: 1}}", "{a: 1} b", "", "{a", "]"}) {
    INFO(text << " -> " << JsonFromHjson(text).text);
    CHECK(nlohmann::json::parse(JsonFromHjson(text).text, nullptr, false).is_discarded());
  }
  const std::string deep = std::string(100'000, '[');
  CHECK(nlohmann::json::parse(JsonFromHjson(deep).text, nullptr, false).is_discarded());
  const std::string text = "# comment\n{ abc: 12 }";
  const PlainJson plain = JsonFromHjson(text);
  CHECK(plain.text == "{\"abc\":12}");
  CHECK(text[plain.places[plain.text.find('1')]] == '1');
  CHECK(text[plain.places[plain.text.find('b')]] == 'b');
  CHECK(text[plain.places[plain.text.find('}')]] == '}');
}

}  // namespace
}  // namespace argosy::train
