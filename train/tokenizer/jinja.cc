#include "train/tokenizer/jinja.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <map>
#include <optional>

#include "runtime/base/status.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Errors travel as this inside the interpreter; Parse and Render turn it into a status.
struct Failed {
  std::string message;
};

template <class... Args>
[[noreturn]] void Fail(int line, fmt::format_string<Args...> format, Args&&... args) {
  throw Failed{fmt::format("chat template, line {}: {}", line, fmt::format(format, std::forward<Args>(args)...))};
}

constexpr int kDepthMax = 200;              // of nested expressions and calls
constexpr size_t kOutputMax = 64u << 20;    // bytes that a template may write
constexpr int64_t kStepsMax = 2'000'000;    // nodes that one rendering may visit

// --- Values.

struct Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;
struct Macro;

struct Value {
  enum class Kind { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kDict, kMacro, kFunction } kind = Kind::kUndefined;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;             // a string; of kUndefined and kFunction: its name
  std::shared_ptr<List> list;
  std::shared_ptr<Dict> dict;   // shared: a namespace is changed in place
  std::shared_ptr<const Macro> macro;

  static Value None() { return {.kind = Kind::kNone}; }
  static Value Bool(bool v) { return {.kind = Kind::kBool, .boolean = v}; }
  static Value Int(int64_t v) { return {.kind = Kind::kInt, .integer = v}; }
  static Value Float(double v) { return {.kind = Kind::kFloat, .number = v}; }
  static Value String(std::string v) { return {.kind = Kind::kString, .text = std::move(v)}; }
  static Value MakeList(List v) { return {.kind = Kind::kList, .list = std::make_shared<List>(std::move(v))}; }
  static Value MakeDict(Dict v) { return {.kind = Kind::kDict, .dict = std::make_shared<Dict>(std::move(v))}; }
  static Value Undefined(std::string name) { return {.kind = Kind::kUndefined, .text = std::move(name)}; }

  bool is(Kind k) const { return kind == k; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_number() const { return kind == Kind::kInt || kind == Kind::kFloat || kind == Kind::kBool; }
  double AsDouble() const { return kind == Kind::kFloat ? number : kind == Kind::kBool ? boolean : static_cast<double>(integer); }
  int64_t AsInt() const { return kind == Kind::kBool ? boolean : integer; }
};
using Kind = Value::Kind;

std::string_view KindName(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined: return "undefined";
    case Kind::kNone: return "none";
    case Kind::kBool: return "a boolean";
    case Kind::kInt: return "an integer";
    case Kind::kFloat: return "a number";
    case Kind::kString: return "a string";
    case Kind::kList: return "a list";
    case Kind::kDict: return "a mapping";
    case Kind::kMacro: return "a macro";
    case Kind::kFunction: return "a function";
  }
  return "?";
}

Value FromJson(const OrderedJson& json) {
  if (json.is_null()) return Value::None();
  if (json.is_boolean()) return Value::Bool(json.get<bool>());
  if (json.is_number_integer()) return Value::Int(json.get<int64_t>());
  if (json.is_number()) return Value::Float(json.get<double>());
  if (json.is_string()) return Value::String(json.get<std::string>());
  if (json.is_array()) {
    List list;
    for (const OrderedJson& item : json) list.push_back(FromJson(item));
    return Value::MakeList(std::move(list));
  }
  Dict dict;
  for (const auto& [key, value] : json.items()) dict.emplace_back(key, FromJson(value));
  return Value::MakeDict(std::move(dict));
}

bool Truth(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return v.boolean;
    case Kind::kInt: return v.integer != 0;
    case Kind::kFloat: return v.number != 0;
    case Kind::kString: return !v.text.empty();
    case Kind::kList: return !v.list->empty();
    case Kind::kDict: return !v.dict->empty();
    case Kind::kMacro:
    case Kind::kFunction: return true;
  }
  return false;
}

std::string FloatText(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", v);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string Repr(const Value& v);

// Python's str().
std::string Text(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined: return "";
    case Kind::kString: return v.text;
    default: return Repr(v);
  }
}

std::string Repr(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "None";
    case Kind::kBool: return v.boolean ? "True" : "False";
    case Kind::kInt: return fmt::format("{}", v.integer);
    case Kind::kFloat: return FloatText(v.number);
    case Kind::kString: {
      char quote = v.text.find('\'') != std::string::npos && v.text.find('"') == std::string::npos ? '"' : '\'';
      std::string out(1, quote);
      for (char c : v.text) {
        if (c == '\\' || c == quote) out += std::string("\\") + c;
        else if (c == '\n') out += "\\n";
        else if (c == '\r') out += "\\r";
        else if (c == '\t') out += "\\t";
        else out += c;
      }
      return out + quote;
    }
    case Kind::kList: {
      std::string out = "[";
      for (size_t i = 0; i < v.list->size(); ++i) out += (i ? ", " : "") + Repr((*v.list)[i]);
      return out + "]";
    }
    case Kind::kDict: {
      std::string out = "{";
      for (size_t i = 0; i < v.dict->size(); ++i) {
        out += (i ? ", " : "") + Repr(Value::String((*v.dict)[i].first)) + ": " + Repr((*v.dict)[i].second);
      }
      return out + "}";
    }
    case Kind::kMacro:
    case Kind::kFunction: return "<function>";
  }
  return "";
}

const Value* Find(const Value& dict, std::string_view key) {
  for (const auto& [name, value] : *dict.dict) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.AsDouble() == b.AsDouble();
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kString: return a.text == b.text;
    case Kind::kList:
      return a.list->size() == b.list->size() && std::equal(a.list->begin(), a.list->end(), b.list->begin(), Equal);
    case Kind::kDict:
      return a.dict->size() == b.dict->size() && std::all_of(a.dict->begin(), a.dict->end(), [&](const auto& entry) {
               const Value* other = Find(b, entry.first);
               return other != nullptr && Equal(entry.second, *other);
             });
    case Kind::kUndefined:
    case Kind::kNone: return true;
    default: return false;
  }
}

std::vector<std::string> CodePoints(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    unicode::Next(text, at);
    out.push_back(text.substr(begin, at - begin));
  }
  return out;
}

// --- Syntax tree.

enum class Op {
  kLiteral, kName, kList, kDict, kAttribute, kSubscript, kSlice, kCall, kFilter, kTest, kConditional, kNot, kNegate, kPositive, kOr, kAnd,
  kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn, kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo,
  kPower, kConcatenate
};

struct Expression {
  Op op;
  int line = 0;
  Value value;                                                    // kLiteral
  std::string name;                                               // kName, kAttribute, kFilter, kTest
  std::vector<std::unique_ptr<Expression>> parts;                 // operands; kCall, kFilter, kTest: the object, then arguments
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named;  // keyword arguments; kDict: none (keys are in parts)
  bool negated = false;                                           // kTest: is not
};
using Exp = std::unique_ptr<Expression>;

}  // namespace

struct JinjaTemplate::Node {
  enum class Kind { kBlock, kText, kPrint, kIf, kFor, kSet, kSetBlock, kMacro, kGeneration, kBreak, kContinue, kDo } kind = Kind::kBlock;
  int line = 0;
  std::string text;                       // kText; kSet, kSetBlock: the name or namespace; kMacro: the name
  std::string field;                      // kSet: of a namespace
  std::vector<std::string> names;         // kFor: loop variables; kSet: several names; kMacro: parameters
  Exp expression;                         // kPrint, kIf, kFor (what is gone through), kSet
  Exp filter;                             // kFor
  std::vector<Exp> defaults;              // kMacro, by parameter; null where none
  std::vector<std::shared_ptr<Node>> body;
  std::vector<std::shared_ptr<Node>> otherwise;
};

