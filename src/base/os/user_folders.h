// The folders that the system gives a user's programs to keep files in. Thread-safety: functions that read the
// environment.
#pragma once

#include <string>
#include <string_view>

namespace millrace::os {

enum class UserFolder {
  cache,  // what can be made anew
  state,  // what was done
  data,   // models
  home,
};

/// A path without a slash at its end, below which a program makes a folder of its own name; empty: the system names
/// none.
std::string user_folder(UserFolder folder);

/// What a user may do where there is none: "set HOME or XDG_CACHE_HOME".
std::string_view user_folder_hint(UserFolder folder);

}  // namespace millrace::os
