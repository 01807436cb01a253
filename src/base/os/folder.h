// An open folder. Its files are named within it, so that nobody can put another folder in its place meanwhile.
// Errors are those of file.h, in the system's words; the caller names the folder and what it was doing.
// Thread-safety: const methods may be called from any thread.
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

  /// Whether it is this user's (or the administrator's), and nobody else may write to it.
  Expected<bool> is_private() const;
  /// Errors: this user may not make files in it.
  Status check_writable() const;
  Expected<File> open_file(const std::string& name, const File::Options& options) const;
  Expected<FileInfo> info(const std::string& name) const;  // of a link: its own
  /// The names of what is in it, in no order. Their number is without bounds: they come one by one.
  Status for_each(const std::function<void(const std::string& name)>& take) const;
  /// The time of a file's last change becomes this, FileInfo::modified_ns.
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

/// A new folder, its owner's alone; one that is there stays as it is.
Status make_private_folder(const std::string& path);

/// Gives a file another name, `link`, in a folder of the same disk. `target` is absolute or relative to that folder.
/// The link is symbolic; on Windows, where only administrators and developers may make such links, a hard one. Errors:
/// invalid_argument (something has the name).
Status link_file(const std::string& target, const std::string& link);

}  // namespace millrace::os
