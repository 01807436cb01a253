#include "text/constraint/written_grammar.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <regex>

#include "base/json.h"
#include "text/answer_format.h"
#include "text/constraint/grammar_constraint.h"
#include "text/constraint/input_constraint.h"
#include "text/constraint/matcher.h"
#include "text/constraint/schema.h"
#include "text/fixtures.h"

namespace millrace::text {
namespace {

constexpr auto kGbnf = GrammarSyntax::gbnf, kLark = GrammarSyntax::lark, kRegex = GrammarSyntax::regex;

std::shared_ptr<const TokenTrie> demo_trie() {
  static const auto trie = TokenTrie::make(*test::demo_tokenizer());
  return trie;
}

std::shared_ptr<const Grammar> made(GrammarSyntax syntax, const std::string& text) {
  const auto grammar = written_grammar(syntax, text);
  EXPECT_TRUE(grammar.ok()) << text << ": " << grammar.status().message();
  return grammar.ok() ? *grammar : nullptr;
}

bool takes(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  if (grammar == nullptr) return false;
  Matcher matcher(grammar, demo_trie());
  return matcher.take(text).ok() && matcher.may_end();
}

bool takes(GrammarSyntax syntax, const std::string& grammar, const std::string& text) {
  return takes(made(syntax, grammar), text);
}

/// A text that masks allow, picked at random; whole, or empty where none was found.
std::string walk(const std::shared_ptr<const Grammar>& grammar, unsigned seed) {
  const auto trie = demo_trie();
  const auto constraint = make_constraint(grammar, trie);
  std::mt19937 random(seed);
  std::vector<std::uint32_t> bits((static_cast<std::size_t>(trie->vocab_size()) + 31) / 32);
  std::string text;
  for (int step = 0; step < 400 && !constraint->done(); ++step) {
    EXPECT_TRUE(constraint->mask(bits).ok());
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < trie->vocab_size(); ++id)
      if (((bits[static_cast<std::size_t>(id) / 32] >> (id % 32)) & 1u) != 0) allowed.push_back(id);
    EXPECT_FALSE(allowed.empty()) << "a dead end after " << text;
    if (allowed.empty()) return "";
    const bool may_end = trie->ends_text(allowed.back()) || trie->ends_text(allowed.front());
    const TokenId id = allowed[random() % allowed.size()];
    if (trie->ends_text(id) || (may_end && step > 100)) return text;
    if (!constraint->accept(id).ok()) return "";  // nests too deep
    text += trie->bytes_of(id);
  }
  return constraint->done() ? text : "";
}

// --- GBNF ---

constexpr const char* kArithmetic = R"_(root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
)_";

TEST(Gbnf, TakesAndRefuses) {
  const auto grammar = made(kGbnf, kArithmetic);
  EXPECT_TRUE(takes(grammar, "a +(b*2)/c = 7\nx=y\n"));
  EXPECT_TRUE(takes(grammar, "((((1))))=1\n"));
  for (const char* bad : {"", "a+=1\n", "(a=1\n", "a=1", "A=1\n", "a=1\n=2\n"})
    EXPECT_FALSE(takes(grammar, bad)) << bad;
}

