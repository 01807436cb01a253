// Finds a model's mmproj file: a named one, or the one beside the model.
// Thread-safety: functions, which read the disk.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "vision/spec.h"

namespace millrace::vision {

/// Errors: unsupported (decoders of this architecture are not used with such a tower; names both).
Status check_belongs(Projector projector, std::string_view architecture);

/// Checks by the headers that the mmproj file can belong to the model. Errors: unsupported, invalid_argument (its rows
/// have another width), and those of Model::open() and read_spec().
Status check_fits(const std::string& mmproj_path, const std::string& model_path);

/// True if the file's name contains "mmproj".
bool is_mmproj_name(const std::string& path);

/// The mmproj files by folder. Each folder is read once for all models in it. For one thread.
class MmprojFolders {
 public:
  const std::vector<std::string>& files_in(const std::string& folder);

 private:
  std::map<std::string, std::vector<std::string>> known_;
};

/// `given`: a path, which is returned; "off": none; empty: the only file in the model's folder with "mmproj" in its
/// name that fits the model's architecture and width. Returns an empty path if there is none, and logs why a file there
/// was not chosen.
std::string mmproj_for(const std::string& model_path, const std::string& given, MmprojFolders& folders);
inline std::string mmproj_for(const std::string& model_path, const std::string& given) {
  MmprojFolders folders;
  return mmproj_for(model_path, given, folders);
}

}  // namespace millrace::vision
