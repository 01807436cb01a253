#include "text/answer_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "base/json_nesting.h"
#include "text/json_copy.h"

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

AnswerForm form_of(const char* calls, bool in_thought = false) {
  AnswerForm form;
  if (*calls != '\0') form.calls = &call_format(calls);
  form.thoughts = &default_thoughts();
  form.in_thought = in_thought;
  return form;
}

AnswerForm with_tools(const char* calls, const char* tools) {
  AnswerForm form = form_of(calls);
  form.tools = std::make_shared<const ToolTypes>(nlohmann::ordered_json::parse(tools));
  return form;
}

const AnswerForm kNone = form_of(""), kTagged = form_of("hermes"), kBare = form_of("llama"),
                 kMistral = form_of("mistral"), kThinking = form_of("", true);

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
  expect("<think>a</think>b", AnswerForm{}, "<think>a</think>b");
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
        "<function=>", "<function=a b>", "<function=f"}) {
    expect("a <tool_call>" + body + "</tool_call> b", kTagged, "a <tool_call>" + body + "</tool_call> b");
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
  expect("[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {\"k\": [1]}}, {\"name\": \"b\", \"arguments\": {}}]", kMistral,
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

/// Of a tool "edit" and one "add".
constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "edit", "parameters": {"type": "object", "properties": {
    "path": {"type": "string"}, "text": {"type": "string"}, "line": {"type": "integer"}, "all": {"type": "boolean"},
    "maybe": {"type": ["string", "null"]}, "either": {"anyOf": [{"type": "string"}, {"type": "object"}]},
    "unit": {"enum": ["celsius", "kelvin"]}, "deep": {"$ref": "#/$defs/Deep"}, "list": {"type": "array"},
    "scale": {"type": "number"}}, "$defs": {"Deep": {"type": "string"}}}}},
  {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "b": {"type": "integer"}}}}}])";

std::string coder(const std::string& parameters) {
  return "<tool_call>\n<function=edit>\n" + parameters + "</function>\n</tool_call>";
}

TEST(AnswerParser, ParametersAreTypedByTheToolsSchema) {
  const AnswerForm form = with_tools("qwen3-coder", kTools);
  const auto one = [&](const std::string& key, const std::string& value, const std::string& json) {
    expect(coder("<parameter=" + key + ">\n" + value + "\n</parameter>\n"), form,
           "[0edit {\"" + key + "\":" + json + "}]");
  };
  one("text", "12345", "\"12345\"");
  one("text", "{\"a\": [1, 2]}", "\"{\\\"a\\\": [1, 2]}\"");
  one("text", "true", "\"true\"");
  one("text", "\n  two\n\tlines\n", "\"\\n  two\\n\\tlines\\n\"");
  one("text", "", "\"\"");
  one("line", "42", "42");
  one("line", "12345678901234567890123", "12345678901234567890123");
  one("scale", "2.50", "2.50");
  one("scale", "much", "\"much\"");
  one("all", "true", "true");
  one("all", "False", "false");
  one("maybe", "null", "null");
  one("maybe", "12", "\"12\"");
  one("either", "{\"a\": 1}", "{\"a\":1}");
  one("either", "{not json", "\"{not json\"");
  one("either", "7", "\"7\"");
  one("unit", "kelvin", "\"kelvin\"");
  one("deep", "3", "\"3\"");
  one("list", "[\"a\", {\"b\": 1}]", "[\"a\",{\"b\":1}]");
  one("unknown", "3", "3");
  one("unknown", "three", "\"three\"");
}

TEST(AnswerParser, TagsInsideOfAParameterArePartOfIt) {
  const AnswerForm form = with_tools("qwen3-coder", kTools);
  for (const std::string text : {"a </tool_call> b", "<tool_call>\\n<function=add>", "</parameter> and more",
                                 "</function></tool_call>", "</parameter", "<think></think>"}) {
    expect("ok\n" + coder("<parameter=text>\n" + text + "\n</parameter>\n<parameter=line>\n1\n</parameter>\n") + "\n" +
               coder(""),
           form, "ok[0edit {\"text\":\"" + json_escaped(text) + "\",\"line\":1}][1edit {}]");
  }
}

