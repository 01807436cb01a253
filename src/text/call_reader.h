// Reads the calls after a mark of a CallFormat, while they arrive.
// Thread-safety: one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "text/answer_format.h"
#include "text/tool_types.h"

namespace millrace::text {

/// Receives calls.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void begin_call(std::string_view name) = 0;
  virtual void arguments(std::string_view json) = 0;  // a further part of an object
  virtual void end_call() = 0;                        // complete, or cut by the end of the answer
};

class CallReader {
 public:
  enum class State {
    more,
    done,  // the call has ended; the rest is not part of it
    none,  // not a call; nothing was reported
  };
  virtual ~CallReader() = default;
  /// Consumes the beginning of `text` as far as it can be decided, and adds the number of bytes to `taken`. `last`: no
  /// text follows; an open call is ended where it is.
  virtual State read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) = 0;
};

/// The reader for text after the mark of a call, or text that opens a call by itself. Null if more text is needed to
/// decide; `none` is set if it cannot be a call. `bare`: JSON without a mark before it. `known`: only calls of the
/// given tools count. `tools` may be null.
std::unique_ptr<CallReader> make_call_reader(const CallFormat& format, const ToolTypes* tools, std::string_view text,
                                             bool bare, bool known, bool last, bool& none);

/// Reads the JSON arguments of a function with a known name, up to the closing bracket.
std::unique_ptr<CallReader> make_argument_reader(std::string name);

/// True if `text` is a prefix of `mark`.
inline bool may_become(std::string_view text, std::string_view mark) { return mark.starts_with(text); }

}  // namespace millrace::text
