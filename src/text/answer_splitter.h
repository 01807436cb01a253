// The two ways of splitting an answer: by marks within a text, and by headers of messages. Used by AnswerParser only.
// Thread-safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_parser.h"
#include "text/call_reader.h"

namespace millrace::text {

class AnswerParser::Splitter : public CallSink {
 public:
  ~Splitter() override = default;
  std::vector<AnswerEvent> push(std::string_view text);
  std::vector<AnswerEvent> finish();
  int calls() const { return calls_; }

 protected:
  explicit Splitter(AnswerForm form) : form_(std::move(form)) {}
  /// Parses one step; false: it needs more text.
  virtual bool advance(bool last) = 0;

  void emit(AnswerEvent::Kind kind, std::string_view text);
  void splice(std::vector<AnswerEvent> events);
  void begin_call(std::string_view name) override;
  void arguments(std::string_view json) override;
  void end_call() override;

  AnswerForm form_;
  std::string held_;  // not yet reported

 private:
  int calls_ = 0;
  std::vector<AnswerEvent> events_;
};

std::unique_ptr<AnswerParser::Splitter> make_mark_splitter(AnswerForm form);
/// REQUIRES: form.calls->channels.
std::unique_ptr<AnswerParser::Splitter> make_channel_splitter(AnswerForm form);

/// The length of the longest proper prefix of `mark` that `text` ends with.
std::size_t begun_mark(std::string_view text, std::string_view mark);

}  // namespace millrace::text
