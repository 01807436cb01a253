#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "text/constraint/grammar_constraint.h"
#include "text/constraint/matcher.h"
#include "text/constraint/schema.h"
#include "text/fixtures.h"
#include "text/schema_checker.h"

namespace millrace::text {
namespace {

using nlohmann::json;

/// One schema a line of what is understood, alone and together.
const std::vector<std::string>& schemas() {
  static const std::vector<std::string> all = {
      R"({"type":"object"})",
      R"({})",
      R"({"type":"boolean"})",
      R"({"type":["string","null"],"maxLength":5})",
      R"({"type":"string","nullable":true,"minLength":2,"maxLength":2})",
      R"({"type":"string","minLength":3})",
      R"({"type":"string","minLength":100,"maxLength":2000})",
      R"({"type":"integer"})",
      R"({"type":"number"})",
      R"({"type":"integer","minimum":-12,"maximum":107})",
      R"({"type":"integer","minimum":0})",
      R"({"type":"integer","exclusiveMinimum":-5,"exclusiveMaximum":-3})",
      R"({"type":"integer","maximum":-1000})",
      R"({"type":"number","minimum":0,"maximum":1})",
      R"({"type":"number","exclusiveMinimum":0})",
      R"({"type":"number","minimum":-2.5,"exclusiveMaximum":3.75})",
      R"({"type":"number","exclusiveMinimum":-1,"maximum":0})",
      R"({"type":"number","minimum":99.9,"maximum":100.1})",
      R"({"enum":["red","green \"x\"",3,null,{"a":[1,2]},"é"]})",
      R"({"type":"string","enum":["a","b",7]})",
      R"({"const":{"deep":[true,null,"\n"]}})",
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},"tags":{"type":"array",
          "items":{"type":"string"},"maxItems":3}},"required":["name","age"]})",
      R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"boolean"},"c":{"const":1}}})",
      R"({"type":"object","properties":{"ab":{"type":"integer"},"a\"c":{"type":"integer"},"é":{"type":"integer"}},
          "required":["ab"],"additionalProperties":{"type":"string"}})",
      R"({"type":"object","additionalProperties":{"type":"integer"}})",
      R"({"type":"object","required":["x"]})",
      R"({"type":"object","properties":{},"additionalProperties":false})",
      R"({"type":"array","items":{"type":"integer","minimum":1,"maximum":6},"minItems":2,"maxItems":4})",
      R"({"type":"array","items":{"type":"boolean"},"minItems":3})",
      R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"}})",
      R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"minItems":2,"items":false})",
      R"({"type":"array","maxItems":0})",
      R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"$ref":"#"}}]})",
      R"({"oneOf":[{"type":"object","properties":{"kind":{"const":"cat"},"lives":{"type":"integer"}},"required":["kind","lives"]},
          {"type":"object","properties":{"kind":{"const":"dog"},"name":{"type":"string"}},"required":["kind"]}]})",
      R"({"allOf":[{"type":"object","properties":{"a":{"type":"number"}},"required":["a"]},
          {"properties":{"a":{"minimum":3},"b":{"type":"string","maxLength":3}},"required":["b"]}]})",
      R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"],
          "anyOf":[{"properties":{"y":{"type":"null"}},"required":["y"]},{"properties":{"z":{"type":"boolean"}},"required":["z"]}]})",
      R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"value":{"type":"integer"},
          "children":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["value"]}}})",
      R"({"$defs":{"s":{"type":"string"}},"type":"object","properties":{"p":{"$ref":"#/$defs/s","maxLength":2,"title":"P"}},"required":["p"]})",
      R"_({"type":"string","pattern":"^[a-c]+(-[0-9]{2,3})?$"})_",
      R"_({"type":"string","pattern":"^(foo|ba[rz]|\\d\\.\\w ?)$"})_",
      R"_({"type":"string","pattern":"[a-z]"})_",
      R"_({"type":"string","pattern":"^[^a-z\"]{1,4}$"})_",
      R"({"type":"object","properties":{"d":{"type":"string","format":"date-time"},"u":{"type":"string","format":"uuid"},
          "e":{"type":"string","format":"email"},"i":{"type":"string","format":"ipv4"},"t":{"type":"string","format":"time"},
          "w":{"type":"string","format":"uri"},"h":{"type":"string","format":"hostname"}},
          "required":["d","u","e","i","t","w","h"]})",
      // Strings of several forms at once.
      R"_({"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":5})_",
      R"_({"type":"string","format":"email","maxLength":40,"pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"})_",
      R"_({"allOf":[{"type":"string","pattern":"^ab.*"},{"pattern":".*yz$"},{"pattern":"mm"}],"maxLength":14})_",
      R"_({"type":"string","pattern":"^(?=.*[0-9])(?=.*[a-z])(?!.*x)[a-z0-9]{4,8}$"})_",
      R"_({"type":"string","pattern":"\\bcat\\b","maxLength":9})_",
      R"_({"type":"string","pattern":"^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$","format":"duration"})_",
      R"_({"type":"string","pattern":"^(?!a)[a-z]*$","not":{"pattern":"b"},"minLength":1,"maxLength":4})_",
      R"({"type":"string","minLength":1,"not":{"enum":["","a","no"]}})",
      R"({"type":"string","enum":["a","bbb","cc"],"minLength":2,"pattern":"^b|c"})",
      // Numbers.
      R"({"type":"number","multipleOf":0.01})",
      R"({"type":"integer","multipleOf":7,"minimum":-30,"maximum":500})",
      R"({"type":"number","multipleOf":2.5,"exclusiveMinimum":-10,"maximum":107.5})",
      R"({"type":"integer","multipleOf":86400})",
      R"({"type":"integer","multipleOf":1000000007,"minimum":5})",
      R"({"type":"integer","multipleOf":1e17})",
      R"({"type":"number","multipleOf":1e-9,"minimum":-1,"maximum":2})",
      R"({"type":"number","minimum":1e-7,"maximum":5e-7})",
      R"({"type":"integer","minimum":0,"maximum":20,"not":{"enum":[3,7,20]}})",
      R"({"type":"number","minimum":0.1234567,"maximum":0.2})",
      R"({"not":{"type":"integer"}})",
      R"({"not":{"type":["null","string"]}})",
      R"({"type":["integer","null","string"],"not":{"type":"null"}})",
      R"({"type":"number","not":{"type":"integer"}})",
      R"({"type":"number","not":{"type":"integer"},"minimum":-0.5,"maximum":12.25})",
      R"({"type":"number","not":{"type":"integer"},"multipleOf":0.5})",
      R"({"type":"number","not":{"type":"integer"},"minimum":3,"maximum":4})",
      R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
      R"({"oneOf":[{"type":"integer","minimum":3},{"type":"number","maximum":10},{"type":"string"}]})",
      R"({"oneOf":[{"type":["string","null"]},{"type":["null","boolean"]}]})",
      R"({"oneOf":[{"type":"number"},{"enum":[1,"a"]}]})",
      // Objects.
      R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"number"}})",
      R"({"type":"object","propertyNames":{"type":"string","enum":["a","b"]},"additionalProperties":{"type":"number"},"required":["a"]})",
      R"_({"type":"object","propertyNames":{"pattern":"^k_[a-z]+$","maxLength":6},"additionalProperties":{"type":"boolean"}})_",
      R"_({"type":"object","patternProperties":{"^x_":{"type":"string"},"_n$":{"maxLength":2}},"propertyNames":{"maxLength":6}})_",
      R"_({"type":"object","properties":{"a":{"type":"integer"},"x_b":{"maxLength":3}},"required":["x_b"],
          "patternProperties":{"^x_":{"type":"string"}},"additionalProperties":{"type":"null"}})_",
      R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}},"minProperties":2})",
      R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}},"maxProperties":1})",
      R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":3})",
      R"({"type":"object","minProperties":3})",
      R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":2,"maxProperties":3})",
      R"({"type":"object","properties":{"a":{"type":"null"},"ab":{"type":"null"}},"required":["ab"],
          "additionalProperties":{"type":"string"},"minProperties":4})",
      R"_({"type":"object","patternProperties":{"^x_":{"type":"null"},"^[ab]$":{"type":"boolean"}},"minProperties":3})_",
      R"_({"type":"object","patternProperties":{"^[ab]$":{"type":"boolean"}},"minProperties":2,"maxProperties":2})_",
      R"({"type":"object","additionalProperties":{"type":"object","additionalProperties":{"type":"null"},"minProperties":2},
          "minProperties":2})",
      R"({"type":"object","properties":{"card":{"type":"integer"},"address":{"type":"string"}},"dependentRequired":{"card":["address"]}})",
      R"({"type":"object","properties":{"a":{"not":{}},"b":{"type":"integer"}}})",
      R"({"type":"object","not":{"required":["secret"]}})",
      R"({"type":"object","properties":{"kind":{"enum":["a","b"]},"x":{"type":"integer"}},"required":["kind"],
          "if":{"properties":{"kind":{"const":"a"}}},"then":{"required":["x"]},"else":{"properties":{"x":false}}})",
      R"({"oneOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false},
          {"type":"object","properties":{"b":{"type":"number"}},"required":["b"],"additionalProperties":false}]})",
      R"({"type":"integer","oneOf":[{"minimum":10},{"maximum":20}]})",
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
          "oneOf":[{"required":["a"]},{"required":["b"]}]})",
      // Lists.
      R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":2})",
      R"({"type":"array","items":{"enum":["a","b","c","d","e","f","g","h","i","j"]},"uniqueItems":true,"maxItems":3})",
      R"({"type":"array","items":{"type":"integer","minimum":1,"maximum":30},"uniqueItems":true,"minItems":4})",
      R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
      R"({"type":"array","items":{"type":"string","maxLength":1},"uniqueItems":true,"minItems":3,"maxItems":6})",
      R"({"type":"array","items":{"type":"string","pattern":"^[ab]{1,2}$"},"uniqueItems":true,"minItems":6})",
      R"({"type":"array","items":{"type":"integer"},"uniqueItems":true,"minItems":2})",
      R"({"type":"array","items":{"type":"integer","minimum":-3,"maximum":250},"uniqueItems":true,"minItems":30})",
      R"({"type":"array","items":{"type":"number"},"uniqueItems":true,"minItems":5})",
      R"({"type":"array","items":{"type":"number","minimum":-1,"maximum":1.25,"multipleOf":0.25},"uniqueItems":true,"minItems":10})",
      R"({"type":"array","items":{"type":"number","exclusiveMinimum":-0.5,"maximum":2},"uniqueItems":true,"minItems":5})",
      R"({"type":"array","uniqueItems":true,"minItems":3})",
      R"({"type":"array","items":{"anyOf":[{"type":"string"},{"type":"integer"},{"enum":[1.0,"x",0.5,null]}]},"uniqueItems":true,"minItems":3})",
      R"({"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"to":{"type":"string"}},
          "required":["id"],"additionalProperties":false},"uniqueItems":true,"minItems":2})",
      R"({"type":"array","items":{"type":"array","items":{"type":"integer","minimum":0},"uniqueItems":true,"maxItems":3},
          "uniqueItems":true,"minItems":4})",
      R"({"type":"object","properties":{"tags":{"$ref":"#/$defs/set"},"also":{"$ref":"#/$defs/set"}},"required":["tags","also"],
          "$defs":{"set":{"type":"array","items":{"$ref":"#/$defs/id"},"uniqueItems":true,"minItems":2},
          "id":{"anyOf":[{"type":"integer"},{"type":"array","items":{"$ref":"#/$defs/id"},"maxItems":2}]}}})",
      R"({"anyOf":[{"type":"array","items":{"type":"integer"},"uniqueItems":true},{"type":"array","items":{"type":"integer"},"minItems":4}]})",
      R"({"type":"array","items":{"type":"integer"},"contains":{"minimum":10},"minContains":2,"maxItems":4})",
      R"({"type":"array","contains":{"type":"string"},"maxContains":2})",
      R"({"type":"array","items":{"type":["integer","string"]},"contains":{"type":"integer"},"minContains":2,"maxContains":2,"minItems":4,"maxItems":6})",
      R"({"type":"array","items":{"enum":["a","b","c"]},"contains":{"const":"b"},"maxContains":1,"minItems":2,"maxItems":5})",
      R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":9},"contains":{"minimum":5},"minContains":0,"maxContains":1,"minItems":3})",
      R"({"type":"array","items":{"type":"string"},"contains":{"const":"a"},"minContains":0,"maxContains":0})",
      R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":9},"contains":{"enum":[1,2,3]},"minContains":2,
          "uniqueItems":true,"minItems":9})",
      R"({"type":"array","items":{"type":"string","maxLength":1},"contains":{"enum":["a","b",""]},"maxContains":2,"uniqueItems":true,"minItems":3})",
      R"({"type":"array","items":{"type":"integer","minimum":1,"maximum":4},"contains":{"const":3},"uniqueItems":true,"maxItems":2})",
      R"({"type":"array","allOf":[{"prefixItems":[{"type":"integer"},{"type":"integer"}]},{"items":{"minimum":5}}],"maxItems":4})",
      R"({"type":"array","prefixItems":[{"type":"boolean"},{"type":"boolean"},{"type":"integer"}],"items":{"type":"string"},
          "uniqueItems":true,"minItems":5})",
      R"({"type":"array","prefixItems":[{"const":1},{"enum":[1,2]}],"items":{"type":"integer","maximum":9},"uniqueItems":true})",
      R"({"type":"array","prefixItems":[{"type":"integer"},{"type":["string","null"]}],"items":{"enum":[1,"a",null]},
          "contains":{"type":"string"},"minContains":2,"maxContains":3,"minItems":3})",
      R"({"type":"array","prefixItems":[true],"contains":{"type":"string"},"items":false})",
      R"({"type":"array","prefixItems":[{"const":1},{"const":2},{"type":"boolean"}],"uniqueItems":true,"minItems":3})",
      R"({"type":"array","prefixItems":[{"type":"integer"},{"type":["string","null"]}],"items":{"enum":[1,"a",null]},
          "contains":{"enum":["a",null]},"minContains":2,"uniqueItems":true,"maxItems":4})",
      R"({"type":"array","prefixItems":[{"type":"integer"}],"contains":{"type":"string"},"maxContains":2,"uniqueItems":true})",
      R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":9},"allOf":[{"contains":{"minimum":7}},
          {"contains":{"maximum":2},"minContains":2,"maxContains":3},{"contains":{"const":5},"maxContains":1}],"maxItems":7})",
      R"({"type":"array","items":{"type":["integer","string"]},"not":{"items":{"type":"integer"}},"maxItems":3})",
      R"({"type":"array","items":{"type":["integer","null"]},"not":{"prefixItems":[{"type":"null"},{"const":1}],"minItems":2}})",
      R"({"type":"array","items":{"type":"integer"},"not":{"contains":{"minimum":5},"minContains":2,"maxContains":3}})",
      R"({"oneOf":[{"type":"array","items":{"type":"string"}},{"type":"array","items":{"type":"integer"}}]})",
      R"({"type":["object","array","integer"],"not":{"enum":[1,{"a":1},[],[1,2]]},"properties":{"a":{"type":"integer"}}})",
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"null"}},
          "not":{"dependentRequired":{"a":["b","c"]}}})",
      R"({"type":"integer","not":{"if":{"minimum":10},"then":{"maximum":20},"else":{"minimum":5}}})",
      R"({"type":"integer","not":{"oneOf":[{"minimum":10},{"maximum":20},{"const":15}]}})",
      R"({"oneOf":[{"type":"string","format":"email","pattern":"@"},{"type":"string","format":"uri"}]})",
      R"({"type":"number","allOf":[{"multipleOf":0.5},{"multipleOf":0.2}],"minimum":-9,"maximum":9})",
      // Annotations.
      R"({"type":"string","contentEncoding":"base64","contentMediaType":"image/png","format":"password","x-order":3,"maxLength":9})",
  };
  return all;
}

