// Reads calls as JSON: {"name": ..., "arguments": {...}}, or a list of them. Arguments after the name are passed on as
// they arrive. Thread-safety: one thread.
#pragma once

#include <string>

#include "text/call_reader.h"
#include "text/json_copy.h"

namespace millrace::text {

class JsonCalls final : public CallReader {
 public:
  enum class Keys {
    any,    // other keys are ignored
    known,  // a first key that calls do not have means that it is not a call
    names,  // {NAME: arguments}
  };
  /// `tools` may be null; with Keys::known a call must be of one of them.
  JsonCalls(Keys keys, const ToolTypes* tools) : keys_(keys), tools_(tools) {}
  State read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) override;

 private:
  enum class At { begin, element, key_or_end, key, colon, value };
  enum class Role { none, name, arguments, wrapper };

  State step(char c, CallSink& sink);
  State bad() const { return calls_ > 0 || streaming_ ? State::done : State::none; }
  State in_key(char c);
  State in_value(char c, CallSink& sink);
  State value_ends(CallSink& sink);
  State object_ends(CallSink& sink);
  State cut(CallSink& sink);
  bool may_name(std::string_view name) const;
  void flush(CallSink& sink);

  const Keys keys_;
  const ToolTypes* const tools_;
  At at_ = At::begin;
  Role role_ = Role::none;
  bool list_ = false, escaped_ = false;
  bool again_ = false;      // the byte is processed again
  bool streaming_ = false;  // the call is open, and its arguments are arriving
  bool reported_ = false;   // this object's call was reported
  int wrapped_ = 0;         // depth within "function": {...}
  int calls_ = 0;
  JsonCopy copy_;
  std::string key_, value_, name_, arguments_, ready_;
};

}  // namespace millrace::text
