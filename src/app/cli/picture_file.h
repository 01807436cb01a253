// Pictures that a user shows in a chat: files of this machine, and their paths in what is typed.
// Thread-safety: functions that read the disk.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::cli {

/// A picture of a conversation, but for its bytes.
struct ShownPicture {
  std::string path;    // absolute
  std::string sha256;  // of the file
  std::string label;   // for people: "cat.png (640 x 480 pixels, 31.2 kB)"

  std::string name() const { return path.substr(path.rfind('/') + 1); }
};

struct PictureFile {
  ShownPicture picture;
  std::string bytes;
};

/// "~/" at its beginning is the home directory. Errors: not_found, io_error, invalid_argument (no picture of a known
/// kind, or a larger one than may be shown).
Expected<PictureFile> read_picture(const std::string& path);

/// The paths behind /image: one that has spaces as it stands, if there is such a file, or several words.
std::vector<std::string> picture_paths(std::string_view text);

/// Where a picture's path stands in a text.
struct NamedPicture {
  std::size_t begin = 0, end = 0;  // with its quotes
  std::string path;
};

/// Paths of pictures as a terminal writes a file that is dropped on it (quoted or with escaped spaces), or as people
/// type them: with a directory, and with the name's ending of a picture; the file is there, and its header is a
/// picture's.
std::vector<NamedPicture> pictures_named_in(std::string_view text);

}  // namespace millrace::cli
