// Conversations of every shape through templates that refuse whatever breaks their families' rules.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/conversation.h"
#include "text/fixtures.h"
#include "text/past_arguments.h"
#include "text/strict_templates.h"

namespace millrace::text {
namespace {

using Json = Conversation::Json;

Json message(const char* role, Json content) { return {{"role", role}, {"content", std::move(content)}}; }
Json call(const char* id, Json arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", "look"}, {"arguments", std::move(arguments)}}}};
}
Json calls(Json content, std::vector<Json> list) {
  Json one = message("assistant", std::move(content));
  one["tool_calls"] = std::move(list);
  return one;
}
Json result(const char* id, const char* content) {
  Json one = message("tool", content);
  one["tool_call_id"] = id;
  return one;
}

/// Every message says a word that begins with "w": none may be lost.
std::vector<Json> shapes() {
  const Json s = message("system", "w-system"), u = message("user", "w-user"), a = message("assistant", "w-answer");
  const Json s2 = message("system", "w-late"), d = message("developer", "w-developer"), u2 = message("user", "w-more");
  const Json one = calls(nullptr, {call("call_abcdefghij", {{"path", "w-path"}})}),
             r = result("call_abcdefghij", "w-result");
  const Json two = calls("w-beside", {call("toolu_1", {{"path", "w-one"}}), call("toolu_2", R"({"path":"w-two"})")});
  const Json r1 = result("toolu_1", "w-first"), r2 = result("toolu_2", "w-second");
  Json thought = calls("w-beside", {call("c", {{"path", "w-path"}})});
  thought["reasoning_content"] = "hm";
  Json parts =
      message("user", Json::array({{{"type", "text"}, {"text", "w-part"}}, {{"type", "text"}, {"text", "w-next"}}}));
  Json function = message("function", "w-function");
  function["name"] = "look";
  return {
      {u},
      {s, u},
      {s},
      {d},
      {s, d},
      {s, s2, u},
      {d, message("developer", "w-late"), u},
      {s, u, s2},
      {u, s},
      {s, u, a, s2, u2},
      {s, u, a, u2, d},
      {u, a, s},
      {u, u2},
      {s, u, u2},
      {u, u2, a, u},
      {u, a, a, u2},
      {a, u},
      {s, a, u},
      {s, a, u, a, u2},
      {a, a},
      {s, a},
      {u, one, r},
      {u, one, r, a, u2},
      {u, one, r, u2},
      {s, u, one, s2, r},
      {u, one, r, s2},
      {s, u, one, r, d, u2},
      {u, two, r1, r2},
      {u, two, r2, r1, u2},
      {u, two, r1, r2, a, u2},
      {u, a, one, r, a},
      {u, thought, result("c", "w-result"), u2},
      {u, one, calls(nullptr, {call("c2", {{"path", "w-two"}})}), r, result("c2", "w-second")},
      {r, u},
      {u, r},
      {u, a, r, u2},
      {u, one, function, u2},
      {u, one},
      {u, two},
      {parts, a, u},
      {u, message("assistant", nullptr), u2},
      {u, message("assistant", ""), u2},
      {message("user", ""), a, u},
      {u, calls("", {call("", "")}), result("", "w-result"), u2},
  };
}

/// The words of a value that begin with "w-".
void words_of(const Json& value, std::vector<std::string>& words) {
  if (value.is_structured()) {
    for (const Json& one : value) words_of(one, words);
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    for (std::size_t at = text.find("w-"); at != std::string::npos; at = text.find("w-", at + 1))
      words.push_back(text.substr(at, text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at) - at));
  }
}

TEST(ChatAdapt, EveryShapeOfConversationReachesEveryStrictTemplateWhole) {
  for (const test::StrictTemplate& strict : test::kStrictTemplates) {
    const auto chat = ChatTemplate::from_text(strict.jinja);
    ASSERT_TRUE(chat.ok()) << strict.name << ": " << chat.status().message();
    for (const Json& shape : shapes()) {
      for (const bool in_words : {false, true}) {
        Conversation talk;
        talk.messages = shape;
        talk.calls_in_words = in_words;
        const auto text = (*chat)->text(*test::demo_tokenizer(), talk);
        ASSERT_TRUE(text.ok()) << strict.name << ": " << text.status().message() << "\n" << shape.dump();
        std::vector<std::string> words;
        words_of(shape, words);
        for (const std::string& word : words)
          EXPECT_NE(text->find(word), std::string::npos)
              << strict.name << " lost " << word << " of " << shape.dump() << "\n"
              << *text;
      }
    }
  }
}

std::string text_of(const std::string& jinja, const Json& messages) {
  Conversation talk;
  talk.messages = messages;
  const auto text = ChatTemplate::from_text(jinja).value()->text(*test::demo_tokenizer(), talk);
  return text.ok() ? *text : "error: " + text.status().message();
}

TEST(ChatAdapt, LateSystemMessagesStayWhereTheyAre) {
  EXPECT_EQ(
      text_of(test::kStrictQwen, {message("system", "Be brief."), message("user", "Hi"), message("assistant", "Hello!"),
                                  message("user", "2?"), message("system", "In French.")}),
      "<|im_start|>system\nBe "
      "brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
      "<|im_start|>user\n2?<|im_end|>\n<|im_start|>user\nIn French.<|im_end|>\n<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(text_of(test::kStrictGemma, {message("system", "Be brief."), message("developer", "Be kind."),
                                         message("user", "Hi"), message("user", "2?")}),
            "<start_of_turn>user\nBe brief.\n\nBe kind.\n\nHi\n\n2?<end_of_turn>\n<start_of_turn>model\n");
}