std::shared_ptr<const TokenTrie> demo_trie() {
  static const auto trie = TokenTrie::make(*test::demo_tokenizer());
  return trie;
}

/// A text the masks allow, picked at random; after `patience` tokens, tokens that close things are preferred.
class Walker {
 public:
  explicit Walker(std::shared_ptr<const TokenTrie> trie) : trie_(std::move(trie)) {}

  std::string walk(Constraint& constraint, unsigned seed, int patience) const {
    std::mt19937 random(seed);
    std::vector<std::uint32_t> bits((static_cast<std::size_t>(trie_->vocab_size()) + 31) / 32);
    std::string text;
    for (int step = 0; step < 3000 && !constraint.done(); ++step) {
      const Status masked = constraint.mask(bits);
      EXPECT_TRUE(masked.ok()) << masked.message();
      std::vector<TokenId> allowed, closing;
      for (TokenId id = 0; id < trie_->vocab_size(); ++id) {
        if (((bits[static_cast<std::size_t>(id) / 32] >> (id % 32)) & 1u) == 0) continue;
        allowed.push_back(id);
        const std::string_view bytes = trie_->bytes_of(id);
        const bool closes = trie_->ends_text(id) || bytes == "\"" || bytes == "}" || bytes == "]" || bytes == "a";
        if (closes) closing.push_back(id);
      }
      EXPECT_FALSE(allowed.empty()) << "a dead end after " << text;
      if (allowed.empty()) break;
      const auto& from = step >= patience && !closing.empty() ? closing : allowed;
      const TokenId id = from[random() % from.size()];
      if (trie_->ends_text(id)) return text;
      EXPECT_TRUE(constraint.accept(id).ok()) << text << " + " << trie_->bytes_of(id);
      text += trie_->bytes_of(id);
    }
    return constraint.done() ? text : "unfinished: " + text;
  }

 private:
  std::shared_ptr<const TokenTrie> trie_;
};

std::shared_ptr<const Grammar> grammar_of(const std::string& schema) {
  const auto grammar = schema_grammar(schema);
  EXPECT_TRUE(grammar.ok()) << schema << ": " << grammar.status().message();
  return grammar.ok() ? *grammar : nullptr;
}

/// The schemas that a library writes for its types, one a line.
std::vector<std::string> written_by(const std::string& library) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/data/schemas/" + library + ".jsonl");
  std::vector<std::string> all;
  for (std::string line; std::getline(file, line);) all.push_back(json::parse(line)["schema"].dump());
  EXPECT_GT(all.size(), 40u) << library;
  return all;
}

TEST(SchemaGrammar, TakesWhatZodAndPydanticWrite) {
  const Walker walker(demo_trie());
  for (const char* library : {"zod", "pydantic"})
    for (const std::string& schema : written_by(library)) {
      const auto grammar = grammar_of(schema);
      ASSERT_NE(grammar, nullptr);
      const auto constraint = make_constraint(grammar, demo_trie());
      const std::string text = walker.walk(*constraint, 1, 8);
      EXPECT_TRUE(json::accept(text) || text.starts_with("unfinished")) << schema << "\n" << text;
    }
}

