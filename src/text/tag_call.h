// Reads a call in tags, with values typed by the tool's schema: strings are passed on as they arrive, other values when
// they are complete. Thread-safety: one thread.
#pragma once

#include <string>

#include "text/call_reader.h"

namespace millrace::text {

class TagCall final : public CallReader {
 public:
  /// REQUIRES: format.tags is set and the text begins with its name_begin. `tools` may be null. `known`: if there are
  /// tools, only calls of these count.
  TagCall(const CallFormat& format, const ToolTypes* tools, bool known)
      : format_(format), tags_(*format.tags), tools_(tools), known_(known) {}
  State read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) override;

 private:
  enum class At { name, between, key, value_begin, value };

  // Each consumes the beginning of `text`; 0: more text is needed.
  std::size_t in_name(std::string_view text, bool last, State& state, CallSink& sink);
  std::size_t between(std::string_view text, bool last, State& state, CallSink& sink);
  std::size_t in_key(std::string_view text, CallSink& sink);
  std::size_t before_value(std::string_view text, bool last, CallSink& sink);
  std::size_t in_value(std::string_view text, bool last, CallSink& sink);
  enum class Follows { yes, no, unknown };
  Follows value_may_end_before(std::string_view rest, bool last) const;
  void value_text(std::string_view text, CallSink& sink);
  void end_value(CallSink& sink);
  void cut(CallSink& sink);

  const CallFormat& format_;
  const TagStyle& tags_;
  const ToolTypes* const tools_;
  const bool known_;
  At at_ = At::name;
  std::string name_, key_, value_;
  JsonTypes types_;
  bool begun_ = false;
  bool line_ = false;     // the value began with a line break
  bool fresh_ = false;    // no byte of the value was seen yet
  bool newline_ = false;  // a line break is held back: it may end the value
  int arguments_ = 0;
  std::unique_ptr<CallReader> json_;  // set if the arguments turn out to be JSON
};

}  // namespace millrace::text
