#include "base/os/user_folders.h"

#include <algorithm>
#include <cstdlib>

namespace millrace::os {
namespace {

/// The folder that a variable names, with forward slashes, as the callers append to it.
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  std::string path = value != nullptr ? value : "";
  std::replace(path.begin(), path.end(), '\\', '/');
  return path;
}

/// The system's folder, unless a variable of the XDG Base Directory Specification names another one. Relative paths are
/// ignored.
std::string unless_moved(const char* name) {
  std::string folder = variable(name);
  const bool absolute = folder.starts_with('/') || (folder.size() > 2 && folder.substr(1, 2) == ":/");
  return absolute ? folder : variable("LOCALAPPDATA");
}

}  // namespace

std::string user_folder(UserFolder folder) {
  switch (folder) {
    case UserFolder::cache:
      return unless_moved("XDG_CACHE_HOME");
    case UserFolder::state:
      return unless_moved("XDG_STATE_HOME");
    case UserFolder::data:
      return unless_moved("XDG_DATA_HOME");
    case UserFolder::home:
      break;
  }
  return variable("USERPROFILE");
}

std::string_view user_folder_hint(UserFolder folder) {
  return folder == UserFolder::home ? "set USERPROFILE" : "set LOCALAPPDATA";
}

}  // namespace millrace::os