TEST(SchemaGrammar, WhatItAllowsIsValid) {
  const Walker walker(demo_trie());
  for (const std::string& schema : schemas()) {
    const auto grammar = grammar_of(schema);
    ASSERT_NE(grammar, nullptr);
    const json parsed = json::parse(schema);
    for (unsigned seed = 0; seed < 12; ++seed) {
      const auto constraint = make_constraint(grammar, demo_trie());
      const std::string text = walker.walk(*constraint, seed, static_cast<int>(seed % 4) * 10);
      const json value = json::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << schema << "\n" << text;
      EXPECT_TRUE(test::is_valid(value, parsed, parsed)) << schema << "\n" << text;
    }
  }
}

/// The same texts before ajv, which many people's programs check with. Needs node and ajv (with ajv-formats).
TEST(SchemaGrammar, WhatItAllowsIsValidForAjv) {
  if (std::system("node -e \"require('ajv/dist/2020');require('ajv-formats')\" >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "node finds no ajv: npm install ajv ajv-formats, and set NODE_PATH";
  const Walker walker(demo_trie());
  const std::string path = (std::filesystem::temp_directory_path() / "millrace_ajv.jsonl").string();
  std::ofstream file(path);
  std::vector<std::string> all = schemas();
  for (const char* library : {"zod", "pydantic"})
    for (const std::string& schema : written_by(library)) all.push_back(schema);
  for (const std::string& schema : all)
    for (unsigned seed = 100; seed < 120; ++seed) {
      const auto constraint = make_constraint(grammar_of(schema), demo_trie());
      const std::string text = walker.walk(*constraint, seed, 20);
      if (text.starts_with("unfinished")) continue;  // a random walk finds no way out of some patterns
      file << json{{"schema", json::parse(schema)}, {"text", text}}.dump() << "\n";
    }
  file.close();
  EXPECT_EQ(std::system(("node " MILLRACE_SOURCE_DIR "/tests/text/ajv.js " + path).c_str()), 0);
  std::filesystem::remove(path);
}

bool accepts(const std::string& schema, const std::string& text) {
  Matcher matcher(grammar_of(schema), demo_trie());
  return matcher.take(text).ok() && matcher.may_end();
}

TEST(SchemaGrammar, TakesAndRefuses) {
  const std::string person = schemas()[21];
  EXPECT_TRUE(accepts(person, R"({"name":"Ada","age":36})"));
  EXPECT_TRUE(accepts(person, "{\n  \"name\": \"Ada\",\n  \"age\": 36,\n  \"tags\": [\n    \"x\"\n  ]\n}"));
  EXPECT_FALSE(accepts(person, R"({"age":36,"name":"Ada"})"));
  EXPECT_FALSE(accepts(person, R"({"name":"Ada"})"));
  EXPECT_FALSE(accepts(person, R"({"name":"Ada","age":3.5})"));
  EXPECT_FALSE(accepts(person, R"({"name":"Ada","age":3,"more":1})"));
  EXPECT_TRUE(accepts("{}", R"([{"a":"\u00e9\ud83d\ude00 é😀\\"},-1.5e+3,[],{}])"));
  for (const char* bad :
       {"\"\xff\"", "\"\xed\xa0\x80\"", R"("\ud83d")", R"("\x")", "01", "1.", "\"a\nb\"", "[1,]", "nul", "+1"})
    EXPECT_FALSE(accepts("{}", bad)) << bad;
  EXPECT_FALSE(accepts(schemas()[23], R"({"ab":1,"ab":"x"})"));
  EXPECT_FALSE(accepts(schemas()[23], R"({"ab":1,"\u0061b":"x"})"));
  EXPECT_TRUE(accepts(schemas()[23], R"({"ab":1,"abc":"x","a":"y","x😀":"z"})"));
}

TEST(SchemaGrammar, TakesAllThatTheFormIsFor) {
  const auto string = [](const char* more) { return fmt::format(R"_({{"type":"string",{}}})_", more); };
  EXPECT_TRUE(accepts(R"({"type":"number","minimum":0.5,"maximum":9.75})", "5"));
  EXPECT_TRUE(accepts(R"({"type":"number","minimum":0.5,"maximum":9.75})", "9.5"));
  EXPECT_FALSE(accepts(R"({"type":"number","minimum":0.5,"maximum":9.75})", "0"));
  EXPECT_TRUE(accepts(string(R"("format":"date")"), "\"2024-02-29\""));
  EXPECT_TRUE(accepts(string(R"("format":"date")"), "\"2000-02-29\""));
  EXPECT_FALSE(accepts(string(R"("format":"date")"), "\"1900-02-29\""));
  EXPECT_FALSE(accepts(string(R"("format":"date")"), "\"2023-02-29\""));
  for (const char* address : {"::", "::1", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "fe80::"})
    EXPECT_TRUE(accepts(string(R"("format":"ipv6")"), fmt::format("\"{}\"", address))) << address;
  EXPECT_FALSE(accepts(string(R"("format":"ipv6")"), "\"1::2::3\""));
  for (const char* duration : {"P1D", "PT36H", "P1Y2M3DT4H5M6S", "P2W"})
    EXPECT_TRUE(accepts(string(R"("format":"duration")"), fmt::format("\"{}\"", duration))) << duration;
  EXPECT_FALSE(accepts(string(R"("format":"duration")"), "\"P\""));
  EXPECT_TRUE(accepts(string(R"_("pattern":"^\\p{Lu}\\p{L}*$","maxLength":8)_"), "\"Ärger\""));
  EXPECT_FALSE(accepts(string(R"_("pattern":"^\\p{Lu}\\p{L}*$","maxLength":8)_"), "\"ärger\""));
  EXPECT_TRUE(accepts(string(R"_("pattern":"\\bcat\\b","maxLength":9)_"), "\"a cat\""));
  EXPECT_TRUE(accepts(string(R"_("pattern":"^\\cI[\\ca-\\cC]$")_"), R"("\t\u0002")"));
  EXPECT_FALSE(accepts(string(R"_("pattern":"^\\cI[\\ca-\\cC]$")_"), R"("\t\u0004")"));
  EXPECT_FALSE(accepts(string(R"_("pattern":"\\bcat\\b","maxLength":9)_"), "\"a cats\""));
  const std::string unique = R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":2})";
  EXPECT_TRUE(accepts(unique, R"(["c","a"])"));
  EXPECT_FALSE(accepts(unique, R"(["c","c"])"));
  EXPECT_FALSE(accepts(unique, R"(["c"])"));
  const std::string one =
      R"({"type":"array","items":{"type":["integer","null"]},"contains":{"type":"null"},"maxContains":1})";
  EXPECT_TRUE(accepts(one, "[1,null,2]"));
  EXPECT_FALSE(accepts(one, "[1,null,null]"));
  EXPECT_FALSE(accepts(one, "[1]"));
  EXPECT_TRUE(accepts(R"({"type":"integer","format":"int32"})", "2147483647"));
  EXPECT_FALSE(accepts(R"({"type":"integer","format":"int32"})", "2147483648"));
  EXPECT_TRUE(accepts(R"({"type":"object","not":{"required":["secret"]}})", R"({"public":1})"));
  EXPECT_FALSE(accepts(R"({"type":"object","not":{"required":["secret"]}})", R"({"secret":1})"));
}

TEST(SchemaGrammar, ItemsThatHaveComeDoNotComeAgain) {
  const std::string strings = R"({"type":"array","items":{"type":"string"},"uniqueItems":true})";
  EXPECT_TRUE(accepts(strings, R"(["a","b", "ab",
  "","\n", "[\"a\",", "é"])"));
  EXPECT_FALSE(accepts(strings, R"(["a","b","a"])"));
  EXPECT_FALSE(accepts(strings, R"(["a","\u0061"])"));
  EXPECT_FALSE(accepts(strings, R"(["\n","\u000a"])"));
  EXPECT_FALSE(accepts(strings, R"(["/","\/"])"));
  EXPECT_FALSE(accepts(strings, R"(["",""])"));
  const std::string numbers = R"({"type":"array","items":{"type":"number"},"uniqueItems":true})";
  EXPECT_TRUE(accepts(numbers, "[1, 10, 1.5, 0, -1, 0.000001, -0.25]"));
  for (const char* bad : {"[1,1]", "[1,1.0]", "[1,1e0]", "[10,1e1]", "[0,-0]", "[0.5,0.50]", "[2, 3,2 ]"})
    EXPECT_FALSE(accepts(numbers, bad)) << bad;
  const std::string bounded =
      R"({"type":"array","items":{"type":"number","minimum":-2,"maximum":9.5},"uniqueItems":true})";
  EXPECT_TRUE(accepts(bounded, "[1,1.5,9.5,-2,0,-1.25,9,9.05]"));
  for (const char* bad : {"[1,1.0]", "[0,-0]", "[-0.0]", "[9.5,9.50]", "[1.50]", "[10]"})
    EXPECT_FALSE(accepts(bounded, bad)) << bad;
  const std::string lists =
      R"({"type":"array","items":{"type":"array","items":{"type":"integer"},"uniqueItems":true},"uniqueItems":true})";
  EXPECT_TRUE(accepts(lists, "[[1,2],[2,1],[],[1]]"));
  EXPECT_FALSE(accepts(lists, "[[1,2],[1,2]]"));
  EXPECT_FALSE(accepts(lists, "[[1,1]]"));
  const std::string many = R"({"type":"array","items":{"enum":[1,2,3,4,5,6,7,8,9,"x"]},"uniqueItems":true})";
  EXPECT_TRUE(accepts(many, R"([9,"x",1])"));
  EXPECT_FALSE(accepts(many, "[9,1,9]"));
}

TEST(SchemaGrammar, FreeNamesThatCountDiffer) {
  const std::string two = R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":2})";
  EXPECT_TRUE(accepts(two, R"({"a":1, "b": 2,"ab":3})"));
  EXPECT_FALSE(accepts(two, R"({"a":1,"a":2})"));
  EXPECT_FALSE(accepts(two, R"({"a":1,"\u0061":2})"));
  EXPECT_FALSE(accepts(two, R"({"a":1,"b":2,"b":3})"));
  EXPECT_FALSE(accepts(two, R"({"a":1})"));
  const std::string any = R"({"type":"object","minProperties":2})";
  EXPECT_TRUE(accepts(any, R"({"a":{"a":1,"a":1},"b":["a","a"]})"));
  EXPECT_FALSE(accepts(any, R"({"a":{"c":1},"a":["a"]})"));
}

/// Where a text could only become one that came, it does not begin.
TEST(SchemaGrammar, ItemsThatHaveComeLeadNowhere) {
  const auto next = [](const std::string& schema, const std::string& text, const std::string& more) {
    Matcher matcher(grammar_of(schema), demo_trie());
    EXPECT_TRUE(matcher.take(text).ok()) << text;
    return matcher.take(more).ok();
  };
  const std::string words =
      R"({"type":"array","items":{"type":"string","pattern":"^(ab|acd|ace)$"},"uniqueItems":true,"minItems":3})";
  EXPECT_FALSE(next(words, R"(["ab",)", "\"ab"));
  EXPECT_TRUE(next(words, R"(["acd",)", "\"ac"));
  EXPECT_FALSE(next(words, R"(["acd","ace",)", "\"ac"));
  EXPECT_TRUE(next(words, R"(["acd","ace",)", "\"ab\""));
  EXPECT_FALSE(next(words, R"(["acd","ace","ab")", ","));
  EXPECT_TRUE(next(words, R"(["acd","ace","ab")", "]"));
  const std::string numbers =
      R"({"type":"array","items":{"type":"integer","minimum":1,"maximum":320},"uniqueItems":true})";
  EXPECT_TRUE(next(numbers, "[1,31,", "3"));
  EXPECT_FALSE(next(numbers, "[1,31,", "31,"));
  EXPECT_TRUE(next(numbers, "[1,31,", "310"));
}

TEST(SchemaGrammar, UnevaluatedIsWhatNoneBesideItSaw) {
  const std::string cousin =
      R"({"allOf":[{"properties":{"foo":{"type":"integer"}}},{"type":"object","unevaluatedProperties":false}]})";
  EXPECT_TRUE(accepts(cousin, "{}"));
  EXPECT_FALSE(accepts(cousin, R"({"foo":8})"));
  const std::string branches = R"({"type":"object","if":{"properties":{"foo":{"const":"then"}},"required":["foo"]},
      "then":{"properties":{"bar":{"type":"integer"}},"required":["bar"]},
      "else":{"properties":{"baz":{"type":"integer"}},"required":["baz"]},"unevaluatedProperties":false})";
  EXPECT_TRUE(accepts(branches, R"({"foo":"then","bar":1})"));
  EXPECT_TRUE(accepts(branches, R"({"baz":1})"));
  EXPECT_FALSE(accepts(branches, R"({"baz":1,"foo":13.3})"));
  EXPECT_FALSE(accepts(branches, R"({"baz":1,"foo":"then"})"));
  const std::string outer = R"({"type":"object","properties":{"a":{"type":"null"}},"unevaluatedProperties":false,
      "allOf":[{"properties":{"b":{"type":"null"}}},{"$ref":"#/$defs/c"}],
      "$defs":{"c":{"properties":{"c":{"type":"null"}}}}})";
  EXPECT_TRUE(accepts(outer, R"({"b":null,"c":null,"a":null})") || accepts(outer, R"({"a":null,"b":null,"c":null})"));
  EXPECT_FALSE(accepts(outer, R"({"a":null,"d":null})"));
  const std::string referred = R"({"$ref":"#/$defs/c","properties":{"a":{"type":"null"}},
      "$defs":{"c":{"type":"object","properties":{"c":{"type":"null"}},"unevaluatedProperties":false}}})";
  EXPECT_TRUE(accepts(referred, R"({"c":null})"));
  EXPECT_FALSE(accepts(referred, R"({"c":null,"a":null})"));
  EXPECT_FALSE(accepts(referred, R"({"a":null})"));
  const std::string brought = R"({"type":"object","properties":{"foo":{"type":"null"}},"dependentSchemas":
      {"foo":{"properties":{"bar":{"type":"null"}},"unevaluatedProperties":false}}})";
  EXPECT_TRUE(accepts(brought, "{}"));
  EXPECT_FALSE(accepts(brought, R"({"foo":null})"));
  EXPECT_FALSE(accepts(brought, R"({"foo":null,"bar":null})"));
  const std::string items = R"({"type":"array","allOf":[{"prefixItems":[{"type":"null"},{"type":"null"}]},
      {"prefixItems":[{"type":"null"}],"unevaluatedItems":false}]})";
  EXPECT_TRUE(accepts(items, "[null]"));
  EXPECT_FALSE(accepts(items, "[null,null]"));
  EXPECT_FALSE(
      accepts(R"({"allOf":[{"properties":{"a":{"type":"null"}}},{"type":"object","additionalProperties":false}]})",
              R"({"a":null})"));
  const std::string contains = R"({"type":"array","contains":{"type":"null"},"unevaluatedItems":{"type":"boolean"}})";
  EXPECT_TRUE(accepts(contains, "[true,null]"));
  EXPECT_FALSE(accepts(contains, "[true]"));
  EXPECT_FALSE(accepts(contains, "[3,null]"));
  const auto twice = schema_grammar(
      R"({"type":"object","not":{"not":{"properties":{"a":{"type":"null"}},"required":["a"]}},"unevaluatedProperties":false})");
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.status().message().find("'not'"), std::string::npos);
}

