// Any text as a model's answer: however it is cut, it must come out the same. First byte: the format of calls; the
// second: what of it there is.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/answer_parser.h"

namespace {

using namespace millrace::text;

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
          "a": {"type": "string"}, "b": {"type": "integer"}}}}}])"));
  AnswerForm form;
  if ((data[1] & 1) == 0) form.calls = &call_formats()[data[0] % call_formats().size()];
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
