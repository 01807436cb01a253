// References and words of older drafts. The cases of references are those of JSON Schema's specification.
#include "text/constraint/schema_document.h"

#include <gtest/gtest.h>

#include <chrono>

#include "text/constraint/matcher.h"
#include "text/constraint/schema.h"
#include "text/constraint/uri.h"
#include "text/fixtures.h"

namespace millrace::text {
namespace {

bool document_takes(const std::string& schema, const std::string& text) {
  static const auto trie = TokenTrie::make(*test::demo_tokenizer());
  const auto grammar = schema_grammar(schema);
  EXPECT_TRUE(grammar.ok()) << schema << ": " << grammar.status().message();
  if (!grammar.ok()) return false;
  Matcher matcher(*grammar, trie);
  return matcher.take(text).ok() && matcher.may_end();
}

void expect_refused(const std::string& schema, const std::string& says) {
  const auto grammar = schema_grammar(schema);
  ASSERT_FALSE(grammar.ok()) << schema;
  EXPECT_NE(grammar.status().message().find(says), std::string::npos) << schema << ": " << grammar.status().message();
}

TEST(SchemaDocument, PointersAreUnescaped) {
  const std::string schema = R"({"type":"array","prefixItems":[{"$ref":"#/$defs/a%20b"},{"$ref":"#/$defs/a~1b"},
      {"$ref":"#/$defs/a~0b"},{"$ref":"#/$defs/50%25"},{"$ref":"#/$defs/List%3CA%3E"},{"$ref":"#/$defs/many/prefixItems/1"}],
      "minItems":6,"$defs":{"a b":{"const":1},"a/b":{"const":2},"a~b":{"const":3},"50%":{"const":4},"List<A>":{"const":5},
      "many":{"prefixItems":[true,{"const":6}]}}})";
  EXPECT_TRUE(document_takes(schema, "[1,2,3,4,5,6]"));
  EXPECT_FALSE(document_takes(schema, "[1,2,3,4,5,1]"));
  EXPECT_TRUE(document_takes(R"({"$ref":"#/$defs/50%","$defs":{"50%":{"const":4}}})", "4"));
  expect_refused(R"({"$ref":"#/$defs/a~2","$defs":{"a~2":true}})", "points to nothing");
  expect_refused(R"({"$ref":"#/allOf/2","allOf":[true]})", "points to nothing");
}

TEST(SchemaDocument, NamesAndAddressesWithinTheDocument) {
  EXPECT_TRUE(document_takes(R"({"$ref":"#foo","$defs":{"A":{"$anchor":"foo","const":1}}})", "1"));
  EXPECT_TRUE(document_takes(R"({"$ref":"#foo","definitions":{"A":{"$id":"#foo","const":1}}})", "1"));  // draft 7
  const std::string tree = R"({"$id":"http://example.org/tree","$ref":"nodes/leaf#/$defs/x","$defs":{
      "leaf":{"$id":"nodes/leaf","$defs":{"x":{"type":"object","properties":{"a":{"$ref":"#y"},"b":{"$ref":"../other"}},
        "required":["a","b"]},"y":{"$anchor":"y","const":1}}},
      "other":{"$id":"/other","const":2},"y":{"$anchor":"y","const":3}}})";
  EXPECT_TRUE(document_takes(tree, R"({"a":1,"b":2})"));
  EXPECT_FALSE(document_takes(tree, R"({"a":3,"b":2})"));
  EXPECT_TRUE(document_takes(
      R"({"$id":"urn:uuid:deadbeef","$ref":"urn:uuid:deadbeef#/$defs/a","$defs":{"a":{"const":1}}})", "1"));
  // What stands among values, or where no draft has schemas, has no address.
  EXPECT_TRUE(document_takes(R"({"$ref":"#x","$defs":{"a":{"enum":[{"$anchor":"x","const":1}]},"b":{"my":{"$anchor":"x",
      "const":2}},"c":{"$anchor":"x","const":3}}})",
                             "3"));
  // References are read there all the same.
  EXPECT_TRUE(document_takes(
      R"({"$ref":"#/components/schemas/a","components":{"schemas":{"a":{"$ref":"#/components/schemas/b%20c"},
      "b c":{"const":1}}}})",
      "1"));
  EXPECT_TRUE(document_takes(R"({"const":{"$ref":"#/x"}})", R"({"$ref":"#/x"})"));
  expect_refused(R"({"$ref":"other.json"})", "leads out of the schema");
  expect_refused(R"({"$ref":"\u00010"})", "leads out of the schema");
}

TEST(SchemaDocument, DynamicReferencesWhereOnePartIsMeant) {
  const std::string list = R"({"$id":"https://example.org/strings","$ref":"list","$defs":{
      "item":{"$dynamicAnchor":"item","type":"string"},
      "list":{"$id":"list","type":"array","items":{"$dynamicRef":"#item"},"$defs":{"item":{"$dynamicAnchor":"item"}}}}})";
  EXPECT_TRUE(document_takes(list, R"(["a"])"));
  EXPECT_FALSE(document_takes(list, "[1]"));
  const std::string tree = R"({"$dynamicAnchor":"node","type":"object","properties":{"next":{"$dynamicRef":"#node"}}})";
  EXPECT_TRUE(document_takes(tree, R"({"next":{"next":{}}})"));
  EXPECT_FALSE(document_takes(tree, R"({"next":1})"));
  const std::string old = R"({"$recursiveAnchor":true,"type":"object","properties":{"next":{"$recursiveRef":"#"}}})";
  EXPECT_TRUE(document_takes(old, R"({"next":{}})"));
  EXPECT_FALSE(document_takes(old, R"({"next":1})"));
}

