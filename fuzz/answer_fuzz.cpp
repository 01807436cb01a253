// Any text as a model's answer: however it is cut, it must come out the same. First byte: the format of calls; the
// second: what of it there is.
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/answer_parser.h"

namespace {

using namespace millrace::text;

/// Seeds name formats by their number here, so that new ones are appended.
constexpr std::string_view kFormats[] = {"harmony",
                                         "kimi",
                                         "deepseek",
                                         "deepseek-v3.2",
                                         "deepseek-v4",
                                         "minimax-m2",
                                         "seed",
                                         "command-r7b",
                                         "gemma4",
                                         "functiongemma",
                                         "lfm2",
                                         "lfm2-list",
                                         "functionary-v3.2",
                                         "nemotron",
                                         "apriel",
                                         "apertus",
                                         "granite",
                                         "phi-4",
                                         "mistral",
                                         "glm",
                                         "qwen3-coder",
                                         "hermes",
                                         "functionary-v3.1",
                                         "firefunction",
                                         "llama",
                                         "bare",
                                         "minimax-m3"};

/// Events, neighbours of one kind joined.
std::vector<AnswerEvent> parsed(std::string_view text, AnswerForm form, std::size_t piece) {
  AnswerParser parser(form);
  std::vector<AnswerEvent> all;
  const auto add = [&](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      const bool text_of = event.kind != AnswerEvent::Kind::call_begin && event.kind != AnswerEvent::Kind::call_end;
      if (text_of && !all.empty() && all.back().kind == event.kind) {
        all.back().text += event.text;
      } else {
        all.push_back(event);
      }
    }
  };
  for (std::size_t at = 0; at < text.size(); at += piece) add(parser.push(text.substr(at, piece)));
  add(parser.finish());
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  static const auto tools = std::make_shared<const ToolTypes>(nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
          "a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "object", "properties": {
          "d": {"type": "array", "items": {"type": "string"}}}}}}}}])"));
  if (std::size(kFormats) != call_formats().size()) std::abort();  // one is missing above
  AnswerForm form;
  if ((data[1] & 1) == 0) form.calls = &call_format(kFormats[data[0] % std::size(kFormats)]);
  if ((data[1] & 2) == 0) form.thoughts = thought_marks().data() + (data[1] >> 4) % thought_marks().size();
  form.in_thought = (data[1] & 4) != 0;
  if ((data[1] & 8) == 0) form.tools = tools;
  form.may_call = (data[1] & 128) == 0;
  const auto whole = parsed(text, form, text.size() + 1);
  for (const std::size_t piece : {1, 3, 7}) {
    if (parsed(text, form, piece) != whole) std::abort();
  }
  return 0;
}
