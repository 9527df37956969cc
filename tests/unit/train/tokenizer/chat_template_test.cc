#include "train/tokenizer/chat_template.h"

#include "runtime/base/status.h"
#include "tests/support/catch.h"

namespace argosy::train {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string Rendered(std::string_view source, const OrderedJson& variables = OrderedJson::object()) {
  auto parsed = JinjaTemplate::Parse(source);
  INFO(source << ": " << parsed.status());
  REQUIRE(parsed.ok());
  auto rendered = parsed->Render(variables, 86400 * 365);
  INFO(rendered.status());
  REQUIRE(rendered.ok());
  return rendered->text;
}

std::string ErrorOf(std::string_view source, const OrderedJson& variables = OrderedJson::object()) {
  auto parsed = JinjaTemplate::Parse(source);
  if (!parsed.ok()) return Message(parsed.status());
  auto rendered = parsed->Render(variables);
  REQUIRE(!rendered.ok());
  return Message(rendered.status());
}

// Every text here is what jinja2 3.1 makes of the template with trim_blocks and lstrip_blocks.
TEST_CASE("Jinja: expressions mean what they mean in Jinja") {
  struct Case {
    std::string source, text;
  };
  const Case cases[] = {
      {"{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }} {{ 2 ** 5 }}", "7 9 3 -4 3.5 2 32"},
      {"{{ 'a' ~ 1 ~ none }} {{ 'a' + \"b\" }} {{ 'ab' * 2 }}", "a1None ab abab"},
      {"{{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ not (1 > 2) and 2 in [1, 2] }} {{ 'x' not in 'abc' }}", "True True True True"},
      {"{{ 'yes' if x else 'no' }}{{ 'nothing' if x }}", "no"},
      {"{{ [1, 'two', none, true] }} {{ {'a': 1} }}", "[1, 'two', None, True] {'a': 1}"},
      {"{{ 'hello'[1] }}{{ 'hello'[-1] }}{{ 'hello'[1:3] }}{{ 'hello'[::-1] }}{{ [1, 2, 3][1:] }}", "eoelolleh[2, 3]"},
      {"{{ '  x '.strip() }}|{{ 'a,b,c'.split(',')[1] }}|{{ 'abc'.startswith('ab') }}|{{ 'a-b'.replace('-', '+') }}|{{ 'hi there'.title() }}",
       "x|b|True|a+b|Hi There"},
      {"{{ {'a': 1, 'b': 2}.items() | list }} {{ {'a': 1}.get('b', 5) }}", "[['a', 1], ['b', 2]] 5"},
      {"{{ ' x ' | trim }}|{{ [1, 2] | length }}|{{ [1, 2] | join('-') }}|{{ x | default('d') }}|{{ 'ab' | upper }}|{{ [3, 1] | first }}{{ [3, 1] | last }}",
       "x|2|1-2|d|AB|31"},
      {"{{ {'a': [1, {'b': 'é\"'}], 'c': 1.5} | tojson }}", "{\"a\": [1, {\"b\": \"é\\\"\"}], \"c\": 1.5}"},
      {"{{ {'a': [1]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}"},
      {"{{ x is defined }} {{ x is undefined }} {{ none is none }} {{ 'a' is string }} {{ {} is mapping }} {{ 3 is number }} {{ [] is iterable }}",
       "False True True True True True True"},
      {"{{ 3 is odd }} {{ 1 is not none }} {{ 2 is eq 2 }} {{ true is true }}", "True True True True"},
      {"{{ [{'r': 'u', 'n': 1}, {'r': 'a', 'n': 2}] | selectattr('r', 'equalto', 'a') | map(attribute='n') | list }}", "[2]"},
      {"{{ ['b', 'a', 'b'] | unique | list }} {{ ['b', 'a'] | sort }} {{ range(2, 8, 2) | list }}", "['b', 'a'] ['a', 'b'] [2, 4, 6]"},
      {"{{ strftime_now('%d %b %Y') }}", "01 Jan 1971"},
      {"{{ 'tab\\tnew\\nline' }}", "tab\tnew\nline"},
  };
  for (const Case& one : cases) CHECK(Rendered(one.source) == one.text);
}

TEST_CASE("Jinja: statements, scopes and white space are Jinja's with trim_blocks and lstrip_blocks") {
  CHECK(Rendered("{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}:{{ x }}{% if not loop.last %},{% endif %}{% else %}none{% endfor %}") == "1:1,2:3");
  CHECK(Rendered("{% for x in [] %}{{ x }}{% else %}none{% endfor %}") == "none");
  CHECK(Rendered("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}") == "a=1");
  CHECK(Rendered("{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "013");
  CHECK(Rendered("{% if 0 %}a{% elif '' %}b{% elif 1 %}c{% else %}d{% endif %}e") == "ce");
  // What a loop sets ends with the turn; a namespace's fields stay.
  CHECK(Rendered("{% set x = 1 %}{% set ns = namespace(y=1) %}{% for i in [1, 2] %}{% set x = x + i %}{% set ns.y = ns.y + i %}{{ x }}{% endfor %}{{ x }}{{ ns.y }}") ==
        "2314");
  CHECK(Rendered("{% set x %}a{{ 1 }}{% endset %}[{{ x }}]") == "[a1]");
  CHECK(Rendered("{% macro m(a, b='B') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(2, b=3) }}") == "1B23");
  CHECK(Rendered("{%- if true %}\n  a\n  {% endif %}\nb\n") == "  a\nb");
  CHECK(Rendered("x\n  {%- if true -%}\n  a {{- ' b ' -}} c\n{%- endif %}\n\nd") == "xa b c\nd");
  CHECK(Rendered("a\n    {# a comment #}\nb {#- another -#} c") == "a\nbc");
  CHECK(Rendered("{{ '{% not a block %}' }}{{ {'a': {'b': 1}}['a']['b'] }}") == "{% not a block %}1");
}

TEST_CASE("Jinja: what is not known, and what goes wrong, is named with its line") {
  CHECK(ErrorOf("a\n{% include 'x' %}") == "chat template, line 2: the statement {% include %} is not supported; supported: if, for, set, macro, generation, break, "
                                           "continue");
  CHECK(ErrorOf("{{ x | sha1 }}").find("the filter sha1 is not supported") != std::string::npos);
  CHECK(ErrorOf("{{ x is callable }}").find("\"is callable\"") != std::string::npos);
  CHECK(ErrorOf("{{ x.format(1) }}").find("the method format is not supported") != std::string::npos);
  CHECK(ErrorOf("{% if x %}").find("no {% endif %}") != std::string::npos);
  CHECK(ErrorOf("{{ 'a ").find("not closed") != std::string::npos);
  CHECK(ErrorOf("{{ x.y.z }}").find("\"x\" is undefined") != std::string::npos);
  CHECK(ErrorOf("{{ 1 + 'a' }}").find("no arithmetic with an integer and a string") != std::string::npos);
  CHECK(ErrorOf("{{ raise_exception('roles must alternate') }}") == "the chat template refuses: roles must alternate");
  CHECK(ErrorOf("{% for a in range(3000) %}{% for b in range(3000) %}{% set x = 1 %}{% endfor %}{% endfor %}").find("does not come to an end") != std::string::npos);
  CHECK(ErrorOf("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("nested too deep") != std::string::npos);
  CHECK(ErrorOf("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}").find("nested more than") != std::string::npos);
  CHECK(ErrorOf("{{ 1 // 0 }}").find("division by zero") != std::string::npos);
  const absl::Status bytes = JinjaTemplate::Parse("{{ 'a\xc3' }}").status();
  CHECK(Message(bytes).find("not UTF-8 at byte 5") != std::string::npos);
}

constexpr std::string_view kChatMl =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

Tokenizer WithTemplate(std::string_view source) {
  OrderedJson config = {{"eos_token", "<|endoftext|>"}, {"chat_template", source}};
  TokenizerFiles files{.tokenizer_config_json = config.dump()};
  files.tokenizer_json = R"({"model": {"type": "BPE", "vocab": {"a": 0, "<|endoftext|>": 1}, "merges": []}})";
  auto tokenizer = Tokenizer::FromFiles(std::move(files));
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

TEST_CASE("ChatTemplate: a conversation becomes text, and its answers are found in it") {
  Tokenizer tokenizer = WithTemplate(kChatMl);
  auto chat = ChatTemplate::Of(tokenizer);
  REQUIRE(chat.ok());
  OrderedJson messages = {{{"role", "user"}, {"content", "2+2?"}}, {{"role", "assistant"}, {"content", "4"}},
                   {{"role", "user"}, {"content", "3+3?"}}, {{"role", "assistant"}, {"content", "6"}}};
  std::string system = "<|im_start|>system\nBe brief.<|im_end|>\n";
  CHECK(*chat->Render(OrderedJson::array({messages[0]}), true) == system + "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n");
  auto training = chat->RenderForTraining(messages);
  REQUIRE(training.ok());
  REQUIRE(training->answers.size() == 2);
  auto part = [&](size_t i) { return training->text.substr(training->answers[i].first, training->answers[i].second - training->answers[i].first); };
  CHECK(part(0) == "4<|im_end|>\n");
  CHECK(part(1) == "6<|im_end|>\n");
}

TEST_CASE("ChatTemplate: {% generation %} blocks tell answers apart, also where the template rewrites what came before") {
  Tokenizer marked = WithTemplate("{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}\n{% else %}Q:{{ "
                                  "m.content }}\n{% endif %}{% endfor %}");
  auto chat = ChatTemplate::Of(marked);
  REQUIRE(chat.ok());
  OrderedJson messages = {{{"role", "user"}, {"content", "é?"}}, {{"role", "assistant"}, {"content", "yes"}}};
  auto training = chat->RenderForTraining(messages);
  REQUIRE(training.ok());
  CHECK(training->text == "Q:é?\nA:yes<|endoftext|>");
  REQUIRE(training->answers.size() == 1);
  CHECK(training->text.substr(training->answers[0].first) == "yes<|endoftext|>");

  Tokenizer rewriting = WithTemplate("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
  auto other = ChatTemplate::Of(rewriting)->RenderForTraining(OrderedJson::array({messages[0], messages[1], messages[0]}));
  REQUIRE(!other.ok());
  CHECK(Message(other.status()).find("writes message 2 otherwise when others follow") != std::string::npos);
}

TEST_CASE("ChatTemplate: a tokenizer without one, and messages of another shape, are refused") {
  CHECK(Message(ChatTemplate::Of(WithTemplate("")).status()).find("has no chat template") != std::string::npos);
  CHECK(Message(CheckMessages(OrderedJson::array(), "f:1")) == "f:1: \"messages\" is empty; expected a list of {\"role\": ..., \"content\": ...}");
  CHECK(Message(CheckMessages(OrderedJson::array({{{"role", "user"}}}), "f:1")) == "f:1: message 1 has no \"content\"");
  CHECK(Message(CheckMessages(OrderedJson::array({{{"role", 3}, {"content", "x"}}}), "f:1")) == "f:1: message 1: \"role\" is number; expected text");
}

}  // namespace
}  // namespace argosy::train
