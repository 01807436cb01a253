#include "app/cli/chat.h"

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "app/cli/terminal.h"
#include "base/os/terminal.h"
#include "base/say.h"
#include "modelfile/escape.h"

namespace millrace::cli {
namespace {

constexpr std::size_t kMostNameShown = 80;

/// Shows an answer while it comes, thoughts dim where there is a terminal.
class Screen {
 public:
  explicit Screen(bool splits) : dims_(splits && os::is_terminal(os::Stream::output)) {
    if (os::is_terminal(os::Stream::output)) wrapper_.emplace(os::terminal_columns(os::Stream::output));
  }

  /// False when nobody reads on.
  bool add(const Piece& piece) {
    if (!dims_) show(piece.text);
    for (const text::AnswerEvent& event : piece.events) {
      if (!dims_) break;
      const bool thought = event.kind == text::AnswerEvent::Kind::reasoning;
      if (thought != dim_) {
        if (wrapper_) write(wrapper_->finish());
        write(thought ? "\x1b[2m" : "\x1b[0m");  // takes no column
        if (!thought) show("\n\n");
      }
      dim_ = thought;
      show(event.text);
    }
    return std::fflush(stdout) == 0 && alive_;
  }
  void finish() {
    if (wrapper_) write(wrapper_->finish());
    write(dim_ ? "\x1b[0m\n" : "\n");
    std::fflush(stdout);
  }

 private:
  void show(std::string_view text) {
    if (wrapper_)
      write(wrapper_->add(text));
    else
      write(text);
  }
  void write(std::string_view text) {
    alive_ = alive_ && std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  }

  bool dims_, dim_ = false, alive_ = true;
  std::optional<Wrapper> wrapper_;  // on a terminal
};

}  // namespace

Status Chat::show(const std::string& path) {
  if (options_.raw) return error(Code::invalid_argument, "pictures go with a chat template; leave --raw out");
  if (shown_.size() >= generate::kMostPictures)
    return error(Code::invalid_argument, "a conversation has {} pictures at most; /clear begins another one",
                 generate::kMostPictures);
  MR_RETURN_IF_ERROR(source_.sees());
  MR_ASSIGN_OR_RETURN(PictureFile file, read_picture(path));
  (void)pictures_.add({"image", path, std::move(file.bytes), {}});
  shown_.push_back(std::move(file.picture));
  return {};
}

void Chat::clear() {
  source_.forget();
  messages_.clear();
  raw_history_.clear();
  pictures_ = {};
  shown_.clear();
  first_waiting_ = 0;
}

namespace {

constexpr std::string_view kSavedMark = "[image]";

/// The text with what `name` gives for the picture of this index in each marker's place.
template <typename Name>
std::string without_markers(const generate::Pictures& pictures, std::string text, const Name& name) {
  while (const auto found = pictures.markers().find(text))
    text.replace(found->begin, found->end - found->begin,
                 found->index < pictures.size() ? name(found->index) : std::string(kSavedMark));
  return text;
}

}  // namespace

std::string Chat::text_of(const text::Message& message) const {
  return without_markers(pictures_, message.content, [&](std::size_t index) {
    return fmt::format("[image {}] ", modelfile::escape(shown_[index].name(), kMostNameShown));
  });
}

SavedChat Chat::saved() const {
  SavedChat chat{source_.name(), options_.system, messages_, raw_history_};
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    std::string& content = chat.messages[i].content;
    content = without_markers(pictures_, std::move(content), [&](std::size_t index) {
      chat.pictures.push_back({i, shown_[index].path, shown_[index].sha256});
      return std::string(kSavedMark);
    });
  }
  return chat;
}

/// The marker of a saved picture. Errors: why it is not shown again.
Expected<std::string> Chat::show_again(const SavedPicture& saved) {
  MR_RETURN_IF_ERROR(source_.sees());
  std::error_code gone;
  if (!std::filesystem::is_regular_file(saved.path, gone)) return error(Code::not_found, "its file is gone");
  MR_ASSIGN_OR_RETURN(PictureFile file, read_picture(saved.path));
  if (file.picture.sha256 != saved.sha256) return error(Code::corrupt, "its file has changed since");
  shown_.push_back(std::move(file.picture));
  return pictures_.add({"image", saved.path, std::move(file.bytes), {}});
}

std::vector<std::string> Chat::resume(SavedChat saved) {
  clear();
  options_.system = std::move(saved.system);
  messages_ = std::move(saved.messages);
  raw_history_ = std::move(saved.raw);
  std::vector<std::string> notes;
  for (const SavedPicture& picture : saved.pictures) {
    std::string& content = messages_[picture.message].content;
    const std::size_t place = content.find(kSavedMark);
    if (place == std::string::npos) continue;
    const std::string name = modelfile::escape(ShownPicture{picture.path, "", ""}.name(), kMostNameShown);
    const auto marker = show_again(picture);
    if (!marker.ok()) notes.push_back(fmt::format("{} is not shown again: {}", name, marker.status().message()));
    content.replace(place, kSavedMark.size(), marker.ok() ? *marker : fmt::format("[image {}: not shown]", name));
  }
  first_waiting_ = shown_.size();
  return notes;
}

Status Chat::say(const std::string& text) {
  Ask ask;
  ask.system = options_.system;
  ask.messages = messages_;
  std::string said_now;
  for (std::size_t i = first_waiting_; i < shown_.size(); ++i) said_now += pictures_.marker(i);
  said_now += text;
  ask.messages.push_back({"user", said_now});
  ask.pictures = pictures_;
  ask.is_raw = options_.raw;
  ask.raw = raw_history_ + text;
  ask.thinking = options_.thinking;
  ask.sampling = options_.sampling;
  Progress progress("Reading the prompt", Unit::tokens, options_.quiet);
  Screen screen(!options_.raw);
  Listener listener;
  listener.on_prompt = [&](std::int64_t done, std::int64_t total) {
    progress.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
  };
  listener.on_piece = [&](const Piece& piece) {
    progress.finish();
    return screen.add(piece);
  };
  auto said = source_.answer(ask, listener);
  progress.finish();
  screen.finish();
  if (!said.ok()) {
    pictures_.keep_first(first_waiting_);
    shown_.resize(first_waiting_);
    return said.status();
  }
  first_waiting_ = shown_.size();
  last_ = std::move(*said);
  total_seconds_ += last_.prompt_seconds + last_.decode_seconds;
  total_decoded_ += last_.answer_tokens;
  if (options_.raw) {
    raw_history_ += text + last_.text;
  } else {
    messages_.push_back({"user", said_now});
    messages_.push_back(last_.message);
  }
  if (last_.finish == engine::Finish::cancelled) return error(Code::cancelled, "stopped");
  if (last_.finish == engine::Finish::length && options_.sampling.max_tokens < 0 && !options_.quiet)
    millrace::say(stderr, "(the context of {} tokens is full; --ctx raises it, /clear starts anew)\n",
                  source_.context_tokens());
  return {};
}

}  // namespace millrace::cli
