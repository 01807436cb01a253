#include "app/openai/responses.h"

#include <gtest/gtest.h>

#include <variant>

namespace millrace::openai {
namespace {

using generate::Delta;

/// The data of a stream's events.
std::vector<Json> events_of(const std::string& stream) {
  std::vector<Json> events;
  for (std::size_t at = stream.find("data: "); at != std::string::npos; at = stream.find("data: ", at)) {
    at += 6;
    events.push_back(Json::parse(stream.substr(at, stream.find('\n', at) - at)));
  }
  return events;
}

Delta delta(std::string reasoning, std::string content) {
  Delta made;
  made.reasoning = std::move(reasoning);
  made.content = std::move(content);
  return made;
}

Delta call(std::string name, std::string arguments) {
  Delta made;
  made.tool_calls.push_back({0, std::move(name), std::move(arguments), true, true});
  return made;
}

Job job_of(const Json& tools) {
  Expected<Job> job = parse_response({{"model", "m"}, {"input", "Hi"}, {"tools", tools}});
  EXPECT_TRUE(job.ok()) << job.status().message();
  return *job;
}

std::vector<Json> stream_of(const Job& job, const std::vector<Delta>& deltas) {
  ResponseStream stream(job, {});
  std::string all = stream.begin();
  for (const Delta& one : deltas) all += stream.event(one);
  all += stream.event(generate::Finished{0, "stop", {}});
  generate::Totals totals;
  totals.reasoning_tokens = 7;
  return events_of(all + stream.end(totals));
}

TEST(ResponseStream, NumbersItsEventsInTheirOrder) {
  const auto events =
      stream_of(job_of(Json::array()), {delta("a", ""), delta("b", "c"), delta("", "d"), call("f", "{}")});
  for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i) << events[i];
  EXPECT_GT(events.size(), 15u);
}

TEST(ResponseStream, TellsOfThoughtsInAnItemOfTheirOwn) {
  const auto events = stream_of(job_of(Json::array()), {delta("I ", ""), delta("think", ""), delta("", "So.")});
  std::vector<std::string> types;
  std::string thought;
  for (const Json& event : events) {
    types.push_back(event["type"]);
    if (types.back() == "response.reasoning_text.delta") thought += event["delta"].get<std::string>();
    if (types.back() == "response.reasoning_text.done") {
      EXPECT_EQ(event["text"], "I think");
    }
  }
  EXPECT_EQ(thought, "I think");
  const std::vector<std::string> expected = {"response.created",
                                             "response.in_progress",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.reasoning_text.delta",
                                             "response.reasoning_text.delta",
                                             "response.reasoning_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.output_text.delta",
                                             "response.output_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.completed"};
  EXPECT_EQ(types, expected);
  const Json& whole = events.back()["response"];
  ASSERT_EQ(whole["output"].size(), 2u);
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "I think");
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 7);
  EXPECT_EQ(whole["usage"]["input_tokens_details"]["cache_write_tokens"], 0);
}

TEST(ResponseStream, AnEmptyAnswerIsAnEmptyMessageStreamedOrNot) {
  const Job job = job_of(Json::array());
  const Json streamed = stream_of(job, {}).back()["response"]["output"];
  const Json whole = response_body(make_envelope("resp_", "m"), job, {}, {}, {})["output"];
  ASSERT_EQ(streamed.size(), 1u);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(streamed[0]["content"], whole[0]["content"]);
}

TEST(ResponseStream, IsReplayedWithTheSameItems) {
  const auto events = stream_of(job_of(Json::array()), {delta("a", ""), delta("", "b"), call("f", R"({"x":1})")});
  const Json whole = events.back()["response"];
  const auto again = events_of(replay(whole, -1));
  EXPECT_EQ(again.back()["response"], whole);
  for (std::size_t i = 0; i < again.size(); ++i) EXPECT_EQ(again[i]["sequence_number"], i);
  const auto late = events_of(replay(whole, 3));
  ASSERT_EQ(late.size(), again.size() - 4);
  EXPECT_EQ(late.front(), again[4]);
}

TEST(ResponseTools, OfTheClientsOwnAreCalledAsOpenAiCallsThem) {
  const Job job = job_of({{{"type", "shell"}}, {{"type", "local_shell"}}, {{"type", "apply_patch"}}});
  ASSERT_EQ(job.tools.size(), 3u);
  const auto item = [&](const char* name, const char* arguments) {
    const Json output = stream_of(job, {call(name, arguments)}).back()["response"]["output"];
    EXPECT_EQ(output.size(), 1u) << name;
    return output[0];
  };
  Json made = item("shell", R"({"commands":["ls"]})");
  EXPECT_EQ(made["type"], "shell_call");
  EXPECT_EQ(made["action"]["commands"], Json::array({"ls"}));
  made = item("local_shell", R"({"command":["ls","-l"]})");
  EXPECT_EQ(made["type"], "local_shell_call");
  EXPECT_EQ(made["action"]["type"], "exec");
  EXPECT_EQ(made["action"]["env"], Json::object());
  made = item("apply_patch", R"({"type":"delete_file","path":"a"})");
  EXPECT_EQ(made["type"], "apply_patch_call");
  EXPECT_EQ(made["operation"], (Json{{"type", "delete_file"}, {"path", "a"}}));
}

