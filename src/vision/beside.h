// Which mmproj file belongs to a model: one that is named, or the one that lies beside it.
// Thread-safety: functions, which read the disk.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "vision/spec.h"

namespace millrace::vision {

/// Errors: unsupported (decoders of this architecture are not trained with such a tower; both are named).
Status check_belongs(Projector projector, std::string_view architecture);

/// Why the mmproj file is not this model's; ok: it may be. Of both files the headers are read. Errors: unsupported,
/// invalid_argument (its rows are of another width), and those of Model::open() and read_spec().
Status check_fits(const std::string& mmproj_path, const std::string& model_path);

/// Whether a file is called like one: "mmproj" stands in its name.
bool is_mmproj_name(const std::string& path);

/// The mmproj files of folders, each read once however many models lie in it. One thread's.
class MmprojFolders {
 public:
  const std::vector<std::string>& files_in(const std::string& folder);

 private:
  std::map<std::string, std::vector<std::string>> known_;
};

/// `given`: a path, which is the answer; "off": none; empty: the file in the model's folder that has "mmproj" in its
/// name, belongs to models of this architecture and width, and is the only one. Empty where there is none; the log says
/// why one that lies there is not taken.
std::string mmproj_for(const std::string& model_path, const std::string& given, MmprojFolders& folders);
inline std::string mmproj_for(const std::string& model_path, const std::string& given) {
  MmprojFolders folders;
  return mmproj_for(model_path, given, folders);
}

}  // namespace millrace::vision