/// Who answers to a name is the outermost part on the way to the reference.
TEST(SchemaDocument, DynamicReferencesByTheWayToThem) {
  const std::string by_way = R"({"$ref":"a","$defs":{
      "a":{"$id":"a","$ref":"b","$defs":{"x":{"$dynamicAnchor":"x","type":"string"}}},
      "b":{"$id":"b","$dynamicRef":"#x","$defs":{"x":{"$dynamicAnchor":"x"}}}}})";
  EXPECT_TRUE(document_takes(by_way, R"("a")"));
  EXPECT_FALSE(document_takes(by_way, "1"));
  // One list of each kind, through the same list of anything.
  const std::string lists = R"({"type":"object","properties":{"words":{"$ref":"words"},"numbers":{"$ref":"numbers"},
      "any":{"$ref":"list"}},"$defs":{
      "words":{"$id":"words","$ref":"list","$defs":{"of":{"$dynamicAnchor":"of","type":"string"}}},
      "numbers":{"$id":"numbers","$ref":"list","$defs":{"of":{"$dynamicAnchor":"of","type":"integer"}}},
      "list":{"$id":"list","type":"array","items":{"anyOf":[{"$dynamicRef":"#of"},{"$ref":"list"}]},
          "$defs":{"of":{"$dynamicAnchor":"of","type":"null"}}}}})";
  EXPECT_TRUE(document_takes(lists, R"({"words":["a",["b"]],"numbers":[1,[2]],"any":[null,[null]]})"));
  for (const char* bad : {R"({"words":[1]})", R"({"words":[["a"],[1]]})", R"({"numbers":["a"]})", R"({"any":[1]})"})
    EXPECT_FALSE(document_takes(lists, bad)) << bad;
  // A part that stands within is on the way to what it holds; a plain $ref to a dynamic name asks nobody.
  const std::string within = R"({"properties":{"a":{"$id":"a","properties":{"b":{"$ref":"c"}},
      "$defs":{"t":{"$dynamicAnchor":"t","type":"string"}}},"d":{"$ref":"c#t"}},"required":["a","d"],"$defs":{
      "c":{"$id":"c","$dynamicRef":"#t","$defs":{"t":{"$dynamicAnchor":"t","type":"integer"}}}}})";
  EXPECT_TRUE(document_takes(within, R"({"a":{"b":"x"},"d":1})"));
  EXPECT_FALSE(document_takes(within, R"({"a":{"b":1},"d":1})"));
  EXPECT_FALSE(document_takes(within, R"({"a":{"b":"x"},"d":"x"})"));
  const std::string old = R"({"$schema":"https://json-schema.org/draft/2019-09/schema","$ref":"a","$defs":{
      "a":{"$id":"a","$recursiveAnchor":true,"type":"object","properties":{"next":{"$ref":"b"}},"required":["next"]},
      "b":{"$id":"b","$recursiveAnchor":true,"anyOf":[{"type":"null"},{"$recursiveRef":"#"}]}}})";
  EXPECT_TRUE(document_takes(old, R"({"next":{"next":null}})"));
  EXPECT_FALSE(document_takes(old, R"({"next":{}})"));
  std::string many = R"({"$ref":"p0","$defs":{)";
  for (int i = 0; i < 12; ++i) {
    many += fmt::format(R"("p{0}":{{"$id":"p{0}","anyOf":[{{"type":"null"}})", i);
    for (int j = 0; j < 12; ++j) many += fmt::format(R"(,{{"$ref":"p{}"}},{{"$dynamicRef":"p{}#n"}})", j, j);
    many += fmt::format(R"(],"$defs":{{"n":{{"$dynamicAnchor":"n"}},"o":{{"$dynamicAnchor":"o{}"}}}}}},)", i);
  }
  expect_refused(many + R"("z":{}}})", "too many ways");
}

