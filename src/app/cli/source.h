// Where a chat's answers come from: an engine in this process, or a server that has the model already.
// Thread-safety: one thread calls; its listener is called on that thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/cli/address.h"
#include "app/cli/command.h"
#include "app/generate/job.h"
#include "text/answer_parser.h"
#include "text/chat_template.h"

namespace millrace::cli {

/// One answer wanted.
struct Ask {
  std::string system;                   // empty: none
  std::vector<text::Message> messages;  // the conversation, the user's new turn last
  std::string raw;                      // instead: the text that the model goes on with as it is
  bool is_raw = false;
  generate::Pictures pictures;  // whose markers stand in the messages
  text::Thinking thinking{};    // empty: as the template has it
  SamplingFlags sampling;
};

/// More of an answer. `text`: as the model wrote it; `events`: what of it are thoughts and what the answer.
struct Piece {
  std::string_view text;
  std::vector<text::AnswerEvent> events;
};

struct Listener {
  std::function<void(std::int64_t done, std::int64_t total)> on_prompt;  // tokens of the prompt
  std::function<bool(const Piece& piece)> on_piece;                      // false: nobody reads on
};

struct Said {
  text::Message message{"assistant"};
  std::string text;  // as the model wrote it
  engine::Finish finish = engine::Finish::error;
  std::int64_t prompt_tokens = 0, answer_tokens = 0;
  double prompt_seconds = 0, decode_seconds = 0;

  /// Adds what came to the message, thoughts and words apart.
  void keep(const std::vector<text::AnswerEvent>& events) {
    for (const text::AnswerEvent& event : events)
      (event.kind == text::AnswerEvent::Kind::reasoning ? message.reasoning : message.content) += event.text;
  }
};

class Source {
 public:
  virtual ~Source() = default;
  /// Until the answer's end, or until interrupted() is set (finish is cancelled then). Errors: what failed.
  virtual Expected<Said> answer(const Ask& ask, const Listener& listener) = 0;
  /// The conversation begins anew: what was kept of it may go.
  virtual void forget() = 0;
  /// The model's name, for people.
  virtual std::string name() const = 0;
  virtual std::int64_t context_tokens() const = 0;  // 0: not known
  /// Whether the model sees pictures. Errors: invalid_argument (it does not; the message has what to do).
  virtual Status sees() const = 0;
  /// Text for /show: "model", "plan" or "budget".
  virtual std::string describe(std::string_view what) const = 0;
};

/// What a Modelfile gives every conversation.
struct ChatDefaults {
  std::string chat_template;            // Jinja; empty: the model file's own
  std::vector<text::Message> messages;  // before the first turn
};
/// Errors: corrupt (messages of the manifest without role or content).
Expected<ChatDefaults> chat_defaults(const store::Manifest& manifest);

/// `engine` outlives the source. `raw`: no template is needed. `form` says by its format what each answer has to be.
/// Errors: those of the template.
Expected<std::unique_ptr<Source>> local_source(engine::Engine& engine, const ChatDefaults& defaults, bool raw,
                                               generate::Job form = {});

/// A server of ours at `address` that has this very model; null where none answers or it does not know the model. It
/// lays a Modelfile's messages and template under the chat by itself.
std::unique_ptr<Source> find_server(const store::Resolved& model, const Address& address);
/// The same for a model that is not on this machine: the server knows it by this name.
std::unique_ptr<Source> find_server(const std::string& name, const Address& address);

/// Says on stderr that the model continues texts.
void note_without_template();

}  // namespace millrace::cli