namespace {

using Node = JinjaTemplate::Node;

struct Macro {
  const Node* node;
};

// --- Lexer: the template as text, {{ }} and {% %} parts with whitespace control applied.

struct Part {
  enum class Kind { kText, kPrint, kStatement } kind;
  std::string text;
  int line;
};

int LinesIn(std::string_view text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }

// As Jinja reads a template: "\n" for every kind of line end, and none at the end.
std::string WithPlainLineEnds(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') out += source[i];
    else if (i + 1 >= source.size() || source[i + 1] != '\n') out += '\n';
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

constexpr std::string_view kBlanks = " \t\n\v\f";

std::vector<Part> Split(std::string_view given) {
  std::vector<Part> parts;
  std::string plain = WithPlainLineEnds(given);
  std::string_view source = plain;
  size_t at = 0;      // where the text before the next tag begins
  int line = 1;
  bool line_start = true;   // the text begins a line
  while (true) {
    size_t open = at;
    while ((open = source.find('{', open)) != std::string_view::npos) {
      char next = open + 1 < source.size() ? source[open + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') break;
      ++open;
    }
    std::string_view text = source.substr(at, open == std::string_view::npos ? std::string_view::npos : open - at);
    int text_line = line;
    line += LinesIn(text);
    if (open == std::string_view::npos) {
      if (!text.empty()) parts.push_back({Part::Kind::kText, std::string(text), text_line});
      return parts;
    }
    char kind = source[open + 1];
    size_t inside = open + 2;
    bool minus = inside < source.size() && source[inside] == '-', plus = inside < source.size() && source[inside] == '+';
    if (minus || plus) ++inside;
    if (minus) {
      size_t last = text.find_last_not_of(kBlanks);
      text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
    } else if (kind != '{' && !plus) {
      // lstrip_blocks: what is blank between the line's beginning and a block goes.
      size_t line_begin = text.rfind('\n') + 1;   // 0 where there is none
      if ((line_begin > 0 || line_start) && text.find_first_not_of(kBlanks, line_begin) == std::string_view::npos) text = text.substr(0, line_begin);
    }
    if (!text.empty()) parts.push_back({Part::Kind::kText, std::string(text), text_line});

    std::string_view closing = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    size_t close = inside;
    if (kind == '#') {
      close = source.find(closing, inside);
    } else {
      char quote = 0;
      int depth = 0;
      for (; close < source.size(); ++close) {
        char c = source[close];
        if (quote != 0) {
          if (c == '\\') ++close;
          else if (c == quote) quote = 0;
        } else if (c == '"' || c == '\'') {
          quote = c;
        } else if (depth == 0 && source.substr(close, 2) == closing) {
          break;
        } else if (c == '{' || c == '(' || c == '[') {
          ++depth;
        } else if (c == '}' || c == ')' || c == ']') {
          --depth;
        }
      }
      if (close >= source.size()) close = std::string_view::npos;
    }
    if (close == std::string_view::npos) Fail(line, "\"{}\" is not closed", source.substr(open, 2));
    size_t end = close;
    bool close_minus = end > inside && source[end - 1] == '-', close_plus = end > inside && source[end - 1] == '+';
    if (close_minus || close_plus) --end;
    if (kind != '#') {
      parts.push_back({kind == '{' ? Part::Kind::kPrint : Part::Kind::kStatement, std::string(source.substr(inside, end - inside)), line});
    }
    line += LinesIn(source.substr(open, close + 2 - open));
    at = close + 2;
    size_t behind = at;
    if (close_minus) at = std::min(source.find_first_not_of(kBlanks, at), source.size());
    else if (kind != '{' && !close_plus && source.substr(at).starts_with('\n')) ++at;   // trim_blocks
    line += LinesIn(source.substr(behind, at - behind));
    line_start = at > behind && source[at - 1] == '\n';
  }
}

// --- Tokens of one part.

struct Token {
  enum class Kind { kEnd, kName, kInt, kFloat, kString, kSymbol } kind = Kind::kEnd;
  std::string text;
  int64_t integer = 0;
  double number = 0;
};

std::vector<Token> ExpressionTokens(const std::string& text, int line) {
  std::vector<Token> tokens;
  for (size_t at = 0; at < text.size();) {
    unsigned char c = text[at];
    if (std::isspace(c)) {
      ++at;
      continue;
    }
    if (std::isalpha(c) || c == '_') {
      size_t begin = at;
      while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_')) ++at;
      tokens.push_back({Token::Kind::kName, text.substr(begin, at - begin)});
      continue;
    }
    if (std::isdigit(c)) {
      size_t begin = at;
      while (at < text.size() && (std::isdigit(static_cast<unsigned char>(text[at])) || text[at] == '_')) ++at;
      bool fraction = at + 1 < text.size() && text[at] == '.' && std::isdigit(static_cast<unsigned char>(text[at + 1]));
      if (fraction) {
        ++at;
        while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
      }
      std::string digits = text.substr(begin, at - begin);
      std::erase(digits, '_');
      Token token{fraction ? Token::Kind::kFloat : Token::Kind::kInt, digits};
      if (fraction) {
        token.number = std::strtod(digits.c_str(), nullptr);
      } else if (auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), token.integer); error != std::errc()) {
        Fail(line, "the number {} is too large", digits);
      }
      tokens.push_back(token);
      continue;
    }
    if (c == '"' || c == '\'') {
      std::string out;
      for (++at; at < text.size() && text[at] != static_cast<char>(c); ++at) {
        if (text[at] != '\\' || at + 1 >= text.size()) {
          out += text[at];
          continue;
        }
        char escaped = text[++at];
        switch (escaped) {
          case 'n': out += '\n'; break;
          case 't': out += '\t'; break;
          case 'r': out += '\r'; break;
          case '\\': case '\'': case '"': out += escaped; break;
          case 'u': case 'x': {
            size_t digits = escaped == 'u' ? 4 : 2;
            uint32_t code = 0;
            auto [end, error] = std::from_chars(text.data() + at + 1, text.data() + std::min(at + 1 + digits, text.size()), code, 16);
            if (error != std::errc()) Fail(line, "the escape \\{} is broken", escaped);
            unicode::Append(out, static_cast<char32_t>(code));
            at += digits;
            break;
          }
          default: out += '\\'; out += escaped;
        }
      }
      if (at >= text.size()) Fail(line, "a string is not closed");
      ++at;
      tokens.push_back({Token::Kind::kString, std::move(out)});
      continue;
    }
    static constexpr std::string_view kTwo[] = {"==", "!=", "<=", ">=", "//", "**"};
    std::string_view two = std::string_view(text).substr(at, 2);
    if (std::find(std::begin(kTwo), std::end(kTwo), two) != std::end(kTwo)) {
      tokens.push_back({Token::Kind::kSymbol, std::string(two)});
      at += 2;
      continue;
    }
    if (std::string_view("+-*/%~<>=()[]{}.,:|").find(static_cast<char>(c)) == std::string_view::npos) Fail(line, "unexpected character \"{}\"", text[at]);
    tokens.push_back({Token::Kind::kSymbol, std::string(1, text[at])});
    ++at;
  }
  tokens.emplace_back();
  return tokens;
}

// --- What is there by name. Anything else is refused when the template is read.

constexpr std::string_view kFilters[] = {"trim", "tojson", "length", "count", "upper", "lower", "title", "capitalize", "default", "d", "join", "first", "last",
                                         "list", "string", "int", "float", "items", "replace", "map", "select", "reject", "selectattr", "rejectattr", "reverse",
                                         "safe", "unique", "sort", "dictsort", "indent", "abs"};
constexpr std::string_view kTests[] = {"defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean",
                                       "true", "false", "equalto", "eq", "ne", "in", "odd", "even"};
constexpr std::string_view kMethods[] = {"strip", "lstrip", "rstrip", "split", "upper", "lower", "title", "capitalize", "startswith", "endswith", "replace",
                                         "items", "keys", "values", "get", "find", "count", "join", "append"};
constexpr std::string_view kFunctions[] = {"range", "namespace", "dict", "raise_exception", "strftime_now"};

template <size_t N>
bool IsOneOf(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// --- Parser of expressions.

class ExpressionParser {
 public:
  ExpressionParser(const std::string& text, int line) : tokens_(ExpressionTokens(text, line)), line_(line) {}

  const Token& Peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool IsSymbol(std::string_view symbol, size_t ahead = 0) const { return Peek(ahead).kind == Token::Kind::kSymbol && Peek(ahead).text == symbol; }
  bool IsName(std::string_view name, size_t ahead = 0) const { return Peek(ahead).kind == Token::Kind::kName && Peek(ahead).text == name; }
  bool AtEnd() const { return Peek().kind == Token::Kind::kEnd; }
  bool TakeSymbol(std::string_view symbol) { return IsSymbol(symbol) && (++at_, true); }
  bool TakeName(std::string_view name) { return IsName(name) && (++at_, true); }
  void Expect(std::string_view symbol) {
    if (!TakeSymbol(symbol)) Fail(line_, "expected \"{}\", found \"{}\"", symbol, Peek().text);
  }
  std::string Name() {
    if (Peek().kind != Token::Kind::kName) Fail(line_, "expected a name, found \"{}\"", Peek().text);
    return tokens_[at_++].text;
  }
  void ExpectEnd() {
    if (!AtEnd()) Fail(line_, "unexpected \"{}\"", Peek().text);
  }
  int line() const { return line_; }

  // With a comma: a tuple, which is a list here.
  Exp Tuple() {
    Exp first = Whole();
    if (!IsSymbol(",")) return first;
    Exp list = New(Op::kList);
    list->parts.push_back(std::move(first));
    while (TakeSymbol(",")) {
      if (AtEnd() || IsSymbol(")")) break;
      list->parts.push_back(Whole());
    }
    return list;
  }

  Exp Whole() {
    if (++depth_ > kDepthMax) Fail(line_, "expressions are nested more than {} deep", kDepthMax);
    Exp value = Or();
    if (TakeName("if")) {
      Exp conditional = New(Op::kConditional);
      conditional->parts.push_back(Or());
      conditional->parts.push_back(std::move(value));
      if (TakeName("else")) conditional->parts.push_back(Whole());
      value = std::move(conditional);
    }
    --depth_;
    return value;
  }

  // Without a conditional: what "for x in ... if ..." goes through.
  Exp Or() {
    Exp left = And();
    while (TakeName("or")) left = Binary(Op::kOr, std::move(left), And());
    return left;
  }

 private:
  Exp New(Op op) const {
    auto e = std::make_unique<Expression>();
    e->op = op;
    e->line = line_;
    return e;
  }
  Exp Binary(Op op, Exp left, Exp right) const {
    Exp e = New(op);
    e->parts.push_back(std::move(left));
    e->parts.push_back(std::move(right));
    return e;
  }
  Exp And() {
    Exp left = Not();
    while (TakeName("and")) left = Binary(Op::kAnd, std::move(left), Not());
    return left;
  }
  Exp Not() {
    if (!IsName("not")) return Compare();
    ++at_;
    if (++depth_ > kDepthMax) Fail(line_, "expressions are nested more than {} deep", kDepthMax);
    Exp e = New(Op::kNot);
    e->parts.push_back(Not());
    --depth_;
    return e;
  }
  Exp Compare() {
    Exp left = Sum();
    Exp all;
    while (true) {
      Op op;
      if (TakeSymbol("==")) op = Op::kEqual;
      else if (TakeSymbol("!=")) op = Op::kNotEqual;
      else if (TakeSymbol("<=")) op = Op::kLessEqual;
      else if (TakeSymbol(">=")) op = Op::kGreaterEqual;
      else if (TakeSymbol("<")) op = Op::kLess;
      else if (TakeSymbol(">")) op = Op::kGreater;
      else if (IsName("not") && IsName("in", 1)) { at_ += 2; op = Op::kNotIn; }
      else if (TakeName("in")) op = Op::kIn;
      else break;
      if (all) Fail(line_, "a chain of comparisons (a < b < c) is not supported: write (a < b) and (b < c)");
      all = Binary(op, std::move(left), Sum());
    }
    return all ? std::move(all) : std::move(left);
  }
  Exp Sum() {
    Exp left = Concatenation();
    while (true) {
      if (TakeSymbol("+")) left = Binary(Op::kAdd, std::move(left), Concatenation());
      else if (TakeSymbol("-")) left = Binary(Op::kSubtract, std::move(left), Concatenation());
      else return left;
    }
  }
  Exp Concatenation() {
    Exp left = Product();
    while (TakeSymbol("~")) left = Binary(Op::kConcatenate, std::move(left), Product());
    return left;
  }
  Exp Product() {
    Exp left = Unary();
    while (true) {
      if (TakeSymbol("*")) left = Binary(Op::kMultiply, std::move(left), Unary());
      else if (TakeSymbol("//")) left = Binary(Op::kFloorDivide, std::move(left), Unary());
      else if (TakeSymbol("/")) left = Binary(Op::kDivide, std::move(left), Unary());
      else if (TakeSymbol("%")) left = Binary(Op::kModulo, std::move(left), Unary());
      else return left;
    }
  }
  Exp Unary() {
    if (IsSymbol("-") || IsSymbol("+")) {
      Exp e = New(TakeSymbol("-") ? Op::kNegate : (++at_, Op::kPositive));
      if (++depth_ > kDepthMax) Fail(line_, "expressions are nested more than {} deep", kDepthMax);
      e->parts.push_back(Unary());
      --depth_;
      return e;
    }
    Exp base = Postfix(Primary());
    if (TakeSymbol("**")) base = Binary(Op::kPower, std::move(base), Unary());
    return Filters(std::move(base));
  }
  Exp Primary() {
    const Token token = Peek();
    switch (token.kind) {
      case Token::Kind::kString: {
        Exp e = New(Op::kLiteral);
        while (Peek().kind == Token::Kind::kString) e->value = Value::String(e->value.text + tokens_[at_++].text);   // "a" "b" is "ab"
        return e;
      }
      case Token::Kind::kInt:
      case Token::Kind::kFloat: {
        ++at_;
        Exp e = New(Op::kLiteral);
        e->value = token.kind == Token::Kind::kInt ? Value::Int(token.integer) : Value::Float(token.number);
        return e;
      }
      case Token::Kind::kName: {
        ++at_;
        Exp e = New(Op::kLiteral);
        if (token.text == "true" || token.text == "True") e->value = Value::Bool(true);
        else if (token.text == "false" || token.text == "False") e->value = Value::Bool(false);
        else if (token.text == "none" || token.text == "None") e->value = Value::None();
        else {
          e->op = Op::kName;
          e->name = token.text;
        }
        return e;
      }
      case Token::Kind::kSymbol:
        if (TakeSymbol("(")) {
          if (TakeSymbol(")")) return New(Op::kList);
          Exp e = Tuple();
          Expect(")");
          return e;
        }
        if (TakeSymbol("[")) {
          Exp e = New(Op::kList);
          while (!TakeSymbol("]")) {
            e->parts.push_back(Whole());
            if (!IsSymbol("]")) Expect(",");
          }
          return e;
        }
        if (TakeSymbol("{")) {
          Exp e = New(Op::kDict);
          while (!TakeSymbol("}")) {
            e->parts.push_back(Whole());
            Expect(":");
            e->parts.push_back(Whole());
            if (!IsSymbol("}")) Expect(",");
          }
          return e;
        }
        Fail(line_, "unexpected \"{}\"", token.text);
      case Token::Kind::kEnd: Fail(line_, "an expression is missing");
    }
    return nullptr;
  }
  void Arguments(Expression& e) {
    while (!TakeSymbol(")")) {
      if (Peek().kind == Token::Kind::kName && IsSymbol("=", 1)) {
        std::string name = Name();
        ++at_;
        e.named.emplace_back(std::move(name), Whole());
      } else {
        if (IsSymbol("*")) Fail(line_, "arguments by * are not supported");
        e.parts.push_back(Whole());
      }
      if (!IsSymbol(")")) Expect(",");
    }
  }
  Exp Postfix(Exp e) {
    while (true) {
      if (TakeSymbol(".")) {
        Exp outer = New(Op::kAttribute);
        if (Peek().kind == Token::Kind::kInt) {
          outer->op = Op::kSubscript;
          outer->parts.push_back(std::move(e));
          Exp index = New(Op::kLiteral);
          index->value = Value::Int(tokens_[at_++].integer);
          outer->parts.push_back(std::move(index));
        } else {
          outer->name = Name();
          outer->parts.push_back(std::move(e));
        }
        e = std::move(outer);
      } else if (TakeSymbol("[")) {
        e = Subscript(std::move(e));
      } else if (TakeSymbol("(")) {
        Exp outer = New(Op::kCall);
        if (e->op == Op::kAttribute && !IsOneOf(e->name, kMethods)) Fail(line_, "the method {} is not supported", e->name);
        outer->parts.push_back(std::move(e));
        Arguments(*outer);
        e = std::move(outer);
      } else {
        return e;
      }
    }
  }
  Exp Subscript(Exp object) {
    Exp bounds[3];
    int count = 0;
    bool slice = false;
    for (;; ++count) {
      if (count < 3 && !IsSymbol(":") && !IsSymbol("]")) bounds[count] = Whole();
      if (!TakeSymbol(":")) break;
      slice = true;
      if (count == 2) Fail(line_, "a slice has at most three parts");
    }
    Expect("]");
    Exp e = New(slice ? Op::kSlice : Op::kSubscript);
    e->parts.push_back(std::move(object));
    if (!slice && !bounds[0]) Fail(line_, "an index is missing");
    for (int i = 0; i < (slice ? 3 : 1); ++i) e->parts.push_back(std::move(bounds[i]));
    return e;
  }
  Exp Filters(Exp e) {
    while (true) {
      if (TakeSymbol("|")) {
        Exp outer = New(Op::kFilter);
        outer->name = Name();
        if (!IsOneOf(outer->name, kFilters)) Fail(line_, "the filter {} is not supported", outer->name);
        outer->parts.push_back(std::move(e));
        if (TakeSymbol("(")) Arguments(*outer);
        e = Postfix(std::move(outer));
      } else if (IsName("is")) {
        ++at_;
        Exp outer = New(Op::kTest);
        outer->negated = TakeName("not");
        outer->name = Name();
        if (outer->name == "None") outer->name = "none";
        if (!IsOneOf(outer->name, kTests)) Fail(line_, "the test \"is {}\" is not supported", outer->name);
        outer->parts.push_back(std::move(e));
        if (TakeSymbol("(")) Arguments(*outer);
        else if (IsOneOf(outer->name, {"equalto", "eq", "ne", "in"})) outer->parts.push_back(Postfix(Primary()));
        e = std::move(outer);
      } else {
        return e;
      }
    }
  }
  static bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  template <size_t N>
  static bool IsOneOf(std::string_view name, const std::string_view (&names)[N]) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_;
  int depth_ = 0;
};

// --- Parser of statements.

class TemplateParser {
 public:
  explicit TemplateParser(std::string_view source) : parts_(Split(source)) {}

  std::shared_ptr<Node> Parse() {
    auto root = std::make_shared<Node>();
    std::string end = Body(root->body, {}, 1);
    return root;
  }

 private:
  static std::string FirstName(const Part& part) { return ExpressionParser(part.text, part.line).Name(); }

  // Until a statement whose first word is in `ends`, which is returned and stays to be read; with none, to the template's end.
  std::string Body(std::vector<std::shared_ptr<Node>>& out, std::vector<std::string> ends, int opened) {
    if (++depth_ > kDepthMax) Fail(opened, "blocks are nested more than {} deep", kDepthMax);
    for (; at_ < parts_.size(); ++at_) {
      const Part& part = parts_[at_];
      if (part.kind == Part::Kind::kStatement) {
        std::string word = FirstName(part);
        if (std::find(ends.begin(), ends.end(), word) != ends.end()) {
          --depth_;
          return word;
        }
        out.push_back(Statement(word, part));
        continue;
      }
      auto node = std::make_shared<Node>();
      node->line = part.line;
      if (part.kind == Part::Kind::kText) {
        node->kind = Node::Kind::kText;
        node->text = part.text;
      } else {
        node->kind = Node::Kind::kPrint;
        ExpressionParser parser(part.text, part.line);
        node->expression = parser.Tuple();
        parser.ExpectEnd();
      }
      out.push_back(std::move(node));
    }
    if (!ends.empty()) Fail(opened, "the block that begins here has no {{% {} %}}", ends.back());
    --depth_;
    return "";
  }

  std::shared_ptr<Node> Statement(const std::string& word, const Part& part) {
    auto node = std::make_shared<Node>();
    node->line = part.line;
    ExpressionParser parser(part.text, part.line);
    parser.Name();
    if (word == "if") {
      node->kind = Node::Kind::kIf;
      node->expression = parser.Whole();
      parser.ExpectEnd();
      ++at_;
      std::string end = Body(node->body, {"elif", "else", "endif"}, part.line);
      if (end == "elif") {
        // As an if in the else: it takes the endif.
        node->otherwise.push_back(Statement("if", parts_[at_]));
      } else if (end == "else") {
        ++at_;
        Body(node->otherwise, {"endif"}, part.line);
      }
    } else if (word == "for") {
      node->kind = Node::Kind::kFor;
      do node->names.push_back(parser.Name());
      while (parser.TakeSymbol(","));
      if (!parser.TakeName("in")) Fail(part.line, "for: expected \"in\", found \"{}\"", parser.Peek().text);
      node->expression = parser.Or();
      if (parser.TakeName("if")) node->filter = parser.Whole();
      if (parser.IsName("recursive")) Fail(part.line, "recursive loops are not supported");
      parser.ExpectEnd();
      ++at_;
      ++loops_;
      std::string end = Body(node->body, {"else", "endfor"}, part.line);
      --loops_;
      if (end == "else") {
        ++at_;
        Body(node->otherwise, {"endfor"}, part.line);
      }
    } else if (word == "set") {
      node->kind = Node::Kind::kSet;
      node->text = parser.Name();
      if (parser.TakeSymbol(".")) node->field = parser.Name();
      node->names.push_back(node->text);
      while (parser.TakeSymbol(",")) node->names.push_back(parser.Name());
      if (parser.TakeSymbol("=")) {
        node->expression = parser.Tuple();
        parser.ExpectEnd();
      } else {
        parser.ExpectEnd();
        node->kind = Node::Kind::kSetBlock;
        ++at_;
        Body(node->body, {"endset"}, part.line);
      }
    } else if (word == "macro") {
      node->kind = Node::Kind::kMacro;
      node->text = parser.Name();
      parser.Expect("(");
      while (!parser.TakeSymbol(")")) {
        node->names.push_back(parser.Name());
        node->defaults.push_back(parser.TakeSymbol("=") ? parser.Whole() : nullptr);
        if (!parser.IsSymbol(")")) parser.Expect(",");
      }
      parser.ExpectEnd();
      ++at_;
      Body(node->body, {"endmacro"}, part.line);
    } else if (word == "generation") {
      node->kind = Node::Kind::kGeneration;
      parser.ExpectEnd();
      ++at_;
      Body(node->body, {"endgeneration"}, part.line);
    } else if (word == "break" || word == "continue") {
      if (loops_ == 0) Fail(part.line, "{} stands outside of a loop", word);
      node->kind = word == "break" ? Node::Kind::kBreak : Node::Kind::kContinue;
      parser.ExpectEnd();
    } else {
      Fail(part.line, "the statement {{% {} %}} is not supported; supported: if, for, set, macro, generation, break, continue", word);
    }
    return node;
  }

  std::vector<Part> parts_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

// --- Interpreter.

enum class Flow { kOn, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const OrderedJson& variables, int64_t now) : now_(now) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables.items()) scopes_.back()[name] = FromJson(value);
  }

