#include "text/answer_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace::text {
namespace {

/// The events in short: thoughts in (), calls as [name arguments], content as it is.
std::string told(const std::vector<AnswerEvent>& events) {
  std::string all;
  AnswerEvent::Kind last = AnswerEvent::Kind::content;
  for (const AnswerEvent& event : events) {
    const bool thought = event.kind == AnswerEvent::Kind::reasoning;
    if (last == AnswerEvent::Kind::reasoning && !thought) all += ")";
    if (thought && last != AnswerEvent::Kind::reasoning) all += "(";
    if (event.kind == AnswerEvent::Kind::call_begin)
      all.append("[").append(std::to_string(event.call)).append(event.text).append(" ");
    if (event.kind == AnswerEvent::Kind::call_end) all += "]";
    if (event.kind != AnswerEvent::Kind::call_begin && event.kind != AnswerEvent::Kind::call_end) all += event.text;
    last = event.kind;
  }
  return last == AnswerEvent::Kind::reasoning ? all + ")" : all;
}

std::string parsed(const std::string& text, AnswerForm form, const std::vector<std::size_t>& cuts = {}) {
  AnswerParser parser(form);
  std::vector<AnswerEvent> all;
  const auto add = [&](std::vector<AnswerEvent> events) { all.insert(all.end(), events.begin(), events.end()); };
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    add(parser.push(std::string_view(text).substr(begin, cut - begin)));
    begin = cut;
  }
  add(parser.push(std::string_view(text).substr(begin)));
  add(parser.finish());
  return told(all);
}

/// Whole, cut once at every byte, and byte by byte: always the same.
void expect(const std::string& text, AnswerForm form, const std::string& wanted) {
  EXPECT_EQ(parsed(text, form), wanted) << text;
  std::vector<std::size_t> all;
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(parsed(text, form, {cut}), wanted) << text << " cut at " << cut;
    all.push_back(cut);
  }
  EXPECT_EQ(parsed(text, form, all), wanted) << text << " byte by byte";
}

constexpr AnswerForm kNone{}, kTagged{CallStyle::tagged}, kBare{CallStyle::bare}, kThinking{CallStyle::none, true};

TEST(AnswerParser, ThoughtsAreTakenOut) {
  expect("Hello", kNone, "Hello");
  expect("", kNone, "");
  expect(" \n Hello \n", kNone, " \n Hello \n");
  expect("<think>\nhm, ok\n</think>\n\nHello\n", kNone, "(hm, ok)Hello\n");
  expect("\n<think>a\n\nb</think>c", kTagged, "(a\n\nb)c");
  expect("<think></think>x", kNone, "x");
  expect("<think>\n\n</think>\n\nx", kNone, "x");
  expect("<think>never ends\n", kNone, "(never ends)");
  expect("<thinking>x</thinking>", kNone, "<thinking>x</thinking>");
  expect("a <think>b</think>", kNone, "a <think>b</think>");
  expect("hm\n</think>\n\nHi <think> </think>", kThinking, "(hm)Hi <think> </think>");
  expect("a < b </thin c</think>d", kThinking, "(a < b </thin c)d");
  expect("<think>a</think>b", AnswerForm{CallStyle::none, false, false}, "<think>a</think>b");
  expect("<th", kNone, "<th");
}

TEST(AnswerParser, TaggedCallsAreTakenOut) {
  const std::string call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"x\"}}\n</tool_call>";
  const std::string made = "add {\"a\":1,\"b\":\"x\"}]";
  expect(call, kTagged, "[0" + made);
  expect("Let me see.\n\n" + call + "\n" + call + "\n", kTagged, "Let me see.[0" + made + "[1" + made);
  expect("<think>\nhm\n</think>\n\n" + call, kTagged, "(hm)[0" + made);
  expect(call + " and so", kTagged, "[0" + made + "and so");
  expect(call, kNone, call);
  expect(call.substr(0, call.size() - 13), kTagged, "[0" + made);
  expect("<tool_call>{\"name\": \"f\"}</tool_call>", kTagged, "[0f {}]");
  expect("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", kTagged, "[0f {\"a\":1}]");
  expect("<tool_call>[{\"name\": \"f\"}, {\"name\": \"g\"}]</tool_call>", kTagged, "[0f {}][1g {}]");
  expect("<tool_call>{\"name\": \"f\", \"arguments\": {\"t\": \"</tool_call> \\\" x\"}}</tool_call>", kTagged,
         "[0f {\"t\":\"</tool_call> \\\" x\"}]");
  expect("a <tool_cal b < c <tool", kTagged, "a <tool_cal b < c <tool");
}

