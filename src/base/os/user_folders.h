// The user's folders for files of programs. Thread-safety: functions that read the
// environment.
#pragma once

#include <string>
#include <string_view>

namespace millrace::os {

enum class UserFolder {
  cache,  // files that can be recreated
  state,  // history and logs
  data,   // models
  home,
};

/// A path without a trailing slash, in which a program creates a folder with its name; empty: unknown.
std::string user_folder(UserFolder folder);

/// Advice for users if there is none: "set HOME or XDG_CACHE_HOME".
std::string_view user_folder_hint(UserFolder folder);

}  // namespace millrace::os