TEST(Gbnf, EveryForm) {
  const auto one = [](const std::string& body, const std::string& text) {
    return takes(kGbnf, "root ::= " + body + "\n", text);
  };
  EXPECT_TRUE(one(R"_("a\"\\\n\t\r\x41\u00e9\U0001F600")_", "a\"\\\n\t\rAé😀"));
  EXPECT_TRUE(one("[ぁ-ゟ]+", "ひらがな"));
  EXPECT_FALSE(one("[ぁ-ゟ]+", "カ"));
  EXPECT_TRUE(one(R"_([^\n]+ "\n")_", "line é\n"));
  EXPECT_FALSE(one(R"_([^\n]+)_", "a\nb"));
  EXPECT_TRUE(one(R"_([a\]\-z-])_", "]"));
  EXPECT_TRUE(one("[+#-]", "-"));
  EXPECT_TRUE(one(R"_("ab"{2})_", "abab"));
  EXPECT_FALSE(one(R"_("ab"{2})_", "ab"));
  EXPECT_TRUE(one(R"_("a"{2,})_", "aaaaa"));
  EXPECT_FALSE(one(R"_("a"{,2})_", "aaa"));
  EXPECT_TRUE(one(R"_("a"{ 0 , 2 })_", ""));
  EXPECT_TRUE(one(R"_(("a" | "b" # one
      | "c")? "d")_",
                  "cd"));
  EXPECT_TRUE(one("\"a\" |\n  \"b\"", "b"));
  EXPECT_TRUE(one(". .", "\n😀"));
  EXPECT_TRUE(one(R"_("")_", ""));
  EXPECT_TRUE(takes(kGbnf, "# a list\r\nroot ::= item+\r\nitem ::= \"- \" [a-z]+ \"\\n\" # one\r\n", "- a\n- bc\n"));
}

/// As lists were written before there were repeats: each item is a rule within the one before.
TEST(Gbnf, RulesThatEndWithThemselvesDoNotNest) {
  const auto grammar =
      made(kGbnf, "root ::= \"[\" list \"]\"\nlist ::= [0-9] ws (\",\" ws list)?\nws ::= ([ \\n] ws)?\n");
  std::string text = "[1";
  for (int i = 0; i < 3000; ++i) text += ",   2";
  EXPECT_TRUE(takes(grammar, text + "]"));
  EXPECT_FALSE(takes(grammar, text + ",]"));
}

TEST(Gbnf, WhatNestsWithoutEndIsRefusedWhileItComes) {
  const auto grammar = made(kGbnf, "root ::= \"(\" root \")\" | \"x\"\n");
  EXPECT_TRUE(takes(grammar, std::string(100, '(') + "x" + std::string(100, ')')));
  EXPECT_FALSE(takes(grammar, std::string(100, '(') + "x" + std::string(99, ')')));
  Matcher matcher(grammar, demo_trie());
  const Status status = matcher.take(std::string(1000, '('));
  EXPECT_NE(status.message().find("nests more than"), std::string::npos) << status.message();
}

TEST(Gbnf, JsonOfAGrammarIsJson) {
  const auto grammar = made(kGbnf, R"_(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)_");
  EXPECT_TRUE(takes(grammar, R"_({"a": [1, -2.5e3, {"b": null}], "ü\n": "x"})_"));
  EXPECT_FALSE(takes(grammar, R"_({"a": [1, }])_"));
  int whole = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const std::string text = walk(grammar, seed);
    if (text.empty()) continue;
    ++whole;
    // A lone half of a surrogate pair is in the grammar, and no JSON of nlohmann's.
    EXPECT_TRUE(nlohmann::json::accept(text) || text.find("\\u") != std::string::npos) << text;
  }
  EXPECT_GT(whole, 0);
}

// --- Lark ---

/// How a coding agent has its patches written.
constexpr const char* kPatch = R"_(start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
)_";

TEST(Lark, APatch) {
  const auto grammar = made(kLark, kPatch);
  EXPECT_TRUE(takes(grammar,
                    "*** Begin Patch\n*** Update File: src/a b.py\n*** Move to: c.py\n@@ def f():\n-    pass\n+    "
                    "return \"é\"\n \n*** Add File: d\n+x\n+\n*** Delete File: e\n*** End Patch"));
  for (const char* bad : {"*** Begin Patch\n*** End Patch\n", "*** Begin Patch\n*** Add File: d\n*** End Patch\n",
                          "*** Begin Patch\n*** Update File: a\nx\n*** End Patch\n",
                          "```\n*** Begin Patch\n*** Delete File: e\n*** End Patch\n```"})
    EXPECT_FALSE(takes(grammar, bad)) << bad;
}

