// Reads the calls that stand behind a mark of a CallFormat, while they come.
// Thread-safety: one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "text/answer_format.h"
#include "text/tool_types.h"

namespace millrace::text {

/// Where calls go.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void begin_call(std::string_view name) = 0;
  virtual void arguments(std::string_view json) = 0;  // more of an object
  virtual void end_call() = 0;                        // whole, or as far as it came
};

class CallReader {
 public:
  enum class State {
    more,
    done,  // what follows is none of its own
    none,  // this is no call; nothing was reported
  };
  virtual ~CallReader() = default;
  /// Takes from the front of `text` what it can tell, and adds to `taken` how much. `last`: nothing follows; a call
  /// that has begun is ended as far as it came.
  virtual State read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) = 0;
};

/// What reads the text that follows the mark of a call, or that begins with one that opens a call by itself. Null
/// where there is not enough of it to tell; `none` is set where it can be no call.
/// `bare`: JSON that no mark came before. `known`: it is a call of one of the tools, or none. `tools` may be null.
std::unique_ptr<CallReader> make_call_reader(const CallFormat& format, const ToolTypes* tools, std::string_view text,
                                             bool bare, bool known, bool last, bool& none);

/// JSON arguments of a function whose name is known, up to the bracket that closes them.
std::unique_ptr<CallReader> make_argument_reader(std::string name);

/// Whether `text` can still become `mark`.
inline bool may_become(std::string_view text, std::string_view mark) { return mark.starts_with(text); }

}  // namespace millrace::text