TEST(SchemaGrammar, ConditionsStandInAllOf) {
  const std::string one = R"({"type":"object","properties":{"t":{"enum":["a","b"]},"x":{"type":"integer"}},
      "required":["t"],"allOf":[{"if":{"properties":{"t":{"const":"a"}}},"then":{"required":["x"]}}]})";
  EXPECT_TRUE(accepts(one, R"({"t":"a","x":1})"));
  EXPECT_TRUE(accepts(one, R"({"t":"b"})"));
  EXPECT_FALSE(accepts(one, R"({"t":"a"})"));
  json many = {{"type", "object"}, {"properties", {{"t", {{"enum", json::array()}}}}}, {"required", {"t"}}};
  for (int i = 0; i < 24; ++i) {
    const std::string name = fmt::format("v{}", i), field = fmt::format("f{}", i);
    many["properties"]["t"]["enum"].push_back(name);
    many["allOf"].push_back({{"if", {{"properties", {{"t", {{"const", name}}}}}}},
                             {"then", {{"properties", {{field, {{"type", "null"}}}}}, {"required", {field}}}}});
  }
  EXPECT_TRUE(accepts(many.dump(), R"({"t":"v23","f23":null})"));
  EXPECT_FALSE(accepts(many.dump(), R"({"t":"v23","f22":null})"));
  EXPECT_FALSE(accepts(many.dump(), R"({"t":"v23"})"));
  const std::string both = R"({"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"boolean"}},
      "required":["a","b"],"allOf":[
      {"if":{"properties":{"a":{"const":true}}},"then":{"properties":{"b":{"const":false}}},"else":{"properties":{"b":{"const":true}}}},
      {"if":{"properties":{"b":{"const":true}}},"then":{"properties":{"a":{"const":false}}}}]})";
  EXPECT_TRUE(accepts(both, R"({"a":true,"b":false})"));
  EXPECT_TRUE(accepts(both, R"({"a":false,"b":true})"));
  EXPECT_FALSE(accepts(both, R"({"a":true,"b":true})"));
  EXPECT_FALSE(accepts(both, R"({"a":false,"b":false})"));
  EXPECT_TRUE(
      accepts(R"({"type":"integer","then":{"minimum":3},"allOf":[{"if":{"minimum":10},"then":{"maximum":20}}]})", "2"));
}

TEST(SchemaGrammar, WhatNothingFulfilsDropsOut) {
  const std::string branch = R"({"anyOf":[{"type":"integer","minimum":7,"maximum":3},{"type":"string"}]})";
  EXPECT_TRUE(accepts(branch, R"("x")"));
  EXPECT_FALSE(accepts(branch, "5"));
  const std::string member = R"({"type":"object","properties":{"a":{"type":"number","minimum":7,"maximum":3},
      "b":{"type":"null"},"c":{"type":"string","minLength":2,"maxLength":1},"d":{"enum":[]}}})";
  EXPECT_TRUE(accepts(member, R"({"b":null})"));
  EXPECT_FALSE(accepts(member, R"({"a":5})"));
  const std::string list = R"({"type":"array","items":{"type":"integer","minimum":7,"maximum":3}})";
  EXPECT_TRUE(accepts(list, "[]"));
  EXPECT_FALSE(accepts(list, "[5]"));
  EXPECT_FALSE(
      schema_grammar(
          R"({"type":"object","required":["a"],"properties":{"a":{"type":"integer","minimum":7,"maximum":3}}})")
          .ok());
}

