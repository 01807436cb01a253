#include "app/generate/job.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <string>
#include <vector>

#include "app/generate/schema.h"
#include "app/generate/thinking.h"

namespace millrace::generate {
namespace {

class CountingGrant final : public WorkGrant {
 public:
  explicit CountingGrant(std::uint64_t most) : most_(most) {}
  bool take(std::uint64_t bytes) override {
    if (bytes > most_ - taken_) return false;
    taken_ += bytes;
    return true;
  }
  void give_back(std::uint64_t bytes) noexcept override { taken_ -= bytes; }
  std::uint64_t taken() const { return taken_; }

 private:
  const std::uint64_t most_;
  std::uint64_t taken_ = 0;
};

std::string repeated(const std::string& head, const std::string& piece, int count, const std::string& tail) {
  std::string text = head;
  for (int i = 0; i < count; ++i) text += piece;
  return text + tail;
}

std::uint64_t heap_bytes() {
#if defined(_WIN32)
  std::uint64_t bytes = 0;
  for (_HEAPINFO entry{}; _heapwalk(&entry) == _HEAPOK;)
    if (entry._useflag == _USEDENTRY) bytes += entry._size;
  return bytes;
#else
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
#endif
}

std::vector<std::string> bodies() {
  std::string members = "{";
  for (int i = 0; i < 20'000; ++i) members += fmt::format("{}\"{}\":0", i == 0 ? "" : ",", i);
  return {repeated(R"({"x":[)", "{},", 100'000, "{}]}"),
          repeated(R"({"x":[)", "1,", 100'000, "1]}"),
          repeated(R"({"x":[)", "\"a\",", 100'000, "\"a\"]}"),
          repeated(R"({"x":[)", "[[]],", 50'000, "[]]}"),
          repeated(R"({"x":[)", R"({"role":"user","content":"a text of some length"},)", 20'000, "{}]}"),
          repeated(R"({"x":")", "abcdef", 100'000, "\"}"),
          repeated(R"({"x":")", R"(\u00e9)", 100'000, "\"}"),
          members + "}"};
}

TEST(ParseObject, AsksForMoreThanItTakes) {
  for (const std::string& body : bodies()) {
    CountingGrant grant(1u << 30);
    const std::uint64_t before = heap_bytes();
    const auto json = parse_object(body, &grant);
    ASSERT_TRUE(json.ok()) << body.substr(0, 40);
    const std::vector<Json> copies(4, *json);  // on the way to a prompt
    EXPECT_GE(grant.taken(), heap_bytes() - before) << body.substr(0, 40);
  }
}

TEST(ParseObject, MakesNothingThatIsNotGranted) {
  for (const std::string& body : bodies()) {
    CountingGrant grant(1u << 20);
    const auto json = parse_object(body, &grant);
    EXPECT_EQ(json.status().code(), Code::out_of_budget) << body.substr(0, 40);
    EXPECT_EQ(grant.taken(), 0u);
  }
}

TEST(ParseObject, LeavesTheWorkOnTextsToThePrompt) {
  const std::string text(100'000, 'a');
  CountingGrant whole(1u << 30), left(1u << 30);
  const std::string body = R"({"images":[")" + text + R"("],"text":")" + text + "\"}";
  ASSERT_TRUE(parse_object(body, &whole).ok());
  const auto json = parse_object(body, &left, WorkOnTexts::granted_with_the_prompt);
  ASSERT_TRUE(json.ok());
  EXPECT_LT(left.taken(), 6 * body.size());
  Job job;
  EXPECT_EQ(work_on_texts_bytes(job), 0u);
  job.messages = Json::array({{{"role", "user"}, {"content", (*json)["text"]}}});
  const std::uint64_t work = work_on_texts_bytes(job);
  EXPECT_GT(work, 12 * text.size());
  EXPECT_LT(work, 18 * text.size());
  EXPECT_GE(left.taken() + 2 * work, whole.taken()) << "with both texts in its prompt it takes no less than before";
  // Wherever a text of a job stands.
  for (const char* member : {"tools", "schema", "prompt", "suffix", "grammar", "stop"}) {
    Job one;
    const std::string name = member;
    if (name == "tools") one.tools = Json::array({{{"description", text}}});
    if (name == "schema") one.schema = {{text, true}};
    if (name == "prompt") one.prompt = text;
    if (name == "suffix") one.fill.emplace().suffix = text;
    if (name == "grammar") one.grammar = text;
    if (name == "stop") one.stop = {text};
    EXPECT_GT(work_on_texts_bytes(one), 12 * text.size()) << member;
  }
}

TEST(ParseObject, CountsTextsAsTheyAreAndNoFurther) {
  CountingGrant grant(1u << 20);
  for (const char* bad : {"", "{", "[]", "7", "\"", "\"\\", "{\"", "{\"a\\", "}}}}{", "{]", "nul"})
    EXPECT_EQ(parse_object(bad, &grant).status().code(), Code::invalid_argument) << bad;
  EXPECT_EQ(parse_object(std::string(200, '['), &grant).status().code(), Code::invalid_argument);
  const auto json = parse_object(R"({"a":"[{,\"}\\","b":[]})", &grant);
  ASSERT_TRUE(json.ok());
  EXPECT_EQ((*json)["a"], "[{,\"}\\");
}

TEST(ParseJson, IsAsNlohmannReadsIt) {
  for (const char* text : {"{}", "[]", "7", "-7", "1.5", "null", "true", R"("a\u00e9")", R"({"b":1,"a":2,"b":3})",
                           R"({"a":{"x":1,"y":[{}],"x":{"z":[1,{"q":0,"q":1}]}},"b":[],"a":5,"c":6,"b":{"k":1}})",
                           R"([{"a":1,"a":2},[[],{}],"",1e300])", R"({"":1,"":2})"}) {
    EXPECT_EQ(parse_json(text).dump(), Json::parse(text).dump()) << text;
  }
  for (const char* bad : {"", "{", "}", "{\"a\"}", "{\"a\":1,}", "[1 2]", "nul", "1e999", "\"\xff\"", "{} {}"})
    EXPECT_TRUE(parse_json(bad).is_discarded()) << bad;
}

TEST(ParseJson, KeysAreNoSquare) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += fmt::format("{}\"key{}\":{}", i == 0 ? "" : ",", i % 150'000, i);
  const auto begin = std::chrono::steady_clock::now();
  const Json json = parse_json(text + "}");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));  // by the square: a minute
  ASSERT_EQ(json.size(), 150'000u);
  EXPECT_EQ(json.begin().key(), "key0");
  EXPECT_EQ(json.begin().value(), 150'000);
}

TEST(ParseJson, NestsNoDeeperThanItIsCopied) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_FALSE(parse_json(nested(kMostNesting)).is_discarded());
  EXPECT_TRUE(parse_json(nested(kMostNesting + 1)).is_discarded());
  EXPECT_TRUE(parse_json(nested(1'000'000)).is_discarded());
}

TEST(ParseObject, HalfASurrogatePairIsReplaced) {
  const auto read = [](const std::string& text) { return parse_object(R"({"a":")" + text + "\"}").value()["a"]; };
  EXPECT_EQ(read(R"(cut \ud83d here)"), "cut \xEF\xBF\xBD here");
  EXPECT_EQ(read(R"(\udc00\uD83D)"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(read(R"(\ud83d\ud83d\ude00)"), "\xEF\xBF\xBD\xF0\x9F\x98\x80");
  EXPECT_EQ(read(R"(\ud83d\n)"), "\xEF\xBF\xBD\n");
  EXPECT_EQ(read(R"(\\ud83d)"), "\\ud83d");
  EXPECT_EQ(read(R"(\\\ud83d)"), "\\\xEF\xBF\xBD");
  EXPECT_EQ(read("\xED\xA0\xBD"), "\xEF\xBF\xBD");
}

TEST(ParseObject, SaysWhereItIsWrong) {
  EXPECT_NE(parse_object("{\"a\": 1,\n \"b\": tru}").status().message().find("line 2, column"), std::string::npos);
  EXPECT_NE(parse_object("{").status().message().find("line 1, column"), std::string::npos);
  EXPECT_NE(parse_object("nonsense").status().message().find("line 1, column 2"), std::string::npos);
}

TEST(TakeThinking, EachDialectIsUnderstood) {
  const auto read = [](const char* body) {
    Job job;
    const Status status = take_thinking(Json::parse(body), job);
    if (!status.ok()) return std::string(status.message());
    const text::Thinking& thinking = job.thinking;
    return (thinking.on ? *thinking.on ? "on " : "off " : "") + thinking.effort +
           (thinking.budget ? std::to_string(*thinking.budget) : "") +
           (job.template_variables.empty() ? "" : job.template_variables.dump());
  };
  EXPECT_EQ(read("{}"), "");
  for (const char* effort : {"none", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    const std::string value = std::string("\"") + effort + "\"";
    EXPECT_EQ(read((R"({"reasoning_effort": )" + value + "}").c_str()), effort);
    EXPECT_EQ(read((R"({"reasoning": {"effort": )" + value + "}}").c_str()), effort);
    EXPECT_EQ(read((R"({"think": )" + value + "}").c_str()), effort);
    EXPECT_EQ(read((R"({"output_config": {"effort": )" + value + "}}").c_str()), effort);
  }
  EXPECT_EQ(read(R"({"think": true})"), "on ");
  EXPECT_EQ(read(R"({"think": false})"), "off ");
  EXPECT_EQ(read(R"({"enable_thinking": false})"), "off ");
  EXPECT_EQ(read(R"({"thinking": {"type": "disabled"}})"), "off ");
  EXPECT_EQ(read(R"({"thinking": {"type": "enabled", "budget_tokens": 2048}})"), "on 2048");
  EXPECT_EQ(read(R"({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}})"), "low");
  EXPECT_EQ(read(R"({"reasoning": {"enabled": false}})"), "off ");
  EXPECT_EQ(read(R"({"thinking_budget": 100})"), "100");
  EXPECT_EQ(read(R"({"reasoning_effort": null, "think": null, "reasoning": null})"), "");
  EXPECT_EQ(read(R"({"chat_template_kwargs": {"enable_thinking": false, "x": 1}})"),
            R"(off {"enable_thinking":false,"x":1})");
  for (const char* bad : {R"({"reasoning_effort": "hgih"})", R"({"reasoning_effort": 3})", R"({"think": "maybe"})",
                          R"({"thinking": {"type": "on"}})", R"({"thinking": 1})", R"({"reasoning": "high"})",
                          R"({"chat_template_kwargs": []})", R"({"chat_template_kwargs": {"messages": []}})",
                          R"({"output_config": {"effort": "some"}})"})
    EXPECT_GT(read(bad).size(), 10u) << bad;
}

TEST(Schemas, AreTidiedAndClamped) {
  Json schema =
      Json::parse(R"({"type": "OBJECT", "properties": {"type": {"type": ["STRING", "NULL"], "maxLength": 65536,
    "enum": ["OBJECT", null]}, "b": {"type": "ARRAY", "items": {"type": "Integer"}, "maxItems": 9000, "properties": null}}})");
  tidy_schema(schema);
  ASSERT_TRUE(clamp_limits(schema, 0));
  EXPECT_EQ(schema.dump(),
            R"({"type":"object","properties":{"type":{"type":["string","null"],"maxLength":50000,)"
            R"("enum":["OBJECT",null]},"b":{"type":"array","items":{"type":"integer"},"maxItems":5000}}})");
  ASSERT_TRUE(clamp_limits(schema, 3));
  EXPECT_EQ(schema["properties"]["type"]["maxLength"], 128);
  EXPECT_FALSE(clamp_limits(schema, 4));
}

}  // namespace
}  // namespace millrace::generate
