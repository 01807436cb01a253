// Reads a call whose parameters are tags of their own, which hold text or further tags: members of an object, or the
// <item>s of a list. Values are typed by the tool's schema; strings are passed on as they arrive, other values when
// they are complete. Thread-safety: one thread.
#pragma once

#include <string>
#include <vector>

#include "text/call_reader.h"

namespace millrace::text {

class ElementCall final : public CallReader {
 public:
  /// REQUIRES: format.tags is set, with `elements`, and the text begins with its name_begin. `tools` may be null.
  ElementCall(const CallFormat& format, const ToolTypes* tools)
      : tags_(*format.tags), section_end_(format.section_end), tools_(tools) {}
  State read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) override;

 private:
  enum class Kind { unknown, text, object, list };
  struct Element {
    std::string tag;
    ToolTypes::Place place;
    JsonTypes types;
    Kind kind = Kind::unknown;
    int count = 0;  // members or items
  };

  // Each consumes the beginning of `text`; 0: more text is needed.
  std::size_t in_name(std::string_view text, bool last, State& state, CallSink& sink);
  std::size_t between(std::string_view text, bool last, State& state, CallSink& sink);
  std::size_t in_text(std::string_view text, bool last, CallSink& sink);
  void begin_element(std::string_view tag, CallSink& sink);
  void end_element(CallSink& sink);
  void end_text(CallSink& sink);
  void cut(CallSink& sink);

  const TagStyle& tags_;
  const std::string_view section_end_;
  const ToolTypes* const tools_;
  std::string name_;
  std::vector<Element> open_;  // the arguments first
  std::string value_;          // of the innermost, which is text, if it is not passed on as it arrives
};

}  // namespace millrace::text