TEST(ChatAdapt, CallsAreSplitAndKeepTheirResults) {
  const std::string text =
      text_of(test::kStrictLlama, {message("user", "Hi"), calls("", {call("a", {{"n", 1}}), call("b", {{"n", 2}})}),
                                   result("b", "two"), result("a", "one")});
  const std::string header = "<|start_header_id|>assistant<|end_header_id|>\n\n",
                    back = "<|start_header_id|>ipython<|end_header_id|>\n\n";
  EXPECT_NE(text.find(header + R"({"name": "look", "parameters": {"n": 1}}<|eot_id|>)" + back + "one<|eot_id|>" +
                      header + R"({"name": "look", "parameters": {"n": 2}}<|eot_id|>)" + back + "two"),
            std::string::npos)
      << text;
}

TEST(ChatAdapt, ResultsTakeTheOrderOfTheirCalls) {
  const std::string text =
      text_of(test::kStrictQwen, {message("user", "Hi"), calls("", {call("a", {{"n", 1}}), call("b", {{"n", 2}})}),
                                  result("b", "two"), result("other", "three"), result("a", "one")});
  const std::size_t one = text.find("one"), two = text.find("two"), three = text.find("three");
  EXPECT_TRUE(one < two && two < three && three != std::string::npos) << text;
}

TEST(ChatAdapt, ArgumentsBecomeElements) {
  const std::string text = text_of(
      test::kStrictMinimax,
      {message("user", "Hi"),
       calls("",
             {call("c1", {{"s", "a<b"}, {"l", {1, 2.5, {{"x", true}}}}, {"none", nullptr}, {"o", Json::object()}})}),
       result("c1", "sunny")});
  const std::string ns = "]<]minimax[>[";
  const auto tag = [&](const std::string& name, const std::string& value) {
    return ns + "<" + name + ">" + value + ns + "</" + name + ">";
  };
  const std::string wanted =
      "]~b]ai\n</mm:think>" + ns + "<tool_call>\n" + ns + "<invoke name=\"look\">" + tag("s", "a<b") +
      tag("l", tag("item", "1") + tag("item", "2.5") + tag("item", tag("x", "true"))) + tag("o", "") + ns +
      "</invoke>\n" + ns + "</tool_call>[e~[\n]~b]tool\n<response>sunny</response>[e~[\n";
  EXPECT_NE(text.find(wanted), std::string::npos) << text;
  const AnswerFormat format = find_answer_format(test::kStrictMinimax);
  EXPECT_EQ(format.calls->name, "minimax-m3");
  EXPECT_EQ(format.thoughts->begin, "<mm:think>");
}

TEST(ChatAdapt, ManyMessagesTakeLinearTime) {
  Json all = Json::array();
  for (int i = 0; i < 50'000; ++i) all.push_back(message(i % 2 == 0 ? "system" : "user", "a word or two"));
  EXPECT_GT(text_of(test::kStrictGemma, all).size(), 50'000u * 13);
  Json list = Json::array(), talk = {message("user", "Hi"), message("assistant", "")};
  for (int i = 0; i < 20'000; ++i) list.push_back(call(std::to_string(i).c_str(), {{"n", i}}));
  talk[1]["tool_calls"] = std::move(list);
  for (int i = 20'000; i-- > 0;) talk.push_back(result(std::to_string(i).c_str(), "x"));
  EXPECT_GT(text_of(test::kStrictMistral, talk).size(), 20'000u);
}

TEST(PastArguments, AnythingBecomesAnObject) {
  const auto read = [](const Json& arguments) { return past_arguments(arguments).dump(); };
  for (const Json& nothing :
       {Json(), Json(""), Json(" \n"), Json("null"), Json("[]"), Json("{}"), Json::array(), Json::object()})
    EXPECT_EQ(read(nothing), "{}") << nothing.dump();
  EXPECT_EQ(read(R"({"a": 1})"), R"({"a":1})");
  EXPECT_EQ(read(R"({"a": "b)"), R"({"a":"b"})");
  EXPECT_EQ(read(R"({"a": 1, "b)"), R"({"a":1})");
  EXPECT_EQ(read(R"({"a": [1, {"b": "c\)"), R"({"a":[1,{"b":"c"}]})");
  EXPECT_EQ(read(R"({"a":True, 'b': None})"), R"({"a":true,"b":null})");
  EXPECT_EQ(read(R"("{\"a\": 1}")"), R"({"a":1})");
  EXPECT_EQ(read("look here"), R"({"arguments":"look here"})");
  EXPECT_EQ(read("[1, 2]"), R"({"arguments":"[1, 2]"})");
  EXPECT_EQ(read(Json::array({1, 2})), R"({"arguments":[1,2]})");
  EXPECT_EQ(read(true), R"({"arguments":true})");
  const std::string deep = R"({"a":)" + std::string(300'000, '[');
  EXPECT_EQ(past_arguments(deep)["arguments"], deep);
  EXPECT_EQ(read(R"({"a":"{[::\"[{","b":[{}]})"), R"({"a":"{[::\"[{","b":[{}]})");
}

TEST(PastArguments, EveryTemplateRendersThem) {
  for (const test::StrictTemplate& strict : test::kStrictTemplates) {
    for (const Json& arguments :
         {Json(), Json(""), Json::array(), Json("{\"a\": \"w"), Json("{\"a\":True}"), Json(7), Json("w")}) {
      const std::string text = text_of(strict.jinja, {message("user", "Hi"), calls(nullptr, {call("x", arguments)}),
                                                      result("x", "ok"), message("user", "2?")});
      EXPECT_FALSE(text.starts_with("error")) << strict.name << arguments.dump() << text;
      EXPECT_EQ(text.find("True"), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace millrace::text
