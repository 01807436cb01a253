#include "base/os/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "base/os/posix/posix.h"

namespace millrace::os {

Expected<ScratchFile> ScratchFile::make(const std::string& folder) {
  std::string path = folder + "/millrace-scratch-XXXXXX";
  const int handle = ::mkostemp(path.data(), O_CLOEXEC);
  if (handle < 0) return last_error();
  ::unlink(path.c_str());
  return ScratchFile(handle);
}

ScratchFile::~ScratchFile() {
  if (handle_ >= 0) ::close(handle_);
}

Status ScratchFile::write(std::span<const std::byte> bytes) const { return write_all(handle_, bytes); }

Status ScratchFile::flush_to_disk() const {
  if (::fsync(handle_) != 0) return last_error();
  (void)::posix_fadvise(handle_, 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

std::string ScratchFile::path() const { return fmt::format("/proc/self/fd/{}", handle_); }

}  // namespace millrace::os