TEST(AnswerParser, AMissingOpeningTagIsNoHarm) {
  const AnswerForm form = with_tools("qwen3-coder", kTools);
  const std::string call = "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
  expect("Let me add.\n" + call, form, "Let me add.[0add {\"a\":1}]");
  expect(call + "\n<tool_call>\n" + call + "\nDone.", form, "[0add {\"a\":1}][1add {\"a\":1}]Done.");
  expect("Write <function=NAME> or <function=other>.", form, "Write <function=NAME> or <function=other>.");
}

TEST(AnswerParser, WhatCutsACallLeavesWhatCame) {
  const AnswerForm form = with_tools("qwen3-coder", kTools);
  expect("<tool_call>\n<function=edit>\n<parameter=text>\nline one\nline", form, "[0edit {\"text\":\"line one\\nline]");
  expect("<tool_call>\n<function=edit>\n<parameter=list>\n[1, 2", form, "[0edit {\"list\":[1,2]");
  expect("<tool_call>\n<function=edit>\n<para", form, "[0edit ]");
  expect("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x y", kTagged, "[0f {\"a\":\"x y]");
  expect("<tool_call>{\"name\": \"f\", \"argu", kTagged, "[0f ]");
  expect("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"na", kMistral, "[0f {}]");
}

TEST(AnswerParser, ArgumentsComeWhileTheyAreWritten) {
  AnswerParser parser(kTagged);
  EXPECT_EQ(told(parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"one")), "[0f {\"text\":\"one");
  EXPECT_EQ(told(parser.push(" two")), " two");
  EXPECT_EQ(told(parser.push("\", \"n\": [1,")), "\",\"n\":[1,");
  EXPECT_EQ(told(parser.push(" 2]}}")), "2]}]");
  AnswerParser tags(with_tools("qwen3-coder", kTools));
  EXPECT_EQ(told(tags.push("<tool_call>\n<function=edit>\n<parameter=text>\none\n")), "[0edit {\"text\":\"one");
  EXPECT_EQ(told(tags.push("two </par")), "\\ntwo ");
  EXPECT_EQ(told(tags.push("ties>")), "</parties>");
}

TEST(AnswerParser, JsonIsMendedWhereModelsGetItWrong) {
  expect("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\\d\\'\"}}</tool_call>", kTagged,
         "[0f {\"a\":\"x\\ny\\\\d'\"}]");
  expect("<tool_call>{\"arguments\": {\"a\": 1.50}, \"name\": \"f\"}</tool_call>", kTagged, "[0f {\"a\":1.50}]");
  expect("<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}</tool_call>",
         kTagged, "[0f {\"a\":1}]");
  std::string deep = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ";
  for (int i = 0; i < 500; ++i) deep += "[";
  for (const AnswerEvent& event : AnswerParser(kTagged).push(deep)) {
    if (event.kind != AnswerEvent::Kind::call_arguments) continue;
    EXPECT_FALSE(nests_too_deep(event.text + "]"));
  }
}

TEST(AnswerParser, MistralsNamesStandBeforeTheirArguments) {
  expect("[TOOL_CALLS]f[ARGS]{\"a\": 1}", kMistral, "[0f {\"a\":1}]");
  expect("Hello[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]000000002[ARGS]{}", kMistral,
         "Hello[0f {\"a\":1}][1g {}]");
  expect("[TOOL_CALLS]f[ARGS]{\"a\": \"b", kMistral, "[0f {\"a\":\"b]");
  expect("Say [TOOL_CALLS] or [ARGS]", kMistral, "Say [TOOL_CALLS] or [ARGS]");
}