TEST(Lark, EveryForm) {
  const auto one = [](const std::string& body, const std::string& text) {
    return takes(kLark, "start: " + body, text);
  };
  EXPECT_TRUE(one(R"_("a\"\\\n\u00e9")_", "a\"\\\né"));
  EXPECT_TRUE(one(R"_("SELECT"i)_", "sEleCT"));
  EXPECT_TRUE(one(R"_("a".."f"~2..3)_", "fab"));
  EXPECT_FALSE(one(R"_("a".."f"~2..3)_", "fabc"));
  EXPECT_TRUE(one(R"_(["x"] "y"?)_", ""));
  EXPECT_TRUE(one("/[a-z]+/i", "aBc"));
  EXPECT_TRUE(one("/a.b/s", "a\nb"));
  EXPECT_FALSE(one("/a.b/", "a\nb"));
  EXPECT_TRUE(one(R"_(/https?:\/\/[^ ]+/)_", "http://x"));
  EXPECT_TRUE(one("\"a\"\n  | \"b\"  // other\n  | \"c\" -> third\n", "c"));
  EXPECT_TRUE(one("( \"a\"\n | \"b\" )+", "ab"));
  EXPECT_TRUE(takes(kLark, "?start: x~3\n!x.2: A\nA: B \"!\"\nB: /b/\n", "b!b!b!"));
  EXPECT_TRUE(takes(kLark, "%import common (INT, CNAME -> NAME)\nstart: NAME \"=\" INT", "a_1=20"));
}

TEST(Lark, Templates) {
  const std::string lists = R"_(start: "[" list{NUMBER, ","} "]" | "(" list{pair{"x"}, (";" | "/")} ")"
list{item, separator}: item (separator item)*
pair{a}: a "=" a
%import common.NUMBER
)_";
  EXPECT_TRUE(takes(kLark, lists, "[1,2,30]"));
  EXPECT_TRUE(takes(kLark, lists, "(x=x;x=x/x=x)"));
  EXPECT_FALSE(takes(kLark, lists, "[1;2]"));
  EXPECT_FALSE(takes(kLark, lists, "(x=y)"));
  const std::string itself = "start: list{\"a\"}\nlist{x}: x | list{x} \",\" x";
  EXPECT_TRUE(takes(kLark, itself, "a,a,a"));
  EXPECT_FALSE(takes(kLark, itself, "a,,a"));
}

TEST(Lark, DefinitionsThatReplaceAndExtend) {
  const std::string text =
      "start: NUMBER | x\nx: \"a\"\n%import common.NUMBER\n%override NUMBER: /0|1/\n%extend x: \"b\" | \"c\"\n";
  for (const char* good : {"0", "a", "b", "c"}) EXPECT_TRUE(takes(kLark, text, good)) << good;
  EXPECT_FALSE(takes(kLark, text, "2"));
}

TEST(Lark, WhatIsIgnoredStandsBetweenTerminals) {
  const std::string grammar = R"_(
    start: "let" NAME "=" sum ";"
    sum: sum "+" product | product
    product: product "*" atom | atom
    atom: NUMBER | NAME | "(" sum ")"
    %import common.CNAME -> NAME
    %import common.NUMBER
    %import common.WS
    %import common.C_COMMENT
    %ignore WS
    %ignore C_COMMENT
)_";
  const auto made_grammar = made(kLark, grammar);
  EXPECT_TRUE(takes(made_grammar, "let x=1+2*(y+3.5e1);"));
  EXPECT_TRUE(takes(made_grammar, "\n let x = /* sum */ 1 +\n2 * ( y ) ; "));
  EXPECT_FALSE(takes(made_grammar, "let x = 1 2;"));
  EXPECT_FALSE(takes(made_grammar, "let x = 1 +;"));
  EXPECT_FALSE(takes(made_grammar, "let x = /* open 1;"));
}

// --- Regular expressions ---

TEST(Regex, IsOfTheWholeText) {
  EXPECT_TRUE(takes(kRegex, "[a-c]+|x", "abc"));
  EXPECT_FALSE(takes(kRegex, "[a-c]+|x", "abcx"));
  EXPECT_TRUE(takes(kRegex, "^\\d{3}-\\d{4}$", "555-0199"));
  EXPECT_TRUE(takes(kRegex, "(?P<year>\\d{4})", "2026"));
  EXPECT_TRUE(takes(kRegex, "(?=.*\\d)[a-z0-9]{4}", "ab1c"));
  EXPECT_FALSE(takes(kRegex, "(?=.*\\d)[a-z0-9]{4}", "abcd"));
  EXPECT_FALSE(takes(kRegex, "\\bcat\\b.*", "cats"));
  EXPECT_TRUE(takes(kRegex, ".*", "a\rb"));  // as in Python and Rust
}

