// What a chat keeps between sessions: the lines that were typed, and conversations that were saved, in the user's state
// folder, readable for nobody else. Thread-safety: one thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat_template.h"

namespace millrace::cli {

/// $XDG_STATE_HOME/millrace, or ~/.local/state/millrace; made where it is not there. Errors: not_found (no home),
/// io_error.
Expected<std::string> state_folder();

/// The lines of earlier chats, oldest first, at most a thousand; none where there is no folder for them.
std::vector<std::string> read_history();
/// Adds one. Those that begin with a space are not kept, as in a shell. A line that cannot be written is lost, without
/// a word: nobody asked for it.
void keep_in_history(const std::string& line);

/// A picture that a message of a saved chat begins with: of each, "[image]" stands in its text.
struct SavedPicture {
  std::size_t message = 0;
  std::string path, sha256;  // the file's, absolute
};

struct SavedChat {
  std::string model, system;
  std::vector<text::Message> messages;
  std::string raw;                          // of a chat without a template
  std::vector<SavedPicture> pictures = {};  // by message
};
/// Errors: invalid_argument (a name with other signs than letters, digits, . _ -), io_error.
Status save_chat(const std::string& name, const SavedChat& chat);
/// Errors: invalid_argument (as above), not_found, corrupt, io_error.
Expected<SavedChat> load_chat(const std::string& name);
/// Names, sorted.
std::vector<std::string> saved_chats();

}  // namespace millrace::cli