Status asked(const Json& tools, const Json& choice) {
  return parse_response({{"model", "m"}, {"input", "Hi"}, {"tools", tools}, {"tool_choice", choice}}).status();
}

TEST(ResponseTools, WhatNobodyRunsIsNoToolToDemand) {
  const Json search = Json::array({{{"type", "web_search"}}});
  EXPECT_TRUE(asked(search, "auto").ok());
  for (const Json& choice :
       {Json("required"), Json{{"type", "web_search"}}, Json{{"type", "mcp"}, {"server_label", "a"}}}) {
    EXPECT_EQ(asked(search, choice).code(), Code::unsupported) << choice;
    EXPECT_NE(asked(search, choice).message().find("tool_choice: "), std::string::npos) << choice;
  }
  Json container = Json::object();
  container["type"] = "shell";
  container["environment"] = {{"type", "container_auto"}};
  EXPECT_EQ(asked(Json::array({container}), "required").code(), Code::unsupported);
  EXPECT_TRUE(asked(Json::array({{{"type", "shell"}}}), "required").ok());
  EXPECT_TRUE(asked(Json::array({{{"type", "shell"}}}), {{"type", "shell"}}).ok());
}

Json messages_of(const Json& items) {
  const Expected<Job> job = parse_response({{"model", "m"}, {"input", items}});
  EXPECT_TRUE(job.ok()) << job.status().message();
  return job.ok() ? job->messages : Json();
}

TEST(ResponseItems, ThoughtsGoOnWithWhatCameOfThem) {
  const Json thought = {{"type", "reasoning"},
                        {"id", "rs_1"},
                        {"summary", Json::array()},
                        {"content", Json::array({{{"type", "reasoning_text"}, {"text", "hm"}}})}};
  const Json called = {{"type", "function_call"}, {"call_id", "1"}, {"name", "f"}, {"arguments", "{}"}};
  const Json messages = messages_of({{{"role", "user"}, {"content", "Hi"}}, thought, called});
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[1]["reasoning_content"], "hm");
  EXPECT_EQ(messages[1]["tool_calls"].size(), 1u);
  Json sealed = thought;
  sealed.erase("content");
  sealed["encrypted_content"] = "gAAAA";
  const Status status = parse_response({{"model", "m"}, {"input", Json::array({sealed})}}).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("encrypted_content"), std::string::npos);
  sealed["summary"] = Json::array({{{"type", "summary_text"}, {"text", "short"}}});
  EXPECT_EQ(messages_of(Json::array({sealed}))[0]["reasoning_content"], "short");
}

TEST(ResponseItems, WhatToolsAnsweredStaysReadable) {
  const Json picture = Json::array({{{"type", "input_image"}, {"image_url", "data:image/png;base64,AA=="}}});
  const Json messages = messages_of(
      {{{"type", "function_call_output"}, {"call_id", "1"}, {"output", picture}},
       {{"type", "shell_call_output"},
        {"call_id", "2"},
        {"output",
         Json::array({{{"stdout", "out"}, {"stderr", "err"}, {"outcome", {{"type", "exit"}, {"exit_code", 3}}}}})}},
       {{"type", "apply_patch_call_output"}, {"call_id", "3"}, {"status", "failed"}, {"output", "no such file"}},
       {{"type", "mcp_call"},
        {"id", "4"},
        {"name", "f"},
        {"arguments", "{}"},
        {"output", "found"},
        {"server_label", "s"}},
       {{"type", "compaction"}, {"encrypted_content", seal_summary("We met.")}}});
  ASSERT_EQ(messages.size(), 6u);
  EXPECT_TRUE(messages[0]["content"].get_ref<const std::string&>().starts_with("[inserted "));
  EXPECT_EQ(messages[1]["content"], "outerr\n(exit code 3)\n");
  EXPECT_EQ(messages[2]["content"], "failed\nno such file");
  EXPECT_EQ(messages[3]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(messages[4]["content"], "found");
  EXPECT_NE(messages[5]["content"].get<std::string>().find("We met."), std::string::npos);
  EXPECT_EQ(parse_response(
                {{"model", "m"}, {"input", Json::array({{{"type", "compaction"}, {"encrypted_content", "gAAAA"}}})}})
                .status()
                .code(),
            Code::unsupported);
}

}  // namespace
}  // namespace millrace::openai
