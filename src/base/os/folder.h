// An open folder. Its files are addressed relative to it, so that the folder cannot be exchanged meanwhile. Errors are
// those of file.h, with the system's texts; the caller adds the folder and the operation. Thread-safety: const methods
// may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/os/file.h"
#include "base/status.h"

namespace millrace::os {

class Folder {
 public:
  Folder() = default;
  ~Folder();
  Folder(Folder&& other) noexcept : handle_(std::exchange(other.handle_, kNoHandle)) {}
  Folder& operator=(Folder&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  static Expected<Folder> open(const std::string& path);

  /// True if the folder belongs to this user or the administrator and nobody else may write to it.
  Expected<bool> is_private() const;
  /// Errors: this user may not create files in it.
  Status check_writable() const;
  Expected<File> open_file(const std::string& name, const File::Options& options) const;
  Expected<FileInfo> info(const std::string& name) const;  // for a link: the link itself
  /// Calls back with each name in the folder, in no order. Names are not collected, because their number is unbounded.
  Status for_each(const std::function<void(const std::string& name)>& take) const;
  /// Sets the time of a file's last change, FileInfo::modified_ns.
  Status set_modified(const std::string& name, std::int64_t ns) const;
  /// As replace_file().
  Status replace(const std::string& from, const std::string& to) const;
  Status remove(const std::string& name) const;
  /// As free_bytes().
  Expected<std::uint64_t> free_bytes() const;

 private:
  explicit Folder(Handle handle) : handle_(handle) {}

  Handle handle_ = kNoHandle;
};

/// Calls back with each name in the folder at `path`, in no order, "." and ".." left out. In place of std::filesystem's
/// iterators, which end the process where memory is short.
inline Status for_each_name(const std::string& path, const std::function<void(const std::string& name)>& take) {
  MR_ASSIGN_OR_RETURN(const Folder folder, Folder::open(path));
  return folder.for_each([&](const std::string& name) {
    if (name != "." && name != "..") take(name);
  });
}

/// Creates a folder accessible to its owner only, unless it exists.
Status make_private_folder(const std::string& path);

/// Creates a link to a file on the same disk. `target` is absolute or relative to the link's folder. The link is
/// symbolic, or hard on Windows, where only administrators and developers may create symbolic links. Errors:
/// invalid_argument (the name exists).
Status link_file(const std::string& target, const std::string& link);

}  // namespace millrace::os
