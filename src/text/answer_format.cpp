#include "text/answer_format.h"

#include <algorithm>

namespace millrace::text {

namespace {

using Body = CallFormat::Body;

constexpr TagStyle kFunctionTags = {.name_begin = "<function=",
                                    .name_end = ">",
                                    .key_begin = "<parameter=",
                                    .key_end = ">",
                                    .value_begin = {},
                                    .value_end = "</parameter>",
                                    .end = "</function>"};

constexpr TagStyle kInvokeTags = {.name_begin = "<invoke name=\"",
                                  .name_end = ">",
                                  .key_begin = "<parameter name=\"",
                                  .key_end = ">",
                                  .value_begin = {},
                                  .value_end = "</parameter>",
                                  .end = "</invoke>"};
constexpr TagStyle kElementTags = {.name_begin = "]<]minimax[>[<invoke name=\"",
                                   .name_end = ">",
                                   .key_begin = "]<]minimax[>[<",
                                   .key_end = ">",
                                   .value_begin = {},
                                   .value_end = "]<]minimax[>[</",
                                   .end = "]<]minimax[>[</invoke>",
                                   .elements = true};
constexpr TagStyle kDsmlTags = {.name_begin = "<｜DSML｜invoke name=\"",
                                .name_end = ">",
                                .key_begin = "<｜DSML｜parameter name=\"",
                                .key_end = ">",
                                .value_begin = {},
                                .value_end = "</｜DSML｜parameter>",
                                .end = "</｜DSML｜invoke>"};
constexpr TagStyle kGlmTags = {.name_begin = {},
                               .name_end = "\n",
                               .key_begin = "<arg_key>",
                               .key_end = "</arg_key>",
                               .value_begin = "<arg_value>",
                               .value_end = "</arg_value>",
                               .end = "</tool_call>"};

// A template's format is the first row whose words the template contains.
constexpr auto kFormats = std::to_array<CallFormat>({
    {.name = "harmony", .told_by = {"<|channel|>", "<|message|>"}, .channels = true},
    {.name = "kimi",
     .told_by = {"<|tool_call_argument_begin|>"},
     .section = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .call = "<|tool_call_begin|>",
     .call_end = "<|tool_call_end|>",
     .name_before = "functions.",
     .name_end = "<|tool_call_argument_begin|>"},
    {.name = "deepseek",
     .told_by = {"<｜tool▁calls▁begin｜>"},
     .section = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .call = "<｜tool▁call▁begin｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .name_before = "function<｜tool▁sep｜>",
     .name_end = "<｜tool▁sep｜>",
     .name_end_then = "\n"},
    {.name = "deepseek-v3.2",
     .told_by = {"｜DSML｜", "function_calls"},
     .section = "<｜DSML｜function_calls>",
     .section_end = "</｜DSML｜function_calls>",
     .tags = &kDsmlTags},
    {.name = "deepseek-v4",
     .told_by = {"｜DSML｜"},
     .section = "<｜DSML｜tool_calls>",
     .section_end = "</｜DSML｜tool_calls>",
     .tags = &kDsmlTags},
    {.name = "minimax-m3",
     .told_by = {"]<]minimax[>[", "<invoke name="},
     .section = "]<]minimax[>[<tool_call>",
     .section_end = "]<]minimax[>[</tool_call>",
     .tags = &kElementTags},
    {.name = "minimax-m2",
     .told_by = {"<minimax:tool_call>"},
     .section = "<minimax:tool_call>",
     .section_end = "</minimax:tool_call>",
     .tags = &kInvokeTags},
    {.name = "seed",
     .told_by = {"<seed:tool_call>"},
     .call = "<seed:tool_call>",
     .call_end = "</seed:tool_call>",
     .tags = &kFunctionTags,
     .tags_alone = true},
    {.name = "command-r7b",
     .told_by = {"<|START_ACTION|>"},
     .call = "<|START_ACTION|>",
     .call_end = "<|END_ACTION|>",
     .dropped = {"<|START_RESPONSE|>", "<|END_RESPONSE|>"}},
    {.name = "gemma4",
     .told_by = {"<|tool_call>", "call:"},
     .call = "<|tool_call>",
     .call_end = "<tool_call|>",
     .name_before = "call:",
     .body = Body::loose,
     .quote = "<|\"|>"},
    {.name = "functiongemma",
     .told_by = {"<start_function_call>"},
     .call = "<start_function_call>",
     .call_end = "<end_function_call>",
     .name_before = "call:",
     .body = Body::loose,
     .quote = "<escape>"},
    {.name = "lfm2",
     .told_by = {"<|tool_call_start|>"},
     .call = "<|tool_call_start|>",
     .call_end = "<|tool_call_end|>",
     .body = Body::python},
    {.name = "lfm2-list",
     .told_by = {"<|tool_list_start|>"},
     .call = "<|tool_call_start|>",
     .call_end = "<|tool_call_end|>",
     .body = Body::python},
    {.name = "functionary-v3.2",
     .told_by = {">>>all"},
     .call = ">>>",
     .name_end = "\n",
     .opened = true,
     .spoken = "all"},
    {.name = "nemotron", .told_by = {"<TOOLCALL>"}, .call = "<TOOLCALL>", .call_end = "</TOOLCALL>"},
    {.name = "apriel", .told_by = {"<tool_calls>"}, .call = "<tool_calls>", .call_end = "</tool_calls>"},
    {.name = "apertus",
     .told_by = {"<|tools_prefix|>"},
     .call = "<|tools_prefix|>",
     .call_end = "<|tools_suffix|>",
     .name_is_key = true},
    {.name = "granite", .told_by = {"<|tool_call|>"}, .call = "<|tool_call|>", .call_end = "<|/tool_call|>"},
    {.name = "phi-4", .told_by = {"<|/tool|>"}, .call = "<|tool_call|>", .call_end = "<|/tool_call|>"},
    {.name = "mistral",
     .told_by = {"[TOOL_CALLS]"},
     .call = "[TOOL_CALLS]",
     .name_end = "[ARGS]",
     .id_begin = "[CALL_ID]",
     .bare = true},
    {.name = "glm",
     .told_by = {"<tool_call>", "<arg_key>"},
     .call = "<tool_call>",
     .call_end = "</tool_call>",
     .tags = &kGlmTags},
    {.name = "qwen3-coder",
     .told_by = {"<tool_call>", "<parameter="},
     .call = "<tool_call>",
     .call_end = "</tool_call>",
     .tags = &kFunctionTags,
     .tags_alone = true},
    {.name = "hermes",
     .told_by = {"<tool_call>"},
     .call = "<tool_call>",
     .call_end = "</tool_call>",
     .tags = &kFunctionTags},
    {.name = "functionary-v3.1", .told_by = {"<function="}, .tags = &kFunctionTags},
    {.name = "firefunction", .told_by = {"functools["}, .call = "functools"},
    {.name = "llama", .told_by = {"<|python_tag|>"}, .call = "<|python_tag|>", .bare = true},
    {.name = "bare", .told_by = {"\"name\"", "\"parameters\""}, .bare = true},
});

constexpr auto kThoughts = std::to_array<ThoughtMarks>({
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|channel>thought", "<channel|>", true},
    {"<mm:think>", "</mm:think>"},
    {"<think>", "</think>"},
});

}  // namespace

std::span<const CallFormat> call_formats() { return kFormats; }
std::span<const ThoughtMarks> thought_marks() { return kThoughts; }

const CallFormat& call_format(std::string_view name) {
  return *std::find_if(kFormats.begin(), kFormats.end(), [&](const CallFormat& row) { return row.name == name; });
}

const CallFormat& default_call_format() { return call_format("hermes"); }
const ThoughtMarks& default_thoughts() { return kThoughts.back(); }

AnswerFormat find_answer_format(std::string_view jinja) {
  const auto has = [&](std::string_view word) { return jinja.find(word) != std::string_view::npos; };
  AnswerFormat found;
  for (const CallFormat& row : kFormats) {
    // JSON appears in every template; only a template that mentions tools explains calls.
    if (!has(row.told_by[0]) || !has(row.told_by[1]) || (row.call.empty() && row.bare && !has("tools"))) continue;
    found.calls = &row;
    break;
  }
  const auto thoughts = std::find_if(kThoughts.begin(), kThoughts.end(),
                                     [&](const ThoughtMarks& row) { return has(row.begin) || has(row.end); });
  found.thoughts = thoughts == kThoughts.end() ? &default_thoughts() : &*thoughts;
  return found;
}

std::vector<TokenId> mark_tokens(const Tokenizer& tokenizer, const AnswerFormat& format) {
  std::vector<std::string_view> marks;
  if (format.thoughts != nullptr) marks = {format.thoughts->begin, format.thoughts->end};
  if (const CallFormat* const calls = format.calls; calls != nullptr) {
    for (const std::string_view mark :
         {calls->section, calls->section_end, calls->call, calls->call_end, calls->name_before, calls->name_end,
          calls->id_begin, calls->quote, calls->dropped[0], calls->dropped[1]}) {
      marks.push_back(mark);
    }
    if (calls->channels) {
      for (const char* mark : {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"}) {
        marks.emplace_back(mark);
      }
    }
    if (const TagStyle* const tags = calls->tags; tags != nullptr) {
      for (const std::string_view mark : {tags->name_begin, tags->name_end, tags->key_begin, tags->key_end,
                                          tags->value_begin, tags->value_end, tags->end}) {
        marks.push_back(mark);
      }
    }
  }
  std::vector<TokenId> ids;
  for (const std::string_view mark : marks) {
    if (mark.empty()) continue;
    for (const TokenId id : tokenizer.encode(mark, Specials::parse)) {
      if (tokenizer.token_bytes(id).empty() && !tokenizer.token_bytes(id, true).empty()) ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace millrace::text