  RenderedTemplate Run(const Node& root) {
    Body(root.body);
    return std::move(out_);
  }

 private:
  using Scope = std::map<std::string, Value>;

  Flow Body(const std::vector<std::shared_ptr<Node>>& nodes) {
    for (const auto& node : nodes) {
      if (Flow flow = One(*node); flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  void Write(const std::string& text, int line) {
    if (out_.text.size() + text.size() > kOutputMax) Fail(line, "more than {} MiB of text", kOutputMax >> 20);
    out_.text += text;
  }

  Flow One(const Node& node) {
    Count(node.line);
    switch (node.kind) {
      case Node::Kind::kText: Write(node.text, node.line); return Flow::kOn;
      case Node::Kind::kPrint: Write(Text(Eval(*node.expression)), node.line); return Flow::kOn;
      case Node::Kind::kIf: return Body(Truth(Eval(*node.expression)) ? node.body : node.otherwise);
      case Node::Kind::kFor: return Loop(node);
      case Node::Kind::kSet: Assign(node, Eval(*node.expression)); return Flow::kOn;
      case Node::Kind::kSetBlock: {
        std::string kept = std::exchange(out_.text, "");
        auto ranges = std::exchange(out_.generated, {});
        Body(node.body);
        Value value = Value::String(std::exchange(out_.text, std::move(kept)));
        out_.generated = std::move(ranges);
        Assign(node, std::move(value));
        return Flow::kOn;
      }
      case Node::Kind::kMacro: {
        Value macro{.kind = Kind::kMacro};
        macro.macro = std::make_shared<Macro>(Macro{&node});
        scopes_.back()[node.text] = macro;
        return Flow::kOn;
      }
      case Node::Kind::kGeneration: {
        size_t begin = out_.text.size();
        Flow flow = Body(node.body);
        if (out_.text.size() > begin) out_.generated.emplace_back(begin, out_.text.size());
        return flow;
      }
      case Node::Kind::kBreak: return Flow::kBreak;
      case Node::Kind::kContinue: return Flow::kContinue;
      default: return Body(node.body);
    }
  }

  void Count(int line) {
    if (++steps_ > kStepsMax) Fail(line, "the template does not come to an end");
  }

  void Assign(const Node& node, Value value) {
    if (!node.field.empty()) {
      Value* target = Lookup(node.text);
      if (target == nullptr || !target->is(Kind::kDict)) Fail(node.line, "set {}.{}: {} is no namespace", node.text, node.field, node.text);
      Put(*target->dict, node.field, std::move(value));
      return;
    }
    if (node.names.size() == 1) {
      scopes_.back()[node.text] = std::move(value);
      return;
    }
    Unpack(node.names, value, scopes_.back(), node.line);
  }

  static void Put(Dict& dict, const std::string& key, Value value) {
    for (auto& [name, old] : dict) {
      if (name == key) {
        old = std::move(value);
        return;
      }
    }
    dict.emplace_back(key, std::move(value));
  }

  static void Unpack(const std::vector<std::string>& names, const Value& value, Scope& scope, int line) {
    if (!value.is(Kind::kList) || value.list->size() != names.size()) Fail(line, "{} cannot be unpacked into {} names", KindName(value), names.size());
    for (size_t i = 0; i < names.size(); ++i) scope[names[i]] = (*value.list)[i];
  }

  Value* Lookup(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (auto found = scope->find(name); found != scope->end()) return &found->second;
    }
    return nullptr;
  }

  List Items(const Value& value, int line, std::string_view what) const {
    List items;
    switch (value.kind) {
      case Kind::kUndefined: return items;
      case Kind::kList: return *value.list;
      case Kind::kDict:
        for (const auto& entry : *value.dict) items.push_back(Value::String(entry.first));
        return items;
      case Kind::kString:
        for (std::string& c : CodePoints(value.text)) items.push_back(Value::String(std::move(c)));
        return items;
      default: Fail(line, "{} goes through {}, which has no items", what, KindName(value));
    }
  }

  Flow Loop(const Node& node) {
    List items = Items(Eval(*node.expression), node.line, "for");
    if (node.filter) {
      List kept;
      scopes_.emplace_back();
      for (Value& item : items) {
        SetLoopNames(node, item);
        if (Truth(Eval(*node.filter))) kept.push_back(std::move(item));
      }
      scopes_.pop_back();
      items = std::move(kept);
    }
    if (items.empty()) return Body(node.otherwise);
    Flow flow = Flow::kOn;
    scopes_.emplace_back();
    for (size_t i = 0; i < items.size() && flow != Flow::kBreak; ++i) {
      // Names that the body sets do not outlive a turn.
      scopes_.back().clear();
      auto count = static_cast<int64_t>(items.size()), index = static_cast<int64_t>(i);
      scopes_.back()["loop"] = Value::MakeDict({{"index", Value::Int(index + 1)}, {"index0", Value::Int(index)}, {"revindex", Value::Int(count - index)},
                                                {"revindex0", Value::Int(count - index - 1)}, {"first", Value::Bool(i == 0)},
                                                {"last", Value::Bool(i + 1 == items.size())}, {"length", Value::Int(count)},
                                                {"previtem", i > 0 ? items[i - 1] : Value::Undefined("previtem")},
                                                {"nextitem", i + 1 < items.size() ? items[i + 1] : Value::Undefined("nextitem")}});
      SetLoopNames(node, items[i]);
      flow = Body(node.body);
    }
    scopes_.pop_back();
    return Flow::kOn;
  }

  void SetLoopNames(const Node& node, const Value& item) {
    if (node.names.size() == 1) scopes_.back()[node.names[0]] = item;
    else Unpack(node.names, item, scopes_.back(), node.line);
  }

  Value Eval(const Expression& e) {
    Count(e.line);
    if (++depth_ > 4 * kDepthMax) Fail(e.line, "calls are nested too deep");
    Value value = EvalInner(e);
    --depth_;
    return value;
  }

  Value EvalInner(const Expression& e) {
    auto part = [&](size_t i) { return Eval(*e.parts[i]); };
    switch (e.op) {
      case Op::kLiteral: return e.value;
      case Op::kName: {
        if (Value* found = Lookup(e.name)) return *found;
        if (IsOneOf(e.name, kFunctions)) return {.kind = Kind::kFunction, .text = e.name};
        return Value::Undefined(e.name);
      }
      case Op::kList: {
        List list;
        for (const Exp& p : e.parts) list.push_back(Eval(*p));
        return Value::MakeList(std::move(list));
      }
      case Op::kDict: {
        Dict dict;
        for (size_t i = 0; i + 1 < e.parts.size(); i += 2) Put(dict, Text(part(i)), part(i + 1));
        return Value::MakeDict(std::move(dict));
      }
      case Op::kAttribute: return Attribute(part(0), e.name, e.line);
      case Op::kSubscript: return Subscript(part(0), part(1), e.line);
      case Op::kSlice: return Slice(e);
      case Op::kCall: return Call(e);
      case Op::kFilter: return Filter(e);
      case Op::kTest: return Value::Bool(Test(e.name, part(0), e) != e.negated);
      case Op::kConditional:
        if (Truth(part(0))) return part(1);
        return e.parts.size() > 2 ? part(2) : Value::Undefined("the missing else");
      case Op::kNot: return Value::Bool(!Truth(part(0)));
      case Op::kOr: {
        Value left = part(0);
        return Truth(left) ? left : part(1);
      }
      case Op::kAnd: {
        Value left = part(0);
        return Truth(left) ? part(1) : left;
      }
      case Op::kEqual: return Value::Bool(Equal(part(0), part(1)));
      case Op::kNotEqual: return Value::Bool(!Equal(part(0), part(1)));
      case Op::kIn: return Value::Bool(In(part(0), part(1), e.line));
      case Op::kNotIn: return Value::Bool(!In(part(0), part(1), e.line));
      case Op::kConcatenate: return Value::String(Text(part(0)) + Text(part(1)));
      case Op::kLess: case Op::kLessEqual: case Op::kGreater: case Op::kGreaterEqual: return Compare(e);
      default: return Arithmetic(e);
    }
  }

  Value Attribute(const Value& object, const std::string& name, int line) const {
    if (object.is(Kind::kUndefined)) Fail(line, "\"{}\" is undefined, so it has no \"{}\"", object.text, name);
    if (object.is(Kind::kDict)) {
      if (const Value* found = Find(object, name)) return *found;
    }
    return Value::Undefined(name);
  }

  Value Subscript(const Value& object, const Value& index, int line) const {
    if (object.is(Kind::kUndefined)) Fail(line, "\"{}\" is undefined, so it has no [{}]", object.text, Repr(index));
    if (object.is(Kind::kDict)) {
      const Value* found = index.is_string() ? Find(object, index.text) : nullptr;
      return found != nullptr ? *found : Value::Undefined(Text(index));
    }
    if (object.is(Kind::kList) && index.is_number()) {
      auto size = static_cast<int64_t>(object.list->size());
      int64_t i = index.AsInt() < 0 ? index.AsInt() + size : index.AsInt();
      return i >= 0 && i < size ? (*object.list)[i] : Value::Undefined(Text(index));
    }
    if (object.is_string() && index.is_number()) {
      std::vector<std::string> points = CodePoints(object.text);
      auto size = static_cast<int64_t>(points.size());
      int64_t i = index.AsInt() < 0 ? index.AsInt() + size : index.AsInt();
      return i >= 0 && i < size ? Value::String(points[i]) : Value::Undefined(Text(index));
    }
    return Value::Undefined(Text(index));
  }

  Value Slice(const Expression& e) {
    Value object = Eval(*e.parts[0]);
    auto bound = [&](size_t i) -> std::optional<int64_t> {
      if (!e.parts[i]) return std::nullopt;
      Value v = Eval(*e.parts[i]);
      if (v.is(Kind::kNone)) return std::nullopt;
      if (!v.is(Kind::kInt) && !v.is(Kind::kBool)) Fail(e.line, "a slice's bound is {}", KindName(v));
      return v.AsInt();
    };
    std::optional<int64_t> from = bound(1), to = bound(2), step_given = bound(3);
    if (!object.is(Kind::kList) && !object.is_string()) Fail(e.line, "{} cannot be sliced", KindName(object));
    List items = Items(object, e.line, "a slice");
    auto size = static_cast<int64_t>(items.size());
    int64_t step = step_given.value_or(1);
    if (step == 0) Fail(e.line, "a slice's step is 0");
    auto clamp = [&](int64_t v, int64_t low, int64_t high) { return std::clamp(v < 0 ? v + size : v, low, high); };
    List out;
    if (step > 0) {
      for (int64_t i = from ? clamp(*from, 0, size) : 0, end = to ? clamp(*to, 0, size) : size; i < end; i += step) out.push_back(items[i]);
    } else {
      for (int64_t i = from ? clamp(*from, -1, size - 1) : size - 1, end = to ? clamp(*to, -1, size - 1) : -1; i > end; i += step) out.push_back(items[i]);
    }
    if (!object.is_string()) return Value::MakeList(std::move(out));
    std::string text;
    for (const Value& c : out) text += c.text;
    return Value::String(std::move(text));
  }

  bool In(const Value& item, const Value& whole, int line) const {
    switch (whole.kind) {
      case Kind::kString:
        if (!item.is_string()) Fail(line, "{} in a string", KindName(item));
        return whole.text.find(item.text) != std::string::npos;
      case Kind::kList: return std::any_of(whole.list->begin(), whole.list->end(), [&](const Value& v) { return Equal(v, item); });
      case Kind::kDict: return item.is_string() && Find(whole, item.text) != nullptr;
      case Kind::kUndefined: return false;
      default: Fail(line, "{} has no items to look into", KindName(whole));
    }
  }

  Value Compare(const Expression& e) {
    Value a = Eval(*e.parts[0]), b = Eval(*e.parts[1]);
    int order;
    if (a.is_number() && b.is_number()) {
      order = a.AsDouble() < b.AsDouble() ? -1 : a.AsDouble() > b.AsDouble();
    } else if (a.is_string() && b.is_string()) {
      order = a.text < b.text ? -1 : a.text > b.text;
    } else {
      Fail(e.line, "{} cannot be compared with {}", KindName(a), KindName(b));
    }
    switch (e.op) {
      case Op::kLess: return Value::Bool(order < 0);
      case Op::kLessEqual: return Value::Bool(order <= 0);
      case Op::kGreater: return Value::Bool(order > 0);
      default: return Value::Bool(order >= 0);
    }
  }

  Value Arithmetic(const Expression& e) {
    Value a = Eval(*e.parts[0]);
    if (e.op == Op::kNegate || e.op == Op::kPositive) {
      if (!a.is_number()) Fail(e.line, "{} has no sign", KindName(a));
      if (e.op == Op::kPositive) return a;
      return a.is(Kind::kFloat) ? Value::Float(-a.number) : Value::Int(-a.AsInt());
    }
    Value b = Eval(*e.parts[1]);
    if (e.op == Op::kAdd && a.is_string() && b.is_string()) return Value::String(a.text + b.text);
    if (e.op == Op::kAdd && a.is(Kind::kList) && b.is(Kind::kList)) {
      List both = *a.list;
      both.insert(both.end(), b.list->begin(), b.list->end());
      return Value::MakeList(std::move(both));
    }
    if (e.op == Op::kMultiply && a.is_string() && b.is(Kind::kInt)) {
      std::string text;
      if (b.integer > 0 && a.text.size() * static_cast<size_t>(b.integer) > kOutputMax) Fail(e.line, "more than {} MiB of text", kOutputMax >> 20);
      for (int64_t i = 0; i < b.integer; ++i) text += a.text;
      return Value::String(std::move(text));
    }
    if (!a.is_number() || !b.is_number()) Fail(e.line, "no arithmetic with {} and {}", KindName(a), KindName(b));
    bool whole = !a.is(Kind::kFloat) && !b.is(Kind::kFloat);
    if ((e.op == Op::kDivide || e.op == Op::kFloorDivide || e.op == Op::kModulo) && b.AsDouble() == 0) Fail(e.line, "division by zero");
    int64_t i = a.AsInt(), j = b.AsInt(), result = 0;
    double x = a.AsDouble(), y = b.AsDouble();
    bool overflow = false;
    switch (e.op) {
      case Op::kAdd: overflow = whole && __builtin_add_overflow(i, j, &result); x += y; break;
      case Op::kSubtract: overflow = whole && __builtin_sub_overflow(i, j, &result); x -= y; break;
      case Op::kMultiply: overflow = whole && __builtin_mul_overflow(i, j, &result); x *= y; break;
      case Op::kDivide: return Value::Float(x / y);
      case Op::kFloorDivide:
        if (whole && j != -1) result = i / j - ((i % j != 0) && ((i < 0) != (j < 0)));
        else if (whole) overflow = __builtin_sub_overflow(int64_t{0}, i, &result);
        x = std::floor(x / y);
        break;
      case Op::kModulo:
        if (whole) result = j == -1 ? 0 : i % j + ((i % j != 0) && ((i < 0) != (j < 0)) ? j : 0);
        x -= std::floor(x / y) * y;
        break;
      case Op::kPower:
        x = std::pow(x, y);
        if (whole && j >= 0 && std::abs(x) < 9e15) result = static_cast<int64_t>(x);
        else whole = false;
        break;
      default: Fail(e.line, "unknown operator");
    }
    if (overflow) Fail(e.line, "a number is too large");
    return whole ? Value::Int(result) : Value::Float(x);
  }

  // --- Calls, filters, tests.

  struct Arguments {
    List positional;
    std::vector<std::pair<std::string, Value>> named;
    const Value* Get(size_t index, std::string_view name) const {
      if (index < positional.size()) return &positional[index];
      for (const auto& [key, value] : named) {
        if (key == name) return &value;
      }
      return nullptr;
    }
  };

  Arguments Evaluate(const Expression& e) {
    Arguments arguments;
    for (size_t i = 1; i < e.parts.size(); ++i) arguments.positional.push_back(Eval(*e.parts[i]));
    for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, Eval(*value));
    return arguments;
  }

  Value Call(const Expression& e) {
    const Expression& callee = *e.parts[0];
    if (callee.op == Op::kAttribute) {
      Value object = Eval(*callee.parts[0]);
      return Method(object, callee, Evaluate(e), e.line);
    }
    Value function = Eval(callee);
    Arguments arguments = Evaluate(e);
    if (function.is(Kind::kMacro)) return CallMacro(*function.macro->node, arguments, e.line);
    if (!function.is(Kind::kFunction)) {
      Fail(e.line, "\"{}\" is {} and cannot be called; functions are range, namespace, dict, raise_exception, strftime_now", callee.name, KindName(function));
    }
    if (function.text == "raise_exception") throw Failed{"the chat template refuses: " + (arguments.positional.empty() ? "" : Text(arguments.positional[0]))};
    if (function.text == "namespace" || function.text == "dict") {
      Dict dict;
      if (!arguments.positional.empty() && arguments.positional[0].is(Kind::kDict)) dict = *arguments.positional[0].dict;
      for (auto& [name, value] : arguments.named) Put(dict, name, value);
      return Value::MakeDict(std::move(dict));
    }
    if (function.text == "strftime_now") {
      std::string format = arguments.positional.empty() ? "%Y-%m-%d" : Text(arguments.positional[0]);
      std::time_t time = now_;
      std::tm local{};
      ::localtime_r(&time, &local);
      char buffer[256];
      return Value::String(std::string(buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &local)));
    }
    int64_t numbers[3] = {0, 0, 1};
    const List& given = arguments.positional;
    if (given.empty() || given.size() > 3) Fail(e.line, "range takes one to three integers");
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i].is(Kind::kInt)) Fail(e.line, "range takes integers, not {}", KindName(given[i]));
      numbers[given.size() == 1 ? 1 : i] = given[i].integer;
    }
    if (numbers[2] == 0) Fail(e.line, "range: the step is 0");
    List list;
    for (int64_t i = numbers[0]; numbers[2] > 0 ? i < numbers[1] : i > numbers[1]; i += numbers[2]) {
      list.push_back(Value::Int(i));
      if (list.size() > 1'000'000) Fail(e.line, "range of more than a million numbers");
    }
    return Value::MakeList(std::move(list));
  }

  Value CallMacro(const Node& macro, const Arguments& arguments, int line) {
    if (arguments.positional.size() > macro.names.size()) {
      Fail(line, "macro {} takes {} arguments, {} are given", macro.text, macro.names.size(), arguments.positional.size());
    }
    Scope scope;
    for (size_t i = 0; i < macro.names.size(); ++i) {
      const Value* given = arguments.Get(i, macro.names[i]);
      scope[macro.names[i]] = given != nullptr ? *given : macro.defaults[i] ? Eval(*macro.defaults[i]) : Value::Undefined(macro.names[i]);
    }
    // A macro sees the template's own names, and none of its caller's.
    std::vector<Scope> callers;
    callers.assign(std::make_move_iterator(scopes_.begin() + 1), std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.push_back(std::move(scope));
    std::string kept = std::exchange(out_.text, "");
    auto ranges = std::exchange(out_.generated, {});
    Body(macro.body);
    std::string text = std::exchange(out_.text, std::move(kept));
    out_.generated = std::move(ranges);
    scopes_.resize(1);
    scopes_.insert(scopes_.end(), std::make_move_iterator(callers.begin()), std::make_move_iterator(callers.end()));
    return Value::String(std::move(text));
  }

  static std::string Stripped(const std::string& text, const Value* characters, bool left, bool right) {
    std::vector<std::string> points = CodePoints(text);
    auto goes = [&](const std::string& point) {
      if (characters != nullptr && characters->is_string()) return characters->text.find(point) != std::string::npos;
      size_t at = 0;
      return unicode::IsWhitespace(unicode::Next(point, at));
    };
    size_t begin = 0, end = points.size();
    while (left && begin < end && goes(points[begin])) ++begin;
    while (right && end > begin && goes(points[end - 1])) --end;
    std::string out;
    for (size_t i = begin; i < end; ++i) out += points[i];
    return out;
  }

  static std::string Replaced(const std::string& text, const std::string& from, const std::string& to, int64_t count) {
    if (from.empty()) return text;
    std::string out;
    size_t at = 0;
    for (size_t found; count != 0 && (found = text.find(from, at)) != std::string::npos; at = found + from.size(), --count) {
      out += text.substr(at, found - at) + to;
    }
    return out + text.substr(at);
  }

  static std::string Cased(const std::string& text, std::string_view how) {
    // ASCII alone: templates change the case of role names.
    std::string out = text;
    bool word_start = true;
    for (char& c : out) {
      auto u = static_cast<unsigned char>(c);
      if (how == "upper") c = static_cast<char>(std::toupper(u));
      else if (how == "lower") c = static_cast<char>(std::tolower(u));
      else c = static_cast<char>(word_start ? std::toupper(u) : std::tolower(u));
      word_start = how == "title" && !std::isalnum(u) && u < 0x80;
    }
    return out;
  }

  Value Method(Value& object, const Expression& callee, const Arguments& arguments, int line) {
    const std::string& name = callee.name;
    if (object.is(Kind::kUndefined)) Fail(line, "\"{}\" is undefined, so it has no {}()", object.text, name);
    const Value* first = arguments.Get(0, "");
    if (object.is(Kind::kDict)) {
      if (name == "items") {
        List list;
        for (const auto& [key, value] : *object.dict) list.push_back(Value::MakeList({Value::String(key), value}));
        return Value::MakeList(std::move(list));
      }
      if (name == "keys" || name == "values") {
        List list;
        for (const auto& [key, value] : *object.dict) list.push_back(name == "keys" ? Value::String(key) : value);
        return Value::MakeList(std::move(list));
      }
      if (name == "get" && first != nullptr) {
        const Value* found = first->is_string() ? Find(object, first->text) : nullptr;
        if (found != nullptr) return *found;
        return arguments.positional.size() > 1 ? arguments.positional[1] : Value::None();
      }
      if (const Value* macro = Find(object, name); macro != nullptr && macro->is(Kind::kMacro)) return CallMacro(*macro->macro->node, arguments, line);
    }
    if (object.is(Kind::kList) && name == "append" && first != nullptr) {
      object.list->push_back(*first);
      return Value::None();
    }
    if (object.is_string()) {
      if (name == "strip" || name == "lstrip" || name == "rstrip") return Value::String(Stripped(object.text, first, name != "rstrip", name != "lstrip"));
      if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") return Value::String(Cased(object.text, name));
      if (name == "split") return SplitText(object.text, arguments, line);
      if (first != nullptr && first->is_string()) {
        if (name == "startswith") return Value::Bool(object.text.starts_with(first->text));
        if (name == "endswith") return Value::Bool(object.text.ends_with(first->text));
        if (name == "find") {
          size_t at = object.text.find(first->text);
          return Value::Int(at == std::string::npos ? -1 : static_cast<int64_t>(CodePoints(object.text.substr(0, at)).size()));
        }
        if (name == "count") {
          int64_t count = 0;
          for (size_t at = 0; !first->text.empty() && (at = object.text.find(first->text, at)) != std::string::npos; at += first->text.size()) ++count;
          return Value::Int(count);
        }
        if (name == "replace" && arguments.positional.size() >= 2) {
          return Value::String(Replaced(object.text, first->text, Text(arguments.positional[1]),
                                        arguments.positional.size() > 2 ? arguments.positional[2].AsInt() : -1));
        }
      }
      if (first != nullptr && (name == "startswith" || name == "endswith") && first->is(Kind::kList)) {
        for (const Value& one : *first->list) {
          if (name == "startswith" ? object.text.starts_with(one.text) : object.text.ends_with(one.text)) return Value::Bool(true);
        }
        return Value::Bool(false);
      }
      if (name == "join" && first != nullptr) return Value::String(Joined(Items(*first, line, "join"), object.text));
    }
    Fail(line, "{} has no method {} with these arguments", KindName(object), name);
  }

  static Value SplitText(const std::string& text, const Arguments& arguments, int line) {
    const Value* separator = arguments.Get(0, "sep");
    const Value* most = arguments.Get(1, "maxsplit");
    int64_t left = most != nullptr ? most->AsInt() : -1;
    List list;
    if (separator == nullptr || separator->is(Kind::kNone)) {
      std::string word;
      for (const std::string& point : CodePoints(text)) {
        size_t at = 0;
        if (!unicode::IsWhitespace(unicode::Next(point, at))) word += point;
        else if (!word.empty()) list.push_back(Value::String(std::exchange(word, "")));
      }
      if (!word.empty()) list.push_back(Value::String(std::move(word)));
      return Value::MakeList(std::move(list));
    }
    if (!separator->is_string() || separator->text.empty()) Fail(line, "split: the separator is {}", Repr(*separator));
    size_t at = 0;
    for (size_t found; left != 0 && (found = text.find(separator->text, at)) != std::string::npos; at = found + separator->text.size(), --left) {
      list.push_back(Value::String(text.substr(at, found - at)));
    }
    list.push_back(Value::String(text.substr(at)));
    return Value::MakeList(std::move(list));
  }

  static std::string Joined(const List& items, const std::string& separator) {
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) out += (i ? separator : "") + Text(items[i]);
    return out;
  }

  // json.dumps with ensure_ascii=False, as transformers' tojson.
  static void Dump(const Value& v, int64_t indent, int64_t level, std::string& out, int line) {
    auto newline = [&](int64_t depth) {
      if (indent >= 0) out += "\n" + std::string(static_cast<size_t>(indent * depth), ' ');
    };
    switch (v.kind) {
      case Kind::kNone: out += "null"; return;
      case Kind::kBool: out += v.boolean ? "true" : "false"; return;
      case Kind::kInt: out += fmt::format("{}", v.integer); return;
      case Kind::kFloat: out += FloatText(v.number); return;
      case Kind::kString: out += OrderedJson(v.text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace); return;
      case Kind::kList:
        out += '[';
        for (size_t i = 0; i < v.list->size(); ++i) {
          if (i) out += indent >= 0 ? "," : ", ";
          newline(level + 1);
          Dump((*v.list)[i], indent, level + 1, out, line);
        }
        if (!v.list->empty()) newline(level);
        out += ']';
        return;
      case Kind::kDict:
        out += '{';
        for (size_t i = 0; i < v.dict->size(); ++i) {
          if (i) out += indent >= 0 ? "," : ", ";
          newline(level + 1);
          out += OrderedJson((*v.dict)[i].first).dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + ": ";
          Dump((*v.dict)[i].second, indent, level + 1, out, line);
        }
        if (!v.dict->empty()) newline(level);
        out += '}';
        return;
      default: Fail(line, "tojson of {}", KindName(v));
    }
  }

  Value Filter(const Expression& e) {
    Value object = Eval(*e.parts[0]);
    Arguments arguments = Evaluate(e);
    const std::string& name = e.name;
    const Value* first = arguments.Get(0, "");
    if (name == "default" || name == "d") {
      const Value* otherwise = arguments.Get(0, "default_value");
      const Value* falsy = arguments.Get(1, "boolean");
      bool missing = object.is(Kind::kUndefined) || (falsy != nullptr && Truth(*falsy) && !Truth(object));
      return missing ? (otherwise != nullptr ? *otherwise : Value::String("")) : object;
    }
    if (name == "tojson") {
      const Value* indent = arguments.Get(1, "indent");
      if (first != nullptr && first->is(Kind::kInt) && indent == nullptr) indent = first;
      std::string out;
      Dump(object, indent != nullptr && indent->is(Kind::kInt) ? indent->integer : -1, 0, out, e.line);
      return Value::String(std::move(out));
    }
    if (name == "string") return Value::String(Text(object));
    if (name == "safe") return object;
    if (name == "trim") return Value::String(Stripped(Text(object), first, true, true));
    if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") return Value::String(Cased(Text(object), name));
    if (name == "replace") {
      if (arguments.positional.size() < 2) Fail(e.line, "replace takes what and by what");
      return Value::String(Replaced(Text(object), Text(arguments.positional[0]), Text(arguments.positional[1]),
                                    arguments.positional.size() > 2 ? arguments.positional[2].AsInt() : -1));
    }
    if (name == "indent") return Value::String(Indented(Text(object), arguments));
    if (name == "int" || name == "float") return Number(object, name == "int", arguments);
    if (name == "abs") return object.is(Kind::kFloat) ? Value::Float(std::abs(object.number)) : Value::Int(std::abs(object.AsInt()));
    if (name == "length" || name == "count") {
      if (object.is(Kind::kDict)) return Value::Int(static_cast<int64_t>(object.dict->size()));
      return Value::Int(static_cast<int64_t>(Items(object, e.line, name).size()));
    }
    if (name == "items" || name == "dictsort") {
      if (!object.is(Kind::kDict)) Fail(e.line, "{} of {}", name, KindName(object));
      Dict entries = *object.dict;
      if (name == "dictsort") std::stable_sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return Cased(a.first, "lower") < Cased(b.first, "lower"); });
      List list;
      for (const auto& [key, value] : entries) list.push_back(Value::MakeList({Value::String(key), value}));
      return Value::MakeList(std::move(list));
    }
    List items = Items(object, e.line, name);
    if (name == "list") return Value::MakeList(std::move(items));
    if (name == "first") return items.empty() ? Value::Undefined("first") : items.front();
    if (name == "last") return items.empty() ? Value::Undefined("last") : items.back();
    if (name == "join") {
      const Value* attribute = arguments.Get(1, "attribute");
      if (attribute != nullptr) {
        for (Value& item : items) item = Attribute(item, Text(*attribute), e.line);
      }
      const Value* separator = arguments.Get(0, "d");
      return Value::String(Joined(items, separator != nullptr ? Text(*separator) : ""));
    }
    if (name == "reverse") {
      std::reverse(items.begin(), items.end());
      if (!object.is_string()) return Value::MakeList(std::move(items));
      return Value::String(Joined(items, ""));
    }
    if (name == "unique") {
      List kept;
      for (Value& item : items) {
        if (std::none_of(kept.begin(), kept.end(), [&](const Value& v) { return Equal(v, item); })) kept.push_back(std::move(item));
      }
      return Value::MakeList(std::move(kept));
    }
    if (name == "sort") {
      if (!arguments.positional.empty() || !arguments.named.empty()) Fail(e.line, "sort with arguments is not supported");
      std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
        if (a.is_number() && b.is_number()) return a.AsDouble() < b.AsDouble();
        if (a.is_string() && b.is_string()) return Cased(a.text, "lower") < Cased(b.text, "lower");
        Fail(e.line, "sort of {} and {}", KindName(a), KindName(b));
      });
      return Value::MakeList(std::move(items));
    }
    if (name == "map") {
      const Value* attribute = arguments.Get(99, "attribute");
      if (attribute == nullptr && (first == nullptr || !IsOneOf(first->text, kFilters))) Fail(e.line, "map takes attribute=... or the name of a filter");
      for (Value& item : items) {
        if (attribute != nullptr) {
          item = Attribute(item, Text(*attribute), e.line);
        } else {
          Expression inner{.op = Op::kFilter, .line = e.line, .name = first->text};
          inner.parts.push_back(Literal(item, e.line));
          item = Filter(inner);
        }
      }
      return Value::MakeList(std::move(items));
    }
    // select, reject, selectattr, rejectattr.
    bool by_attribute = name.ends_with("attr"), keep = name.starts_with("select");
    size_t test_at = by_attribute ? 1 : 0;
    if (by_attribute && first == nullptr) Fail(e.line, "{} takes an attribute", name);
    List kept;
    for (Value& item : items) {
      Value looked_at = by_attribute ? Attribute(item, Text(*first), e.line) : item;
      bool passes = Truth(looked_at);
      if (arguments.positional.size() > test_at) {
        std::string test = Text(arguments.positional[test_at]);
        if (test == "==") test = "equalto";
        if (!IsOneOf(test, kTests)) Fail(e.line, "the test \"{}\" is not supported", test);
        Expression inner{.op = Op::kTest, .line = e.line, .name = test};
        inner.parts.push_back(nullptr);
        for (size_t i = test_at + 1; i < arguments.positional.size(); ++i) inner.parts.push_back(Literal(arguments.positional[i], e.line));
        passes = Test(test, looked_at, inner);
      }
      if (passes == keep) kept.push_back(std::move(item));
    }
    return Value::MakeList(std::move(kept));
  }

  static Exp Literal(Value value, int line) {
    auto e = std::make_unique<Expression>();
    e->op = Op::kLiteral;
    e->line = line;
    e->value = std::move(value);
    return e;
  }

  static std::string Indented(const std::string& text, const Arguments& arguments) {
    const Value* width = arguments.Get(0, "width");
    const Value* first_too = arguments.Get(1, "first");
    std::string blanks(width != nullptr && width->is(Kind::kInt) ? static_cast<size_t>(std::clamp<int64_t>(width->integer, 0, 1000)) : 4, ' ');
    std::string out = first_too != nullptr && Truth(*first_too) ? blanks : "";
    for (size_t i = 0; i < text.size(); ++i) {
      out += text[i];
      if (text[i] == '\n' && i + 1 < text.size() && text[i + 1] != '\n') out += blanks;
    }
    return out;
  }

  static Value Number(const Value& object, bool whole, const Arguments& arguments) {
    const Value* otherwise = arguments.Get(0, "default");
    double number = 0;
    bool good = object.is_number();
    if (good) number = object.AsDouble();
    if (object.is_string()) {
      const char* begin = object.text.c_str();
      char* end = nullptr;
      number = std::strtod(begin, &end);
      good = end != begin;
    }
    if (!good && otherwise != nullptr) return *otherwise;
    if (object.is(Kind::kInt) && whole) return object;
    return whole ? Value::Int(std::abs(number) < 9e18 ? static_cast<int64_t>(number) : 0) : Value::Float(number);
  }

  bool Test(const std::string& name, const Value& v, const Expression& e) {
    auto argument = [&] {
      if (e.parts.size() < 2) Fail(e.line, "the test \"is {}\" takes an argument", name);
      return Eval(*e.parts[1]);
    };
    if (name == "defined") return !v.is(Kind::kUndefined);
    if (name == "undefined") return v.is(Kind::kUndefined);
    if (name == "none") return v.is(Kind::kNone);
    if (name == "string") return v.is_string();
    if (name == "mapping") return v.is(Kind::kDict);
    if (name == "iterable" || name == "sequence") return v.is_string() || v.is(Kind::kList) || v.is(Kind::kDict);
    if (name == "number") return v.is_number();
    if (name == "integer") return v.is(Kind::kInt);
    if (name == "float") return v.is(Kind::kFloat);
    if (name == "boolean") return v.is(Kind::kBool);
    if (name == "true") return v.is(Kind::kBool) && v.boolean;
    if (name == "false") return v.is(Kind::kBool) && !v.boolean;
    if (name == "equalto" || name == "eq") return Equal(v, argument());
    if (name == "ne") return !Equal(v, argument());
    if (name == "in") return In(v, argument(), e.line);
    if (!v.is(Kind::kInt)) Fail(e.line, "{} is neither odd nor even", KindName(v));
    return (v.integer % 2 != 0) == (name == "odd");
  }

  std::vector<Scope> scopes_;
  RenderedTemplate out_;
  int64_t now_;
  int64_t steps_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<JinjaTemplate> JinjaTemplate::Parse(std::string_view source) {
  if (!unicode::IsValid(source)) {
    const auto same = std::mismatch(source.begin(), source.end(), unicode::ToValid(source).begin()).first;
    return InvalidArgument("the template is not UTF-8 at byte {}", same - source.begin());
  }
  try {
    return JinjaTemplate(TemplateParser(source).Parse());
  } catch (const Failed& failed) {
    return InvalidArgument("{}", failed.message);
  }
}

absl::StatusOr<RenderedTemplate> JinjaTemplate::Render(const nlohmann::ordered_json& variables, int64_t now) const {
  try {
    return Interpreter(variables, now).Run(*root_);
  } catch (const Failed& failed) {
    return InvalidArgument("{}", failed.message);
  }
}

}  // namespace argosy::train