TEST(AnswerParser, KimisCallsHaveSections) {
  const AnswerForm form = form_of("kimi");
  const std::string f = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>";
  const std::string g = "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>";
  const std::string begin = "<|tool_calls_section_begin|>", end = "<|tool_calls_section_end|>";
  expect("Hello,\nyou" + begin + f + end, form, "Hello,\nyou[0f {\"a\":1}]");
  expect("<think>hm</think>" + begin + f + g + end, form, "(hm)[0f {\"a\":1}][1g {}]");
  expect("<think>hm" + begin + f + g + end, form, "(hm)[0f {\"a\":1}][1g {}]");
  expect("<think>hm<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}" + g, form,
         "(hm)[0f {\"a\":1}][1g {}]");
  expect(begin + "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": ", form, "[0f {\"a\":]");
  expect(begin + " and no call", form, begin + " and no call");
}

TEST(AnswerParser, DeepseeksCallsHaveSectionsToo) {
  const AnswerForm form = form_of("deepseek");
  const std::string begin = "<｜tool▁calls▁begin｜>", end = "<｜tool▁calls▁end｜>";
  const auto call = [](const std::string& name) {
    return "<｜tool▁call▁begin｜>" + name + "<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜>";
  };
  expect("ok" + begin + call("f") + call("g") + end, form, "ok[0f {\"city\":\"Paris\"}][1g {\"city\":\"Paris\"}]");
  expect(begin + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n" +
             "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}```<｜tool▁call▁end｜>" + end,
         form, "[0f {\"a\":1}][1g {}]");
  const AnswerForm dsml = form_of("deepseek-v3.2");
  const std::string open = "<｜DSML｜function_calls>\n", close = "</｜DSML｜function_calls>";
  expect("Both.\n\n" + open +
             "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"false\">-14</｜DSML｜parameter>\n"
             "<｜DSML｜parameter name=\"b\" string=\"true\">42</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
             "<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n" +
             close,
         dsml, "Both.[0f {\"a\":-14,\"b\":\"42\"}][1g {}]");
  AnswerForm v4 = form_of("deepseek-v4", true);
  expect(
      "Let me\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
      "string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
      v4, "(Let me)[0f {\"a\":\"x\"}]");
}

TEST(AnswerParser, OthersTagsAreRead) {
  const AnswerForm glm = with_tools("glm", kTools);
  expect("<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", glm, "[0add {\"a\":1}]");
  expect(
      "Ok.<tool_call>edit<arg_key>text</arg_key><arg_value>has <tool_call> and\n12</arg_value><arg_key>line</arg_key>"
      "<arg_value>2</arg_value></tool_call><tool_call>add</tool_call>done",
      glm, "Ok.[0edit {\"text\":\"has <tool_call> and\\n12\",\"line\":2}][1add {}]done");
  expect("<tool_call>is a tag</tool_call>", glm, "<tool_call>is a tag</tool_call>");
  const AnswerForm minimax = with_tools("minimax-m2", kTools);
  expect(
      "So:\n\n<minimax:tool_call>\n<invoke name=\"add\">\n<parameter name=\"a\">1</parameter>\n</invoke>\n"
      "<invoke name=\"edit\">\n<parameter name=\"text\">5</parameter>\n</invoke>\n</minimax:tool_call>",
      minimax, "So:[0add {\"a\":1}][1edit {\"text\":\"5\"}]");
  AnswerForm seed = with_tools("seed", kTools);
  seed.thoughts = find_answer_format("<seed:think>").thoughts;
  expect(
      "<seed:think>hm</seed:think>\n<seed:tool_call>\n<function=edit>\n<parameter=text>def f():\n    "
      "pass\n</parameter>\n"
      "</function>\n</seed:tool_call>",
      seed, "(hm)[0edit {\"text\":\"def f():\\n    pass\\n\"}]");
}

/// MiniMax-M3's: parameters are tags of their own, and values may hold further ones.
TEST(AnswerParser, ElementsAreRead) {
  const char* const tools = R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
      "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"},
                     "l": {"type": "array", "items": {"$ref": "#/$defs/word"}},
                     "o": {"anyOf": [{"type": "object", "properties": {"t": {"type": "string"}, "e": {"type": "array"}},
                                      "additionalProperties": {"type": "number"}}, {"type": "null"}]}},
      "$defs": {"word": {"type": "string"}}}}}])";
  AnswerForm form = with_tools("minimax-m3", tools);
  form.thoughts = find_answer_format("<mm:think>").thoughts;
  const std::string ns = "]<]minimax[>[", open = ns + "<tool_call>\n", close = ns + "</tool_call>";
  const auto tag = [&](const std::string& name, const std::string& value) {
    return ns + "<" + name + ">" + value + ns + "</" + name + ">";
  };
  const auto call = [&](const std::string& name, const std::string& elements) {
    return ns + "<invoke name=\"" + name + "\">" + elements + ns + "</invoke>\n";
  };
  expect("<mm:think>A plan.</mm:think>Both:" + open + call("f", tag("s", "5") + tag("n", "5") + tag("b", "true")) +
             call("f", "") + close,
         form, "(A plan.)Both:[0f {\"s\":\"5\",\"n\":5,\"b\":true}][1f {}]");
  expect("</mm:think>" + open +
             call("f", tag("l", tag("item", "1") + tag("item", "a<b>")) + tag("o", tag("t", "2") + tag("x", "3"))) +
             close,
         form, "[0f {\"l\":[\"1\",\"a<b>\"],\"o\":{\"t\":\"2\",\"x\":3}}]");
  // White space between tags is none of the values'; what strings have of it is.
  expect(open +
             call("f", "\n " + tag("s", "\n a\n") + "\n" + tag("o", "\n" + tag("t", "") + "\n" + tag("e", "") + "\n") +
                           "\n") +
             close,
         form, "[0f {\"s\":\"\\n a\\n\",\"o\":{\"t\":\"\",\"e\":[]}}]");
  // Of other tools, texts are what they look like.
  expect(open + call("g", tag("a", tag("item", tag("x", "1.50") + tag("y", "z")) + tag("item", "")) + tag("c", "")) +
             close,
         form, "[0g {\"a\":[{\"x\":1.50,\"y\":\"z\"},\"\"],\"c\":\"\"}]");
  // What a call leaves open ends with it, and a call with the answer.
  expect(open + call("f", ns + "<o>" + ns + "<t>so") + close + "x", form, "[0f {\"o\":{\"t\":\"so\"}}]x");
  expect(open + ns + "<invoke name=\"f\">" + ns + "<l>" + ns + "<item>wo", form, "[0f {\"l\":[\"wo]");
  expect("the mark " + ns + "<tool_call> alone", form, "the mark " + ns + "<tool_call> alone");
}

