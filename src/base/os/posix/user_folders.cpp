#include "base/os/user_folders.h"

#include <cstdlib>

namespace millrace::os {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// Source: the XDG Base Directory Specification, which says to ignore relative paths.
std::string below_home(const char* name, const char* usual) {
  if (std::string folder = variable(name); folder.starts_with('/')) return folder;
  const std::string home = variable("HOME");
  return home.empty() ? home : home + usual;
}

}  // namespace

std::string user_folder(UserFolder folder) {
  switch (folder) {
    case UserFolder::cache:
      return below_home("XDG_CACHE_HOME", "/.cache");
    case UserFolder::state:
      return below_home("XDG_STATE_HOME", "/.local/state");
    case UserFolder::data:
      return below_home("XDG_DATA_HOME", "/.local/share");
    case UserFolder::home:
      break;
  }
  return variable("HOME");
}

std::string_view user_folder_hint(UserFolder folder) {
  switch (folder) {
    case UserFolder::cache:
      return "set HOME or XDG_CACHE_HOME";
    case UserFolder::state:
      return "set HOME or XDG_STATE_HOME";
    case UserFolder::data:
      return "set HOME or XDG_DATA_HOME";
    case UserFolder::home:
      break;
  }
  return "set HOME";
}

}  // namespace millrace::os