TEST(Regex, WhatItAllowsMatches) {
  for (const char* pattern : {"(red|green) [0-9]{1,3}%", "[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8}){0,2}", "a(b|cd)*e?"})
    for (unsigned seed = 0; seed < 20; ++seed) {
      const std::string text = walk(made(kRegex, pattern), seed);
      EXPECT_TRUE(std::regex_match(text, std::regex(pattern))) << pattern << ": " << text;
    }
}

/// Classes of Unicode have hundreds of ranges; several of them side by side are followed all the same.
TEST(Regex, ClassesOfUnicodeAreFollowed) {
  const auto grammar = made(kRegex, "(?=.*\\d)(?P<a>[a-z]|\\p{L}){2,5}\\b.*");
  EXPECT_TRUE(takes(grammar, "Äпa 7"));
  EXPECT_FALSE(takes(grammar, "Äпa x"));
  for (unsigned seed = 0; seed < 3; ++seed) walk(grammar, seed);
}

// --- Errors and limits ---

TEST(WrittenGrammar, ErrorsTellThePlace) {
  struct Case {
    GrammarSyntax syntax;
    const char *text, *says;
  };
  const Case cases[] = {
      {kGbnf, "", "line 1, column 1: there is no rule root"},
      {kGbnf, "a ::= \"x\"", "there is no rule root"},
      {kGbnf, "root ::= a\n\nb ::= \"é\" c", "line 1, column 10: the rule a is not defined"},
      {kGbnf, "root ::= \"é\" ) ", "line 1, column 14: an unexpected )"},
      {kGbnf, "root ::= \"a", "line 1, column 12: a \" without its end"},
      {kGbnf, "root ::= [b-a]", "line 1, column 14: a range upside down"},
      {kGbnf, "root ::= \"a\"\nx = y", "line 2, column 3: ::= has to follow"},
      {kGbnf, "root ::= * \"a\"", "line 1, column 10: nothing stands here to be repeated"},
      {kGbnf, "root ::= \"a\"{3,2}", "line 1, column 17: a count upside down"},
      {kGbnf, "root ::= \"a\"{99999}", "10000 repeats are the most"},
      {kGbnf, "root ::= \"\\q\"", "line 1, column 12: a backslash before what needs none"},
      {kGbnf, "root ::= <think>", "line 1, column 10: tokens as terminals are not supported"},
      {kGbnf, "root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: the rule root is defined twice"},
      {kGbnf, "root ::= a\na ::= a \"x\" | \"y\"", "line 2, column 1: the rule a comes back to itself before"},
      {kGbnf, "root ::= a\na ::= \"x\"? b\nb ::= a | \"y\"", "comes back to itself before a character"},
      {kGbnf, "root ::= \"a\" root", "line 1, column 1: no text of finite length"},
      {kGbnf, "root ::= \"\xff\"", "line 1, column 11: bytes that are no UTF-8"},
      {kLark, "begin: \"a\"", "there is no rule start"},
      {kLark, "start: A\n", "line 1, column 8: the rule A is not defined"},
      {kLark, "start: A\nA: b\nb: \"c\"", "line 2, column 4: a terminal cannot hold the rule b"},
      {kLark, "start: /a(/", "line 1, column 8: the pattern has a group without its ')'"},
      {kLark, "start: /a/m", "line 1, column 11: flags of regular expressions"},
      {kLark, "start: list{\"a\"}", "line 1, column 8: the template list is not defined"},
      {kLark, "start: l{\"a\"}\nl{x, y}: x y", "line 1, column 8: the template l takes 2 arguments"},
      {kLark, "start: l{\"a\"}\nl{x}: x\nl{x}: x x", "line 3, column 1: l is defined twice"},
      {kLark, "start: l{\"a\"}\nl{x}: \"(\" l{(x \"b\")} \")\"", "templates come to more than"},
      {kLark, "start: \"a\"\n%override x: \"b\"", "line 2, column 11: x is not defined before this"},
      {kLark, "start: A\n%import common.NOPE", "line 2, column 16: common has no terminal NOPE"},
      {kLark, "start: A\n%import python.NAME", "line 2, column 9: imports of other libraries"},
      {kLark, "start: A\n%declare A", "line 2, column 1: %declare names terminals"},
      {kLark, "start \"a\"", "line 1, column 7: a : has to follow"},
      {kLark, "start: b\nb: c\nc: b \"x\" | \"y\"", "comes back to itself before a character"},
      {kLark, "start: \"a\" }", "this begins no part of a rule"},
      {kRegex, "a\n(b", "line 2, column 3: the pattern has a group without its ')'"},
      {kRegex, "(?<=a)b", "line 1, column 4: patterns with look-behind are not supported"},
      {kRegex, "a$b", "no text of finite length"},
  };
  for (const Case& each : cases) {
    const auto grammar = written_grammar(each.syntax, each.text);
    ASSERT_FALSE(grammar.ok()) << each.text;
    EXPECT_NE(grammar.status().message().find(each.says), std::string::npos)
        << each.text << ": " << grammar.status().message();
  }
}