TEST(AnswerParser, JsonStandsBetweenOtherMarks) {
  const auto around = [](const char* format, const std::string& begin, const std::string& end) {
    const AnswerForm form = form_of(format);
    expect(
        "Ok. " + begin + "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]" + end,
        form, "Ok.[0f {\"a\":1}][1g {}]");
    expect("the mark " + begin + " alone", form, "the mark " + begin + " alone");
  };
  around("nemotron", "<TOOLCALL>", "</TOOLCALL>\n");
  around("apriel", "<tool_calls>", "</tool_calls>");
  around("phi-4", "<|tool_call|>", "<|/tool_call|>");
  around("granite", "<|tool_call|>", "<|/tool_call|>");
  around("firefunction", "functools", "");
  expect(
      "<|START_RESPONSE|>Hello\n<|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": "
      "{\"a\": 1}}\n]<|END_ACTION|>",
      form_of("command-r7b"), "Hello[0f {\"a\":1}]");
  expect("<|tools_prefix|>[{\"f\": {\"a\": 1}}, {\"g\": {}}]<|tools_suffix|>", form_of("apertus"),
         "[0f {\"a\":1}][1g {}]");
}

TEST(AnswerParser, PythonsCallsBecomeJson) {
  const AnswerForm form = form_of("lfm2");
  const std::string begin = "<|tool_call_start|>", end = "<|tool_call_end|>";
  const auto one = [&](const std::string& call, const std::string& wanted) {
    expect(begin + call + end, form, wanted);
  };
  one("[f(a=1), g(b=-2.5, c=\"x, y)\")]", "[0f {\"a\":1}][1g {\"b\":-2.5,\"c\":\"x, y)\"}]");
  one("[f(on=True, off=False, none=None)]", "[0f {\"on\":true,\"off\":false,\"none\":null}]");
  one("[f(c={\"k\": True, 'l': [1, (2, 3)]})]", "[0f {\"c\":{\"k\":true,\"l\":[1,[2,3]]}}]");
  one("[A.b(t=\"d\", p=[\"A\", \"B\"])]", "[0A.b {\"t\":\"d\",\"p\":[\"A\",\"B\"]}]");
  one("[f(code=\"a\\n\\tb \\\"q\\\" \\x41\\d\")]", "[0f {\"code\":\"a\\n\\tb \\\"q\\\" \\u0041\\\\d\"}]");
  one("[f(code='it\\'s \"so\"')]", "[0f {\"code\":\"it's \\\"so\\\"\"}]");
  one("[f()]", "[0f {}]");
  one("[{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"x\"}]", "[0f {\"a\":1}]");
  expect(begin + "[f(a=\"cut of", form, "[0f {\"a\":\"cut of]");
  expect("See [text](url).", form, "See [text](url).");
  expect(begin + "nothing", form, begin + "nothing");
}