TEST(SchemaDocument, WordsOfOlderDrafts) {
  const std::string above =
      R"({"type":"integer","minimum":3,"exclusiveMinimum":true,"maximum":5,"exclusiveMaximum":false})";
  EXPECT_FALSE(document_takes(above, "3"));
  EXPECT_TRUE(document_takes(above, "4"));
  EXPECT_TRUE(document_takes(above, "5"));
  const std::string both = R"({"type":"integer","allOf":[{"minimum":3,"exclusiveMinimum":true},{"minimum":5}]})";
  EXPECT_TRUE(document_takes(both, "5"));
  EXPECT_FALSE(document_takes(both, "4"));
  const std::string brought =
      R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"dependencies":{"a":["b"],
      "b":{"required":["a"]}}})";
  EXPECT_TRUE(document_takes(brought, "{}"));
  EXPECT_TRUE(document_takes(brought, R"({"a":1,"b":2})"));
  EXPECT_FALSE(document_takes(brought, R"({"a":1})"));
  EXPECT_FALSE(document_takes(brought, R"({"b":2})"));
}

/// What refers to itself may stand beside other words.
TEST(SchemaDocument, WhatRefersToItselfBesideOthers) {
  const std::string narrowed = R"({"type":"object","properties":{"v":{"type":"integer"},
      "next":{"allOf":[{"$ref":"#"}],"required":["v"]}}})";
  EXPECT_TRUE(document_takes(narrowed, R"({"next":{"v":1,"next":{"v":2}}})"));
  EXPECT_FALSE(document_takes(narrowed, R"({"next":{"next":{"v":2}}})"));
  const std::string beside =
      R"({"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#","required":["v"]}}})";
  EXPECT_TRUE(document_takes(beside, R"({"next":{"v":1,"next":{"v":2}}})"));
  EXPECT_FALSE(document_takes(beside, R"({"next":{"next":{"v":2}}})"));
  const std::string extends = R"({"$ref":"#/$defs/N","$defs":{
      "B":{"type":"object","properties":{"id":{"const":1},"kids":{"type":"array","items":{"$ref":"#/$defs/B"}}},"required":["id"]},
      "N":{"allOf":[{"$ref":"#/$defs/B"},{"properties":{"kids":{"items":{"$ref":"#/$defs/N"}},"x":{"const":2}},"required":["x"]}]}}})";
  EXPECT_TRUE(document_takes(extends, R"({"id":1,"kids":[{"id":1,"kids":[],"x":2}],"x":2})"));
  EXPECT_FALSE(document_takes(extends, R"({"id":1,"kids":[{"id":1,"kids":[]}],"x":2})"));
}

TEST(SchemaDocument, HostileOnesEndSoonInLittleMemory) {
  const auto begin = std::chrono::steady_clock::now();
  // Each part's URI would be as long as the first.
  SchemaJson nested = {{"$id", "http://x/" + std::string(400'000, 'a') + "/"}, {"allOf", SchemaJson::array()}};
  for (int i = 0; i < 200; ++i) nested["allOf"].push_back({{"$id", fmt::format("{}", i)}});
  EXPECT_LT(SchemaDocument(nested).bytes(), 1u << 20);
  SchemaJson references = {{"$defs", SchemaJson::object()}, {"anyOf", SchemaJson::array()}};
  for (int i = 0; i < 12'000; ++i) {
    references["$defs"][fmt::format("a{} b", i)] = true;
    references["anyOf"].push_back({{"$ref", fmt::format("#/$defs/a{}%20b", i)}});
  }
  const SchemaDocument document(references);
  const SchemaJson& root = **document.resolve("#");
  EXPECT_TRUE(document.resolve(root["anyOf"][11'999]["$ref"].get<std::string>()).ok());
  EXPECT_LT(document.bytes(), 8u << 20);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Uri, JoinsAsTheRfcDoes) {
  const std::string base = "http://a/b/c/d;p?q";
  for (const auto& [reference, joined] :
       std::vector<std::pair<const char*, const char*>>{{"g:h", "g:h"},
                                                        {"g", "http://a/b/c/g"},
                                                        {"./g", "http://a/b/c/g"},
                                                        {"g/", "http://a/b/c/g/"},
                                                        {"/g", "http://a/g"},
                                                        {"//g", "http://g"},
                                                        {"?y", "http://a/b/c/d;p?y"},
                                                        {"g?y", "http://a/b/c/g?y"},
                                                        {"", "http://a/b/c/d;p?q"},
                                                        {".", "http://a/b/c/"},
                                                        {"..", "http://a/b/"},
                                                        {"../g", "http://a/b/g"},
                                                        {"../../g", "http://a/g"},
                                                        {"../../../g", "http://a/g"},
                                                        {"/./g", "http://a/g"},
                                                        {"g;x=1/../y", "http://a/b/c/y"}})
    EXPECT_EQ(joined_uri(base, reference), joined) << reference;
  EXPECT_EQ(joined_uri("http://a", "g"), "http://a/g");
  EXPECT_EQ(joined_uri("", "g"), "g");
  EXPECT_EQ(percent_decoded("a%20b%2"), "a b%2");
}

}  // namespace
}  // namespace millrace::text