/// Alternatives that begin alike share their beginnings: each would be a place of its own.
TEST(WrittenGrammar, ManyAlternatives) {
  std::string gbnf = "root ::= ", regex, lark = "start: ";
  for (int i = 0; i < 8000; ++i) {
    const char* const more = i == 0 ? "" : " | ";
    gbnf += fmt::format("{}\"c{}\"", more, i);
    lark += fmt::format("{}\"c{}\" x", more, i);
    regex += fmt::format("{}c{}y*", i == 0 ? "" : "|", i);
  }
  EXPECT_TRUE(takes(kGbnf, gbnf, "c7999"));
  EXPECT_FALSE(takes(kGbnf, gbnf, "c8000"));
  EXPECT_TRUE(takes(kLark, lark + "\nx: \"x\"", "c7999x"));
  EXPECT_TRUE(takes(kRegex, regex, "c7999yy"));
  EXPECT_FALSE(takes(kRegex, regex, "c79990"));
  EXPECT_EQ(walk(made(kGbnf, gbnf), 3)[0], 'c');
  // Rules are no texts: what is too much is said, not that nothing fits.
  std::string rules = "root ::= r0", bodies;
  for (int i = 0; i < 4200; ++i) {
    if (i > 0) rules += fmt::format("|r{}", i);
    bodies += fmt::format("\nr{} ::= [ab] \"{}\"", i, i);
  }
  Matcher matcher(made(kGbnf, rules + bodies), demo_trie());
  std::vector<std::uint32_t> bits((static_cast<std::size_t>(demo_trie()->vocab_size()) + 31) / 32);
  const Status masked = matcher.add_mask(bits);
  EXPECT_NE(masked.message().find("ways open at once"), std::string::npos) << masked.message();
}