TEST(AnswerParser, GemmasCallsBecomeJson) {
  AnswerForm form = form_of("gemma4");
  form.thoughts = find_answer_format("<|channel>thought").thoughts;
  const std::string q = "<|\"|>";
  const auto one = [&](const std::string& body, const std::string& wanted) {
    expect("<|tool_call>call:f" + body + "<tool_call|>", form, "[0f " + wanted + "]");
  };
  one("{city:" + q + "San {Francisco}, \"CA\"" + q + "}", "{\"city\":\"San {Francisco}, \\\"CA\\\"\"}");
  one("{}", "{}");
  one("{a:-7,b:1.5e10,c:true,d:null}", "{\"a\":-7,\"b\":1.5e10,\"c\":true,\"d\":null}");
  one("{t:[" + q + "a" + q + "," + q + "b" + q + "],o:{k:" + q + "v" + q + ",n:3},e:[],x:{}}",
      "{\"t\":[\"a\",\"b\"],\"o\":{\"k\":\"v\",\"n\":3},\"e\":[],\"x\":{}}");
  expect("<|channel>thought\nhm\n<channel|>Ok.<|tool_call>call:f{}<tool_call|><|tool_call>call:g{a:1}<tool_call|>",
         form, "(hm)Ok.[0f {}][1g {\"a\":1}]");
  expect("<|channel>thought\n<channel|>Hello<channel|> you<|channel>thought\nhm<channel|>", form, "Hello you(hm)");
  expect("<start_function_call>call:f{k:<escape>v<escape>}<end_function_call>", form_of("functiongemma"),
         "[0f {\"k\":\"v\"}]");
}

TEST(AnswerParser, FunctionarysCallsAreRead) {
  const AnswerForm v2 = form_of("functionary-v3.2");
  expect("all\nHello,\nyou", v2, "Hello,\nyou");
  expect("f\n{\"a\": 1}", v2, "[0f {\"a\":1}]");
  expect("all\nLet me see.>>>f\n{\"a\": 1}>>>g\n{}", v2, "Let me see.[0f {\"a\":1}][1g {}]");
  expect("No such line", v2, "No such line");
  expect("Ok <function=f>{\"a\": [1", form_of("functionary-v3.1"), "Ok[0f {\"a\":[1]");
  expect("Ok <function=f>{\"a\": 1}</function><function=g>{}</function>", form_of("functionary-v3.1"),
         "Ok[0f {\"a\":1}][1g {}]");
}

TEST(AnswerParser, ThoughtsStandBetweenTheFamilysMarks) {
  for (const auto& marks : thought_marks()) {
    if (marks.anywhere) continue;
    AnswerForm form;
    form.thoughts = &marks;
    const std::string begin(marks.begin), end(marks.end);
    expect(begin + "I\nthink" + end + "Hello", form, "(I\nthink)Hello");
    expect(begin + end + "Hello", form, "Hello");
    expect(end + "Hello", form, "Hello");
    form.in_thought = true;
    expect("I think" + end + "\n\nHello", form, "(I think)Hello");
    EXPECT_EQ(find_answer_format("{{ '" + begin + "' }}").thoughts, &marks);
  }
}