TEST(SchemaGrammar, WordsThatNoDraftKnowsAreAnnotations) {
  for (const char* word :
       {"unit", "enumNames", "errorMessage", "propertyOrdering", "x-order", "json_schema_extra", "ui:widget",
        "markdownEnumDescriptions", "tsType", "optional", "order", "note", "hint", "units"})
    EXPECT_TRUE(accepts(json{{"type", "integer"}, {word, {{"type", "string"}}}}.dump(), "3")) << word;
  EXPECT_TRUE(accepts(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/a","unit":"cm"}},"required":["a"],
      "$defs":{"a":{"type":"integer","unit":"mm"}}})",
                      R"({"a":3})"));
  EXPECT_TRUE(accepts(R"({"unit":"cm"})", "[]"));
  for (const auto& [word, meant] :
       std::vector<std::pair<const char*, const char*>>{{"minimun", "minimum"},
                                                        {"max_length", "maxLength"},
                                                        {"additionalproperties", "additionalProperties"},
                                                        {"requried", "required"},
                                                        {"patterns", "pattern"},
                                                        {"ref", "$ref"},
                                                        {"propertes", "properties"},
                                                        {"anyof", "anyOf"},
                                                        {"maxItem", "maxItems"},
                                                        {"divisibleBy", "divisibleBy"},
                                                        {"$recursiveRef", "$recursiveRef"},
                                                        {"$dynamicRef", "$dynamicRef"},
                                                        {"extends", "extends"},
                                                        {"formatMinimum", "formatMinimum"}}) {
    const auto grammar = schema_grammar(json{{"type", "integer"}, {word, 3}}.dump());
    ASSERT_FALSE(grammar.ok()) << word;
    EXPECT_NE(grammar.status().message().find(fmt::format("'{}'", meant)), std::string::npos)
        << grammar.status().message();
  }
}

TEST(SchemaGrammar, BranchesAreToldApartByTagsThatNeedNotBeThere) {
  const std::string tagged = R"({"oneOf":[
      {"type":"object","properties":{"kind":{"const":"a"},"x":{"type":"integer"}},"required":["x"]},
      {"type":"object","properties":{"kind":{"const":"b"},"y":{"type":"integer"}},"required":["y"]}]})";
  EXPECT_TRUE(accepts(tagged, R"({"kind":"a","x":1})"));
  EXPECT_TRUE(accepts(tagged, R"({"kind":"b","y":1})"));
  EXPECT_FALSE(accepts(tagged, R"({"x":1})"));
  EXPECT_FALSE(accepts(tagged, R"({"kind":"b","x":1})"));
  const std::string tree = R"({"$ref":"#/$defs/node","$defs":{
      "leaf":{"type":"object","properties":{"type":{"const":"leaf","default":"leaf"},"value":{"type":"integer"}}},
      "node":{"type":"object","properties":{"type":{"const":"node","default":"node"},"next":{"discriminator":
        {"propertyName":"type"},"oneOf":[{"$ref":"#/$defs/node"},{"$ref":"#/$defs/leaf"}]}}}}})";
  EXPECT_TRUE(accepts(tree, R"({"type":"node","next":{"type":"node","next":{"type":"leaf","value":3}}})"));
  EXPECT_TRUE(accepts(tree, "{}"));
  EXPECT_FALSE(accepts(tree, R"({"next":{}})"));
  EXPECT_FALSE(accepts(tree, R"({"next":{"type":"leaf","next":{"type":"leaf"}}})"));
}

TEST(SchemaGrammar, PatternsOfOtherDialects) {
  const auto taken = [](const char* pattern, const char* text) {
    return accepts(json{{"type", "string"}, {"pattern", pattern}}.dump(), json(text).dump());
  };
  for (const char* pattern : {"^[[:alpha:]]+$", "^[a-z&&[^b]]+$", "^[a-z--b]+$", "^[a-z~~b]+$", "(?x)a b", "(?m)^a$"}) {
    const auto grammar = schema_grammar(json{{"type", "string"}, {"pattern", pattern}}.dump());
    ASSERT_FALSE(grammar.ok()) << pattern;
    EXPECT_EQ(grammar.status().code(), Code::unsupported) << pattern;
  }
  EXPECT_TRUE(taken("(?i)^abc$", "aBC"));
  EXPECT_TRUE(taken("^(?i:a)b$", "Ab"));
  EXPECT_FALSE(taken("^(?i:a)b$", "AB"));
  EXPECT_TRUE(taken("(?is)^a.c$", "A\nC"));
  EXPECT_FALSE(taken("(?i)^a.c$", "A\nC"));
  EXPECT_TRUE(taken("\\Aab\\Z", "ab"));
  EXPECT_FALSE(taken("\\Aab\\z", "abc"));
  EXPECT_TRUE(taken("^a{,3}$", ""));
  EXPECT_TRUE(taken("^a{,3}$", "aaa"));
  EXPECT_FALSE(taken("^a{,3}$", "aaaa"));
  EXPECT_TRUE(taken("^{[a-z]+}$", "{x}"));
  EXPECT_FALSE(taken("^{[a-z]+}$", "x"));
  EXPECT_TRUE(taken("^x{y}+$", "x{y}}"));
  EXPECT_TRUE(taken("^\\u{61}\\x{1F600}$", "a😀"));
  EXPECT_TRUE(taken("^\\uD83D\\uDE00$", "😀"));
  EXPECT_TRUE(taken("^[\\uD83D\\uDE00-\\uD83D\\uDE02]$", "😁"));
  EXPECT_FALSE(taken("^\\uD83D\\uDE00$", "😁"));
  EXPECT_TRUE(taken("^[a&+--]+$", "-,&"));
  EXPECT_TRUE(taken("^[[:]+$", ":["));
}

TEST(SchemaGrammar, BoundsOfNumbersAreExact) {
  const std::vector<std::string> numbers = {"-1000",  "-13",  "-12", "-11",   "-3",   "-2.51",    "-2.5", "-1",
                                            "-0.5",   "0",    "0.0", "0.001", "0.5",  "1",        "1.0",  "3",
                                            "3.74",   "3.75", "9",   "10",    "99",   "99.89",    "99.9", "100.1",
                                            "100.11", "106",  "107", "108",   "1000", "123456789"};
  for (const std::string& schema : schemas()) {
    const json parsed = json::parse(schema);
    const bool bounded = parsed.is_object() && parsed.contains("type") &&
                         (parsed["type"] == "number" || parsed["type"] == "integer") &&
                         (schema.find("inimum") < 60 || schema.find("aximum") < 60);
    if (!bounded) continue;
    for (const std::string& number : numbers) {
      const json value = json::parse(number);
      const bool valid = test::is_valid(value, parsed, parsed);
      const bool spelled_as_integer = parsed["type"] == "number" || number.find('.') == std::string::npos;
      EXPECT_EQ(accepts(schema, number), valid && spelled_as_integer) << schema << " " << number;
    }
  }
}

TEST(SchemaGrammar, MultiplesOfAnySize) {
  const auto number = [](const char* more) { return fmt::format(R"({{"type":"number",{}}})", more); };
  EXPECT_TRUE(accepts(number(R"("multipleOf":1e-9)"), "0.123456789"));
  EXPECT_FALSE(accepts(number(R"("multipleOf":1e-9)"), "0.1234567891"));
  EXPECT_TRUE(accepts(number(R"("multipleOf":2.5e-12,"minimum":0,"maximum":1)"), "0.0000000000075"));
  EXPECT_FALSE(accepts(number(R"("multipleOf":2.5e-12,"minimum":0,"maximum":1)"), "0.000000000007"));
  EXPECT_TRUE(accepts(number(R"("multipleOf":1e-300)"), "3.5"));
  EXPECT_TRUE(accepts(number(R"("multipleOf":123456789,"exclusiveMinimum":123456789)"), "246913578"));
  EXPECT_FALSE(accepts(number(R"("multipleOf":123456789,"exclusiveMinimum":123456789)"), "123456789"));
  EXPECT_FALSE(accepts(number(R"("multipleOf":123456789)"), "123456788"));
  EXPECT_TRUE(accepts(number(R"("multipleOf":123456789)"), "-123456789"));
  EXPECT_FALSE(accepts(R"({"type":"integer","multipleOf":9007199254740993,"maximum":1e17})", "9007199254740992"));
  EXPECT_TRUE(accepts(R"({"type":"integer","multipleOf":9007199254740993,"maximum":1e17})", "9007199254740993"));
  EXPECT_TRUE(accepts(number(R"("multipleOf":1e30)"), "0"));
  EXPECT_TRUE(accepts(number(R"("multipleOf":2e16)"), "-40000000000000000"));
  EXPECT_FALSE(accepts(number(R"("multipleOf":2e16)"), "-40000000000000001"));
  EXPECT_TRUE(accepts(number(R"("multipleOf":7,"minimum":2e15)"), "2000000000000002"));
  EXPECT_TRUE(accepts(number(R"("multipleOf":0.5,"minimum":2e15)"), "2000000000000000"));
  // Exact, but not for who reads it as a double: 3 times this is 2^54 + 2^53 + 3.
  EXPECT_FALSE(accepts(R"({"type":"integer","multipleOf":9007199254740993})", "27021597764222979"));
  EXPECT_FALSE(accepts(R"({"type":"integer","multipleOf":7,"minimum":0,"maximum":1e17})", "9007199254740995"));
}

