#include "base/os/user_folders.h"

#include <algorithm>
#include <cstdlib>

namespace millrace::os {

std::string user_folder(UserFolder folder) {
  const char* const value = std::getenv(folder == UserFolder::home ? "USERPROFILE" : "LOCALAPPDATA");
  std::string path = value != nullptr ? value : "";
  std::replace(path.begin(), path.end(), '\\', '/');  // as what is put behind it is written
  return path;
}

std::string_view user_folder_hint(UserFolder folder) {
  return folder == UserFolder::home ? "set USERPROFILE" : "set LOCALAPPDATA";
}

}  // namespace millrace::os