TEST(AnswerParser, HarmonysMessagesHaveHeaders) {
  const AnswerForm form = form_of("harmony");
  const std::string thought = "<|channel|>analysis<|message|>I'm\nthinking<|end|>", next = "<|start|>assistant";
  expect("<|channel|>final<|message|>Hello,\nyou", form, "Hello,\nyou");
  expect("<|channel|>commentary<|message|>Hello", form, "Hello");
  expect(thought + next + "<|channel|>final<|message|>Hello", form, "(I'm\nthinking)Hello");
  expect("<|channel|>analysis<|message|>I'm\nthinking", form, "(I'm\nthinking)");
  for (const std::string header :
       {" to=functions.f<|channel|>analysis<|message|>", "<|channel|>analysis to=functions.f<|message|>",
        " to=functions.f<|channel|>analysis <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|channel|> commentary to=functions.f<|message|> "}) {
    expect(header + "{\"a\": 1}", form, "[0f {\"a\":1}]");
    expect(thought + next + header + "{\"a\": \"{<|\"}", form, "(I'm\nthinking)[0f {\"a\":\"{<|\"}]");
  }
  expect(thought + next + "<|channel|>commentary<|message|>First.<|end|>" + next +
             "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}<|end|>" + next +
             " to=functions.g<|channel|>commentary<|message|>{}",
         form, "(I'm\nthinking)First.[0f {\"a\":1}][1g {}]");
  expect("<|channel|>commentary to=assistant<|channel|>analysis<|message|>hm<|end|>" + next +
             "<|channel|>final<|message|>Hi",
         form, "(hm)Hi");
  expect("<|channel|>analysis<|message|>a<|end|>" + next + "<|channel|>analysis<|message|>b<|end|>", form, "(a\n\nb)");
  expect("<|channel|>commentary to=functions.f<|message|>{\"a\": \"cut", form, "[0f {\"a\":\"cut]");
  for (const char* const text : {"no JSON", "\ni", "\n\n```json b", " ``x"}) {
    expect(std::string("<|channel|>commentary to=functions.f<|message|>") + text, form, text);
  }
  const std::string endless = "<|channel|>" + std::string(5000, 'x') + "<|message|>Hi";
  for (const std::size_t cut : {1, 11, 4096, 4108, 5013}) EXPECT_EQ(parsed(endless, form, {cut}), endless) << cut;
  expect("{\"no\": \"header\"}", form, "{\"no\": \"header\"}");
  expect("<|channel|>commentary to=python<|message|>print(1)", form, "print(1)");
  AnswerForm toolless = form;
  toolless.may_call = false;
  expect("<|channel|>commentary to=functions.f<|message|>{\"a\": 1}", toolless, "{\"a\": 1}");
}

/// What tool_choice "required" asks for.
TEST(AnswerParser, ACallWithoutAnyMarkMayFollowAThought) {
  for (const ThoughtMarks& marks : thought_marks()) {
    AnswerForm form = with_tools("bare", kTools);
    form.thoughts = &marks;
    const std::string call = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    expect(call, form, "[0add {\"a\":1}]");
    expect(std::string(marks.begin) + "hm" + std::string(marks.end) + "\n" + call, form, "(hm)[0add {\"a\":1}]");
    form.in_thought = true;
    expect("hm" + std::string(marks.end) + call, form, "(hm)[0add {\"a\":1}]");
    expect("hm" + std::string(marks.end) + "{\"name\": \"Ann\"}", form, "(hm){\"name\": \"Ann\"}");
  }
}

TEST(AnswerParser, ACallEndsAThoughtThatNothingElseEnds) {
  const AnswerForm form = form_of("hermes", true);
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  expect("I will.\n" + call, form, "(I will.)[0f {\"a\":1}]");
  expect("I will.\n" + call + "\n" + call + "\n", form, "(I will.)[0f {\"a\":1}][1f {\"a\":1}]");
  expect("I might " + call + " hm\n</think>\n\n" + call, form, "(I might " + call + " hm)[0f {\"a\":1}]");
  expect("I might " + call + " hm", form, "(I might " + call + " hm)");
  expect("I might <tool_call> " + call, form, "(I might <tool_call>)[0f {\"a\":1}]");
}

TEST(AnswerParser, TheFormatIsToldByTheTemplate) {
  const auto name = [](const char* jinja) {
    const AnswerFormat format = find_answer_format(jinja);
    return std::string(format.calls == nullptr ? "" : format.calls->name);
  };
  EXPECT_EQ(name("... <tool_call>\\n{\\\"name\\\" ..."), "hermes");
  EXPECT_EQ(name("<tool_call>\\n<function=x>\\n<parameter=y>"), "qwen3-coder");
  EXPECT_EQ(name("{{ '<|python_tag|>' + x }}"), "llama");
  EXPECT_EQ(name("{{ '[TOOL_CALLS]' }}"), "mistral");
  EXPECT_EQ(name("{% for t in tools %}{\"name\": .. \"parameters\": ..}{% endfor %}"), "bare");
  EXPECT_EQ(name("List of tools: <|tool_list_start|>["), "lfm2-list");
  EXPECT_EQ(name("'<|channel|>analysis<|message|>' <tool_call>"), "harmony");
  EXPECT_EQ(name("'<tool_call>' + name + '<arg_key>'"), "glm");
  EXPECT_EQ(name("'<|tool_call>call:' '<|channel>thought'"), "gemma4");
  EXPECT_EQ(name("set dsml = '｜DSML｜' ... function_calls"), "deepseek-v3.2");
  EXPECT_EQ(name("{{ messages }}"), "");
}

}  // namespace
}  // namespace millrace::text