/// Bounds that need more digits than are written give way to the inside, never to the outside.
TEST(SchemaGrammar, BoundsOfManyDigitsAreKept) {
  const std::string far = R"({"type":"number","minimum":1000000000000000,"maximum":1000000000000000.125})";
  EXPECT_TRUE(accepts(far, "1000000000000000"));
  EXPECT_FALSE(accepts(far, "999999999999999.9"));
  const std::string multiple = R"({"type":"number","minimum":1e15,"multipleOf":0.000001})";
  EXPECT_FALSE(accepts(multiple, "999999999999.999872"));
  EXPECT_TRUE(accepts(multiple, "1000000000000000"));
  const std::string tiny = R"({"type":"number","minimum":1e-12,"maximum":1,"multipleOf":1e-15})";
  EXPECT_FALSE(accepts(tiny, "0"));
  EXPECT_TRUE(accepts(tiny, "0.000000000001"));
  EXPECT_FALSE(accepts(R"({"type":"number","minimum":1e-7,"maximum":5e-7})", "0.00000006"));
  EXPECT_TRUE(accepts(R"({"type":"number","minimum":1e-7,"maximum":5e-7})", "0.0000002"));
}

TEST(SchemaGrammar, FormatsOfTheirOwnKind) {
  const auto takes = [](const char* more, const std::string& text) {
    return accepts(fmt::format(R"_({{"type":"string",{}}})_", more), json(text).dump());
  };
  EXPECT_TRUE(takes(R"("format":"multi-host-uri","minLength":1)", "postgres://user:pass@host1:5432,host2/name"));
  EXPECT_FALSE(takes(R"("format":"multi-host-uri")", "host1:5432"));
  for (const char* good : {"^a+(b|c)*$", "[^a-z_]\\d{2,}", "(?:x|(y))?", ""})
    EXPECT_TRUE(takes(R"("format":"regex")", good));
  for (const char* bad : {"a**", "(", "a)", "[z-a]", "\\Z", "x{2,1}", "*"})
    EXPECT_FALSE(takes(R"("format":"regex")", bad)) << bad;
  EXPECT_TRUE(takes(R"("format":"json-string")", R"({"a": [1, 2.5], "b": "x\n"})"));
  EXPECT_FALSE(takes(R"("format":"json-string")", R"({"a": [1, 2.5})"));
  EXPECT_TRUE(takes(R"("format":"uri","pattern":"^ftp://")", "ftp://example.org/x"));
  EXPECT_FALSE(takes(R"("format":"uri")", "ftp://example.org/x"));  // of the web, where nothing says otherwise
  EXPECT_TRUE(takes(R"("format":"uri-reference","pattern":"^/")", "/a/b?c=d"));
  EXPECT_TRUE(takes(R"("format":"uri-template")", "/users/{id}/posts{?page,size}"));
  EXPECT_FALSE(takes(R"("format":"uri-template")", "/users/{id"));
  EXPECT_TRUE(takes(R"("format":"hostname")", "a-b.example.org"));
  for (const char* bad : {"xn--x", "ab--c.org", "-a", "a-", "a..b"})
    EXPECT_FALSE(takes(R"("format":"hostname")", bad)) << bad;
}

TEST(SchemaGrammar, ListedItemsDifferOrAreContained) {
  const std::string unique =
      R"({"prefixItems":[{"type":"boolean"},{"type":"boolean"}],"items":{"type":"integer"},"uniqueItems":true})";
  EXPECT_TRUE(accepts(unique, "[true,false,1,2]"));
  EXPECT_FALSE(accepts(unique, "[true,true]"));
  EXPECT_FALSE(accepts(unique, "[true,false,1,1]"));
  const std::string has =
      R"({"prefixItems":[{"type":"integer"},{"type":"integer"}],"contains":{"const":5},"maxContains":1})";
  EXPECT_TRUE(accepts(has, "[5,4]"));
  EXPECT_TRUE(accepts(has, "[4,5]"));
  EXPECT_FALSE(accepts(has, "[5,5]"));
  EXPECT_FALSE(accepts(has, "[4,4]"));
}

TEST(SchemaGrammar, SeveralConditionsOfWhatAListContains) {
  const std::string two = R"({"type":"array","items":{"type":["integer","string"]},
      "allOf":[{"contains":{"type":"string"}},{"contains":{"type":"integer"},"minContains":2,"maxContains":2}]})";
  EXPECT_TRUE(accepts(two, R"([1,"a",2])"));
  EXPECT_TRUE(accepts(two, R"(["a","b",2,1])"));
  for (const char* bad : {"[1,2]", R"(["a",1])", R"([1,"a",2,3])"}) EXPECT_FALSE(accepts(two, bad)) << bad;
  const std::string all = R"({"prefixItems":[{"type":"integer"},{"enum":[1,"a"]}],"items":{"type":["integer","string"]},
      "contains":{"type":"string"},"minContains":2,"maxContains":2,"uniqueItems":true})";
  EXPECT_TRUE(accepts(all, R"([1,"a","b"])"));
  EXPECT_TRUE(accepts(all, R"([2,1,"a","b",3])"));
  for (const char* bad : {R"([1,1,"a","b"])", R"([1,"a","a"])", R"([1,"a"])", R"([1,"a","b","c"])"})
    EXPECT_FALSE(accepts(all, bad)) << bad;
  EXPECT_TRUE(accepts(R"({"type":"array","contains":{"const":[]},"uniqueItems":true})", "[1,[],true]"));
  // What a list has to contain may stand behind those that are listed.
  EXPECT_TRUE(accepts(R"({"prefixItems":[{"type":"integer"}],"contains":{"type":"string"}})", R"([1,"a"])"));
  EXPECT_FALSE(accepts(R"({"prefixItems":[{"type":"integer"}],"contains":{"type":"integer"}})", R"(["a"])"));
}