TEST(AnswerParser, WhatIsNoCallIsSaid) {
  for (const std::string body :
       {"", "{", "nonsense", "{\"name\": 1}", "{\"name\": \"\"}", "{\"nam\": \"f\"}", "[]", "[1]", "3",
        "{\"name\": \"f\", \"arguments\": [1]}", "{\"name\": \"f\", \"arguments\": \"x\"}", "{'name': 'f'}",
        "<function=f><parameter=a>1</function>", "<function=>", "<function=f>"}) {
    expect("a <tool_call>" + body + "</tool_call> b", kTagged, "a<tool_call>" + body + "</tool_call> b");
  }
  expect("<tool_call>{\"name\": \"f", kTagged, "<tool_call>{\"name\": \"f");
  expect("<tool_call>", kTagged, "<tool_call>");
  const std::string deep = "<tool_call>{\"name\": \"f\", \"arguments\": " + std::string(50'000, '[') + "</tool_call>";
  EXPECT_EQ(parsed(deep, kTagged), deep);
}

TEST(AnswerParser, FunctionTagsAreCalls) {
  expect(
      "<tool_call>\n<function=get>\n<parameter=city>\nRome \"R\"\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
      "<parameter=l>[1, {}]</parameter>\n</function>\n</tool_call>",
      kTagged, "[0get {\"city\":\"Rome \\\"R\\\"\",\"n\":3,\"l\":[1,{}]}]");
}

TEST(AnswerParser, BareCallsAreTakenOut) {
  expect("{\"name\": \"add\", \"parameters\": {\"a\": \"}\\\"{\"}}", kBare, "[0add {\"a\":\"}\\\"{\"}]");
  expect("<|python_tag|>{\"name\": \"add\", \"parameters\": {}}", kBare, "[0add {}]");
  expect("\n{\"type\": \"function\", \"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", \"arguments\": {}}\n",
         kBare, "[0a {}][1b {}]");
  expect("[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {\"k\": [1]}}, {\"name\": \"b\", \"arguments\": {}}]", kBare,
         "[0a {\"k\":[1]}][1b {}]");
  expect("[{\"name\": \"a\", \"arguments\": {}}]", kBare, "[0a {}]");
  expect("<think>x</think>{\"name\": \"a\"}", kBare, "(x)[0a {}]");
  expect("Sure: {\"name\": \"a\"}", kBare, "Sure: {\"name\": \"a\"}");
  expect("{\"answer\": 42}", kBare, "{\"answer\": 42}");
  expect("{\"name\": 5}", kBare, "{\"name\": 5}");
  expect("{\"name\": \"a\"", kBare, "{\"name\": \"a\"");
  expect("[1, 2]", kBare, "[1, 2]");
  expect("<|python_tag|>print(1)", kBare, "<|python_tag|>print(1)");
  expect("{", kBare, "{");
  expect("{\"name\": \"a\"}", kTagged, "{\"name\": \"a\"}");
}

TEST(AnswerParser, ContentThatCannotBeAMarkDoesNotWait) {
  AnswerParser parser(kTagged);
  EXPECT_EQ(told(parser.push("Hello ")), "Hello");
  EXPECT_EQ(told(parser.push("world <")), " world");
  EXPECT_EQ(told(parser.push("b>.")), " <b>.");
  AnswerParser json(kBare);
  EXPECT_EQ(told(json.push("{\"ans")), "{\"ans");
}

TEST(AnswerParser, TheStyleIsToldByTheTemplate) {
  EXPECT_EQ(find_call_style("... <tool_call>\\n{\\\"name\\\" ..."), CallStyle::tagged);
  EXPECT_EQ(find_call_style("{{ '<|python_tag|>' + x }}"), CallStyle::bare);
  EXPECT_EQ(find_call_style("{{ '[TOOL_CALLS]' }}"), CallStyle::bare);
  EXPECT_EQ(find_call_style("{% if tools %}{\"name\": function, \"parameters\": {}}"), CallStyle::bare);
  EXPECT_EQ(find_call_style("{{ message.content }}"), CallStyle::none);
}

}  // namespace
}  // namespace millrace::text