TEST(WrittenGrammar, HostileOnesEndSoon) {
  const auto begin = std::chrono::steady_clock::now();
  std::string deep = "root ::= ", nested = "root ::= \"a\"";
  for (int i = 0; i < 50'000; ++i) deep += "(";
  for (int i = 0; i < 60; ++i) nested += "{9999}";
  std::string long_list = "root ::= \"x\"";
  for (int i = 0; i < 20'000; ++i) long_list += " | .";
  std::string many = "root ::= r0\n";
  for (int i = 0; i < 6000; ++i) many += fmt::format("r{} ::= r{}?\n", i, i + 1);
  many += "r6000 ::= \"x\"\n";
  for (const std::string& text : {deep, nested, long_list, many, std::string(1 << 20, ' ')}) {
    const auto grammar = written_grammar(kGbnf, text);
    if (!grammar.ok()) continue;
    Matcher matcher(*grammar, demo_trie());
    std::vector<std::uint32_t> bits((static_cast<std::size_t>(demo_trie()->vocab_size()) + 31) / 32);
    (void)matcher.add_mask(bits);
  }
  EXPECT_FALSE(written_grammar(kGbnf, deep).ok());
  EXPECT_FALSE(written_grammar(kGbnf, nested).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

/// A text of the grammar inside of a JSON string.
TEST(WrittenGrammar, BindsAStringWithinJson) {
  const nlohmann::json call = {
      {"type", "object"},
      {"properties",
       {{"input", {{"type", "string"}, {kGrammarOfString, {{"syntax", "lark"}, {"definition", kPatch}}}}}}},
      {"required", {"input"}},
      {"additionalProperties", false}};
  const auto grammar = schema_grammar(call.dump());
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const nlohmann::json good = {{"input", "*** Begin Patch\n*** Add File: d\n+\"x\"\\\n*** End Patch"}};
  EXPECT_TRUE(takes(*grammar, good.dump()));
  EXPECT_FALSE(takes(*grammar, R"_({"input":"*** Begin Patch\n*** End Patch"})_"));
  for (unsigned seed = 0; seed < 5; ++seed) {
    const std::string text = walk(*grammar, seed);
    if (text.empty()) continue;
    EXPECT_TRUE(takes(made(kLark, kPatch), nlohmann::json::parse(text)["input"].get<std::string>())) << text;
  }
}

// --- Texts of tools within free text ---

/// Whether the masks let the text come, token by token, in the tokenizer's own cut.
bool lets(Constraint& constraint, const std::string& text) {
  std::vector<std::uint32_t> bits((static_cast<std::size_t>(demo_trie()->vocab_size()) + 31) / 32);
  for (const TokenId id : test::demo_tokenizer()->encode(text, Specials::as_text)) {
    EXPECT_TRUE(constraint.mask(bits).ok());
    if (((bits[static_cast<std::size_t>(id) / 32] >> (id % 32)) & 1u) == 0) return false;
    EXPECT_TRUE(constraint.accept(id).ok());
  }
  return true;
}

std::shared_ptr<Constraint> patches(const TagStyle* tags) {
  auto input = bound_input("apply_patch", kLark, kPatch, tags);
  EXPECT_TRUE(input.ok()) << input.status().message();
  std::vector<BoundInput> inputs;
  inputs.push_back(std::move(*input));
  const auto tokenizer = test::demo_tokenizer();
  return make_input_constraint(std::move(inputs), tags, demo_trie(), tokenizer);
}

TEST(InputConstraint, BindsTheTextOfACallAndNothingElse) {
  const std::string before =
      "I call apply_patch now.\n<tool_call>\n{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"";
  const std::string patch = "*** Begin Patch\\n*** Add File: d\\n+\\\"x\\\"\\n*** End Patch\\n";
  EXPECT_TRUE(lets(*patches(nullptr), before + patch + "\"}}\n</tool_call>\nDone: \"input\": \"free\""));
  EXPECT_FALSE(lets(*patches(nullptr), before + "--- a\\n+++ b\"}}"));
  EXPECT_FALSE(lets(*patches(nullptr), before + "*** Begin Patch\\n*** End Patch\"}}"));
  EXPECT_TRUE(lets(*patches(nullptr), "{\"name\": \"other\", \"arguments\": {\"input\": \"--- a"));
}

TEST(InputConstraint, BindsAValueInTags) {
  const TagStyle* const tags = call_format("qwen3-coder").tags;
  const std::string before = "<tool_call>\n<function=apply_patch>\n<parameter=input>\n";
  const std::string patch = "*** Begin Patch\n*** Add File: d\n+\"x\"\n*** End Patch\n";
  EXPECT_TRUE(lets(*patches(tags), before + patch + "\n</parameter>\n</function>\n</tool_call> free"));
  EXPECT_FALSE(lets(*patches(tags), before + "--- a\n"));
}

}  // namespace
}  // namespace millrace::text
