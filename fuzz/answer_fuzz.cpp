// Any text as a model's answer: however it is cut, it must come out the same. First byte: the style of calls.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_parser.h"

namespace {

using namespace millrace::text;

/// Events, neighbours of one kind joined.
std::vector<AnswerEvent> parsed(std::string_view text, AnswerForm form, std::size_t piece) {
  AnswerParser parser(form);
  std::vector<AnswerEvent> all;
  const auto add = [&](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      const bool text_of = event.kind == AnswerEvent::Kind::content || event.kind == AnswerEvent::Kind::reasoning;
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
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const AnswerForm form{static_cast<CallStyle>(data[0] % 3), (data[0] & 4) != 0, (data[0] & 8) == 0};
  const auto whole = parsed(text, form, text.size() + 1);
  for (const std::size_t piece : {1, 3, 7}) {
    if (parsed(text, form, piece) != whole) std::abort();
  }
  return 0;
}