TEST(SchemaGrammar, OppositesOfListsAndObjects) {
  const std::string some = R"({"type":"array","not":{"prefixItems":[{"type":"integer"}],"items":{"type":"string"}}})";
  for (const char* good : {"[null]", "[1,2]", R"([1,"a",true])"}) EXPECT_TRUE(accepts(some, good)) << good;
  for (const char* bad : {"[]", "[1]", R"([1,"a"])"}) EXPECT_FALSE(accepts(some, bad)) << bad;
  const std::string none = R"({"type":["array","object"],"not":{"enum":[[1],{"a":[]}]}})";
  for (const char* good : {"[]", "[2]", "[1,1]", "{}", R"({"a":[0]})"}) EXPECT_TRUE(accepts(none, good)) << good;
  for (const char* bad : {"[1]", R"({"a":[]})"}) EXPECT_FALSE(accepts(none, bad)) << bad;
  // A format may be an annotation: what is not an address by its pattern is a URI for every reader, and no more is.
  const std::string either =
      R"({"oneOf":[{"type":"string","format":"email","pattern":"@"},{"type":"string","format":"uri"}]})";
  EXPECT_TRUE(accepts(either, R"("https://example.org/a")"));
  EXPECT_FALSE(accepts(either, R"("a@example.org")"));
  // null is of the type, where a schema says nullable.
  EXPECT_FALSE(accepts(R"({"type":["null","integer"],"not":{"type":"string","nullable":true}})", "null"));
  const std::string both = R"({"oneOf":[{"type":"string","nullable":true},{"type":"integer","nullable":true}]})";
  EXPECT_TRUE(accepts(both, "1"));
  EXPECT_FALSE(accepts(both, "null"));
  // An empty list of branches, as Zod writes it, holds for nothing; ajv takes it for no schema.
  EXPECT_TRUE(accepts(R"({"type":"array","items":{"anyOf":[]},"maxItems":0})", "[]"));
  EXPECT_FALSE(accepts(R"({"anyOf":[{"type":"null"},{"anyOf":[]}]})", "1"));
  // What `not` speaks of was not seen.
  const std::string unseen =
      R"({"type":"array","not":{"prefixItems":[{"type":"integer"}]},"unevaluatedItems":{"type":"null"}})";
  EXPECT_TRUE(accepts(unseen, "[null]"));
  EXPECT_FALSE(accepts(unseen, R"(["a"])"));
}

TEST(SchemaGrammar, RefusesWhatItDoesNotUnderstand) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "no JSON"},
      {"[]", "object or a boolean"},
      {"false", "no finite text"},
      {R"({"not":{}})", "no finite text"},
      {R"({"not":{"type":["number","string","object","array","boolean","null"]}})", "no finite text"},
      {R"({"type":"integer","not":{"type":"number"}})", "no finite text"},
      {R"({"not":{"uniqueItems":true}})", "'uniqueItems'"},
      {R"({"type":"object","not":{"additionalProperties":{"type":"string"}}})", "'additionalProperties'"},
      {R"({"not":{"format":"email"}})", "'format'"},
      {R"({"type":"array","items":{"type":"object"},"uniqueItems":true})", "uniqueItems"},
      {R"({"type":"array","items":{"pattern":"^[ab]$"},"uniqueItems":true,"minItems":3})", "only 2"},
      {R"({"type":"array","items":{"items":{"pattern":"^[ab]$"},"uniqueItems":true},"uniqueItems":true,"minItems":9})",
       "few values"},
      {R"({"prefixItems":[{"type":"null"},{"type":"null"}],"uniqueItems":true,"minItems":2})", "only 1"},
      {R"({"prefixItems":[{"type":"null"}],"items":{"type":"null"},"uniqueItems":true,"contains":true,"minItems":2})",
       "only 1"},
      {R"({"type":"array","allOf":[{"contains":{"const":1}},{"contains":{"const":2}},{"contains":{"const":3}},
          {"contains":{"const":4}},{"contains":{"const":5}}]})",
       "4 conditions"},
      {R"({"items":{"const":2},"uniqueItems":true,"contains":{"minimum":1},"minContains":0,"maxContains":2,
          "allOf":[{"contains":{"enum":[2,null]},"minContains":2,"maxContains":2}]})",
       "only 1"},
      {R"({"type":"array","contains":{"format":"email"},"maxContains":2})", "'format'"},
      {R"({"type":"array","contains":{"type":"string"},"minContains":3,"maxContains":2})", "no finite text"},
      {R"({"type":"array","items":{"type":"string"},"contains":{"enum":["a","b"]},"minContains":3,"uniqueItems":true})",
       "only 2"},
      {R"({"type":"object","patternProperties":{"^[ab]$":{}},"minProperties":3})", "only 2"},
      {R"({"type":"strin"})", "strin"},
      {R"({"type":"number","multipleOf":0})", "multipleOf"},
      {R"({"type":"number","minimum":0.000000000000001,"maximum":0.000000000000002,"multipleOf":3})", "no finite text"},
      {R"({"$ref":"#/$defs/none"})", "points to nothing"},
      {R"({"$ref":"http://example.org/s"})", "out of the schema"},
      {R"({"$ref":"#"})", "no finite text"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "itself"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no finite text"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "minimum"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "no finite text"},
      {R"({"type":"string","maxLength":1000000})", "maxLength"},
      {R"_({"type":"string","pattern":"(?<=x)y"})_", "look-behind"},
      {R"_({"type":"string","pattern":"((?=a)b|c)*$"})_", "look-ahead"},
      {R"_({"type":"string","pattern":"\\p{Klingon}"})_", "Klingon"},
      {R"_({"type":"string","pattern":"^[ab]*a[ab]{16}$","maxLength":3000})_", "states"},
      {R"_({"type":"string","pattern":"a(b"})_", "')'"},
      {R"_({"type":"string","pattern":"(a)\\1"})_", "\\1"},
      {R"_({"type":"string","pattern":"^((((a{1,100}){1,100}){1,100}){1,100}){1,100}$"})_", "too large"},
      {R"_({"type":"string","pattern":"^aaaa$","maxLength":3})_", "no finite text"},
      {R"({"oneOf":[{"type":"integer"},{"multipleOf":3}]})", "oneOf"},
      {R"({"type":"integer","oneOf":[{"type":"integer"},{"type":"number"}]})", "no finite text"},
      {R"({"allOf":[{"const":1},{"const":2}]})", "no finite text"},
      {R"({"properties":[]})", "object"},
      {R"({"required":[1]})", "names"},
      {R"({"enum":3})", "enum"},
      {R"({"type":"array","minItems":-1})", "minItems"},
  };
  for (const auto& [schema, says] : cases) {
    const auto grammar = schema_grammar(schema);
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_NE(grammar.status().message().find(says), std::string::npos) << schema << ": " << grammar.status().message();
    EXPECT_EQ(grammar.status().message().find('\n'), std::string::npos);
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += R"({"items":)";
  EXPECT_FALSE(schema_grammar(deep).ok());
}

/// Lends up to `most` bytes; `calls_off` says after how many questions nobody waits any more.
class Lender final : public WorkGrant {
 public:
  explicit Lender(std::uint64_t most, int calls_off = -1) : most_(most), calls_off_(calls_off) {}
  bool take(std::uint64_t bytes) override {
    lent += bytes;
    highest = std::max(highest, lent);
    if (lent <= most_) return true;
    lent -= bytes;
    return false;
  }
  void give_back(std::uint64_t bytes) noexcept override { lent -= bytes; }
  bool cancelled() const override { return calls_off_ >= 0 && asked_++ >= calls_off_; }
  std::uint64_t lent = 0, highest = 0;

 private:
  const std::uint64_t most_;
  const int calls_off_;
  mutable int asked_ = 0;
};

std::string enum_of(int values) {
  json all = json::array();
  std::mt19937 random(3);
  for (int i = 0; i < values; ++i) all.push_back(fmt::format("{:07}", random() % 10'000'000));
  return json{{"enum", all}}.dump();
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Each took n squared steps: minutes.
TEST(SchemaGrammar, WorkGrowsWithTheSchema) {
  const std::string words = enum_of(95'000);
  EXPECT_LT(seconds_of([&] {
              EXPECT_TRUE(accepts(words, json::parse(words)["enum"][77'777].dump()));
              EXPECT_FALSE(accepts(words, "\"x\""));
            }),
            20);
  json branches = json::array(), required = json::array(), chain = json::object();
  for (int i = 0; i < 9'000; ++i) branches.push_back({{"type", "string"}, {"const", fmt::format("v{}", i)}});
  for (int i = 0; i < 4'000; ++i) required.push_back(fmt::format("p{}", i));
  for (int i = 0; i < 8'000; ++i) chain[fmt::format("r{}", i)] = {{"$ref", fmt::format("#/$defs/r{}", i + 1)}};
  chain["r8000"] = {{"type", "null"}};
  const std::vector<json> wide = {{{"required", required}},
                                  {{"oneOf", branches}},
                                  {{"allOf", json::array({{{"enum", branches}}, {{"enum", branches}}})}},
                                  {{"$ref", "#/$defs/r0"}, {"$defs", chain}}};
  for (const json& schema : wide)
    EXPECT_LT(seconds_of([&] { (void)schema_grammar(schema.dump()); }), 20) << schema.dump().substr(0, 60);
}

/// The builder may be full before a property's text has its first state.
TEST(SchemaGrammar, IsRefusedWhereverItBecomesTooLarge) {
  json lengths = json::object(), short_ones = json::object();
  for (int i = 0; i < 10; ++i) lengths[fmt::format("p{}", i)] = {{"type", "string"}, {"maxLength", 50'000 - i}};
  for (int i = 0; i < 300; ++i) short_ones[fmt::format("p{}", i)] = {{"type", "string"}, {"maxLength", 50 + i % 11}};
  for (const json& properties : {lengths, short_ones})
    for (const std::size_t bytes : {1u << 16, 1u << 20, 1u << 22, 1u << 26}) {
      Lender lender(bytes);
      BuildLimits limits;
      limits.grant = &lender;
      const json schema = {{"type", "object"}, {"properties", properties}};
      const auto grammar = schema_grammar(schema.dump(), limits);
      if (grammar.ok()) continue;
      EXPECT_NE(grammar.status().message().find("too large"), std::string::npos) << grammar.status().message();
    }
}

TEST(SchemaGrammar, WideSchemasAreNotDeep) {
  json words = {{"type", "string"}, {"enum", json::array()}};
  for (int i = 0; i < 60'000; ++i) words["enum"].push_back(fmt::format("v{}", i));
  EXPECT_TRUE(accepts(words.dump(), R"("v59999")"));
  EXPECT_FALSE(accepts(words.dump(), R"("v60000")"));
  json wide = {{"type", "object"}}, optional = wide, answer = json::object();
  for (int i = 10'000; i < 12'500; ++i) {
    const std::string name = fmt::format("p{}", i);
    wide["properties"][name] = {{"type", "integer"}};
    if (i % 2 == 0) wide["required"].push_back(name);
    if (i % 3 != 1) answer[name] = 3;
    if (i % 2 == 0) answer[name] = 4;
    if (i < 12'000) optional["properties"][name] = {{"anyOf", {{{"type", "integer"}}, {{"type", "null"}}}}};
  }
  EXPECT_TRUE(accepts(wide.dump(), answer.dump()));
  EXPECT_FALSE(accepts(wide.dump(), R"({"p10000":3})"));
  EXPECT_TRUE(accepts(optional.dump(), "{}"));
  EXPECT_TRUE(accepts(optional.dump(), R"({"p10007":null, "p10008": 3, "p11999": 3})"));
  EXPECT_FALSE(accepts(optional.dump(), R"({"p10007":null,})"));
  EXPECT_FALSE(accepts(optional.dump(), R"({"p10008":null,"p10007":3})"));
  EXPECT_FALSE(accepts(optional.dump(), R"({"p11999":null,)"));
  wide.erase("required");
  const auto refused = schema_grammar(wide.dump());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("optional properties"), std::string::npos);
  // Two to the power of the list's length.
  json many = {{"allOf", json::array()}};
  for (int i = 0; i < 30; ++i)
    many["allOf"].push_back(
        {{"anyOf", {{{"required", {fmt::format("a{}", i)}}}, {{"required", {fmt::format("b{}", i)}}}}}});
  EXPECT_LT(seconds_of([&] { EXPECT_FALSE(schema_grammar(many.dump()).ok()); }), 20);
}

TEST(SchemaGrammar, MemoryAndTimeAreGranted) {
  const std::string words = enum_of(20'000);
  BuildLimits limits;
  Lender enough(64u << 20), little(1u << 20), called_off(64u << 20, 3);
  limits.grant = &enough;
  const auto grammar = schema_grammar(words, limits);
  ASSERT_TRUE(grammar.ok());
  EXPECT_EQ(enough.lent, 0u);
  EXPECT_GT(enough.highest, (*grammar)->bytes());
  limits.grant = &little;
  EXPECT_NE(schema_grammar(words, limits).status().message().find("too large"), std::string::npos);
  EXPECT_EQ(little.lent, 0u);
  limits.grant = &called_off;
  EXPECT_EQ(schema_grammar(words, limits).status().code(), Code::cancelled);
  limits.grant = nullptr;
  limits.bytes = 1u << 20;
  EXPECT_NE(schema_grammar(words, limits).status().message().find("too large"), std::string::npos);
}

/// Walks at random, by tokens of several bytes where there are some.
void expect_exact_masks(const std::string& schema, const std::shared_ptr<const TokenTrie>& trie, std::mt19937& random,
                        int steps) {
  Matcher matcher(grammar_of(schema), trie);
  std::vector<std::uint32_t> bits((static_cast<std::size_t>(trie->vocab_size()) + 31) / 32);
  for (int step = 0; step < steps && matcher.may_go_on(); ++step) {
    std::fill(bits.begin(), bits.end(), 0u);
    ASSERT_TRUE(matcher.add_mask(bits).ok());
    std::vector<TokenId> allowed, longer;
    for (TokenId id = 0; id < trie->vocab_size(); ++id) {
      if (trie->bytes_of(id).empty()) continue;
      const bool set = ((bits[static_cast<std::size_t>(id) / 32] >> (id % 32)) & 1u) != 0;
      Matcher copy = matcher.copy();
      ASSERT_EQ(copy.take(trie->bytes_of(id)).ok(), set) << schema << " token '" << trie->bytes_of(id) << "'";
      if (!set) continue;
      allowed.push_back(id);
      if (trie->bytes_of(id).size() > 1) longer.push_back(id);
    }
    ASSERT_FALSE(allowed.empty());
    const auto& from = longer.empty() || random() % 4 == 0 ? allowed : longer;
    ASSERT_TRUE(matcher.take(trie->bytes_of(from[random() % from.size()])).ok());
  }
}

TEST(Matcher, MaskIsExactlyWhatItTakes) {
  std::mt19937 random(5);
  for (const std::string& schema : schemas()) expect_exact_masks(schema, demo_trie(), random, 12);
}

/// Where a token holds an item's end and all of the next one.
TEST(Matcher, TextsDifferWithinTokens) {
  const std::vector<std::string> more = {"\",\"",   "a\",\"a",  "\",\"a\"]", "[\"a\",", "1,1", ",1",  "2,",  "1,2,12",
                                         "[1,1]",   "[1,2,",    "],[",       "[[1],[1", "]]",  "12",  ".5,", ".50",
                                         "{\"a\":", "1,\"a\":", "1,\"b\":",  "{\"",     "\\u", "\\n", "\"}", "0]"};
  const auto tokenizer = test::make_tokenizer(test::bpe_image("gpt-2", more, std::vector<int>(more.size(), 1), {}));
  ASSERT_NE(tokenizer, nullptr);
  const auto trie = TokenTrie::make(*tokenizer);
  std::mt19937 random(6);
  for (const std::string& schema : schemas()) {
    const bool differ = schema.find("uniqueItems") != std::string::npos || schema.find("minProp") != std::string::npos;
    for (int i = 0; differ && i < 8; ++i) expect_exact_masks(schema, trie, random, 25);
  }
}

TEST(Matcher, HostileFormsEndInAnErrorAndSoon) {
  const auto start = std::chrono::steady_clock::now();
  for (const char* pattern : {"^(a|a|a|a)*(a|b)*[ab]{0,400}a[ab]{400}$", "^((a?){200}){20}$", "^(a*)*(b*)*((ab)*)*$"}) {
    const auto grammar = schema_grammar(json{{"type", "string"}, {"pattern", pattern}}.dump());
    if (!grammar.ok()) continue;
    Matcher matcher(*grammar, demo_trie());
    std::vector<std::uint32_t> bits((static_cast<std::size_t>(demo_trie()->vocab_size()) + 31) / 32);
    Status status = matcher.take("\"");
    for (int i = 0; i < 60 && status.ok(); ++i) {
      status = matcher.add_mask(bits);
      if (status.ok()) status = matcher.take("a");
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(Matcher, DeepNestingEnds) {
  Matcher matcher(grammar_of("{}"), demo_trie());
  std::string text(150, '[');
  EXPECT_TRUE(matcher.take(text).ok());
  EXPECT_FALSE(matcher.take(std::string(5000, '[')).ok());
  EXPECT_TRUE(matcher.take(std::string(150, ']')).ok());
  EXPECT_TRUE(matcher.may_end());
}

TEST(SchemaGrammar, HostsDoNotEndWithANumber) {
  // Readers of URLs take such a host for an IPv4 address, and refuse "http://a.1" and "http://1".
  for (const char* more : {"", R"(,"maxLength":60)"}) {
    const auto takes = [&](const char* format, const std::string& text) {
      return accepts(fmt::format(R"({{"type":"string","format":"{}"{}}})", format, more), "\"" + text + "\"");
    };
    for (const char* host : {"a", "a1", "a-b.c", "1.a", "x9-8.example"}) {
      EXPECT_TRUE(takes("uri", std::string("https://") + host + "/x")) << host << more;
      EXPECT_TRUE(takes("hostname", host)) << host << more;
    }
    for (const char* host : {"1", "a.1", "a.0x1", "1.2.3", "a.b.9z"}) {
      EXPECT_FALSE(takes("uri", std::string("https://") + host + "/x")) << host << more;
      EXPECT_FALSE(takes("hostname", host)) << host << more;
    }
  }
  EXPECT_TRUE(accepts(R"_({"type":"string","format":"uri","pattern":"^http://127"})_", "\"http://127.0.0.1/x\""));
}

std::shared_ptr<Constraint> seven_after(ThoughtBefore thought) {
  return make_constraint_after(std::move(thought), make_constraint(grammar_of(R"({"const":7})"), demo_trie()),
                               demo_trie(), test::demo_tokenizer());
}

std::vector<TokenId> ids_of(const std::string& text) { return test::demo_tokenizer()->encode(text, Specials::parse); }

std::vector<bool> allowed(Constraint& constraint) {
  const auto vocab = static_cast<std::size_t>(test::demo_tokenizer()->vocab_size());
  std::vector<std::uint32_t> bits((vocab + 31) / 32);
  EXPECT_TRUE(constraint.mask(bits).ok());
  std::vector<bool> all(vocab);
  for (std::size_t i = 0; i < vocab; ++i) all[i] = (bits[i / 32] >> (i % 32) & 1u) != 0;
  return all;
}
bool allows(Constraint& constraint, TokenId id) { return allowed(constraint)[static_cast<std::size_t>(id)]; }

TEST(ConstraintAfter, AThoughtIsFreeButForItsEnd) {
  const auto constraint = seven_after({.opened = true, .end = "</x>"});
  const TokenId end = *test::demo_tokenizer()->eos();
  for (const TokenId id : ids_of("anything at all </x>")) {
    EXPECT_FALSE(constraint->done());
    EXPECT_FALSE(allows(*constraint, end)) << "the answer could end without the form";
    EXPECT_TRUE(allows(*constraint, id));
    ASSERT_TRUE(constraint->accept(id).ok());
  }
  EXPECT_FALSE(allows(*constraint, end));
  EXPECT_FALSE(constraint->accept(ids_of("8")[0]).ok());
  EXPECT_TRUE(constraint->accept(ids_of("7")[0]).ok());
  EXPECT_TRUE(constraint->done());
}

TEST(ConstraintAfter, AModelMayOpenItsThoughtOrNot) {
  const TokenId end = *test::demo_tokenizer()->eos();
  for (const std::string mark : {"<|im_start|>", "<x>"}) {  // a control token, and text of several tokens
    const ThoughtBefore thought{.begin = ids_of(mark), .end = "</x>"};
    const auto thinks = seven_after(thought);
    for (const TokenId id : ids_of(mark + " 8 </x>")) {
      ASSERT_TRUE(allows(*thinks, id)) << mark << id;
      EXPECT_FALSE(allows(*thinks, end));
      ASSERT_TRUE(thinks->accept(id).ok());
    }
    EXPECT_FALSE(allows(*thinks, ids_of("8")[0]));
    ASSERT_TRUE(thinks->accept(ids_of("7")[0]).ok());
    EXPECT_TRUE(thinks->done());
    const auto answers = seven_after(thought);
    EXPECT_FALSE(allows(*answers, ids_of("8")[0]));
    EXPECT_FALSE(allows(*answers, end));
    EXPECT_TRUE(allows(*answers, ids_of("7")[0]));
    ASSERT_TRUE(answers->accept(ids_of("7")[0]).ok());
    EXPECT_TRUE(answers->done());
  }
}

TEST(ConstraintAfter, MessagesHaveTheirHeaders) {
  // As in harmony, both headers begin alike.
  const ThoughtBefore thought{.begin = ids_of("<|im_start|>analysis:"),
                              .end = "</x>",
                              .header = ids_of("<|im_start|>final:"),
                              .header_after = ids_of("<|im_end|><|im_start|>final:")};
  for (const std::string before :
       {"<|im_start|>final:", "<|im_start|>analysis: 8 8 </x><|im_end|><|im_start|>final:"}) {
    const auto constraint = seven_after(thought);
    EXPECT_FALSE(allows(*constraint, ids_of("7")[0]));
    for (const TokenId id : ids_of(before)) {
      ASSERT_TRUE(allows(*constraint, id)) << before << " " << id;
      ASSERT_TRUE(constraint->accept(id).ok());
      EXPECT_FALSE(constraint->done());
    }
    EXPECT_FALSE(allows(*constraint, ids_of("8")[0]));
    ASSERT_TRUE(constraint->accept(ids_of("7")[0]).ok());
    EXPECT_TRUE(constraint->done());
  }
}

}  // namespace
}  // namespace millrace::text
