#include "modelfile/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/bytes.h"
#include "modelfile/escape.h"

namespace millrace::modelfile {
namespace {

constexpr std::size_t kBufferBytes = 64 * 1024;

std::string system_text(int code) { return std::error_code(code, std::generic_category()).message(); }

/// What a failed write means to the person at the keyboard.
Status write_failure(const std::string& path, int code) {
  const char* advice = "check the disk and the folder's permissions";
  if (code == ENOSPC || code == EDQUOT) advice = "free some disk space or choose another folder";
  if (code == EFBIG) advice = "write smaller splits or choose another file system";
  return error(Code::io_error, "{}: cannot write: {}; {}", escape(path), system_text(code), advice);
}

}  // namespace

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

Expected<File> File::open_read(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path);
  if (!file.valid()) {
    const int code = errno;
    if (code == ENOENT || code == ENOTDIR) {
      return error(Code::not_found, "{}: no such file; check the path", escape(path));
    }
    return error(Code::io_error, "{}: cannot open: {}; check the file's permissions", escape(path), system_text(code));
  }
  struct stat status {};
  if (::fstat(file.fd_, &status) != 0) {
    return error(Code::io_error, "{}: cannot read its size: {}", escape(path), system_text(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    return error(Code::invalid_argument, "{}: is a directory; give the .gguf file inside it", escape(path));
  }
  if (!S_ISREG(status.st_mode)) {
    return error(Code::invalid_argument, "{}: is not a regular file; copy the model to disk first", escape(path));
  }
  return file;
}

Expected<File> File::create(const std::string& path) {
  File file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644), path);
  if (!file.valid()) return write_failure(path, errno);
  if (::flock(file.fd_, LOCK_EX | LOCK_NB) != 0) {
    return error(Code::io_error, "{}: another process is writing this file; wait for it or choose another name",
                 escape(path));
  }
  if (::ftruncate(file.fd_, 0) != 0) return write_failure(path, errno);
  return file;
}

Status check_replaceable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return {};
  if (S_ISDIR(info.st_mode))
    return error(Code::invalid_argument, "{}: is a directory; name a file in it", escape(path));
  return error(Code::invalid_argument, "{}: is no regular file, which this would replace; name another", escape(path));
}

namespace {

/// "PREFIX-00001-of-00003.gguf" without its number; empty for other names.
std::string split_of(const std::string& path) {
  const auto part = path.rfind("-of-");
  if (part == std::string::npos || part < 6 || !path.ends_with(".gguf") || path[part - 6] != '-') return "";
  return path.substr(0, part - 5) + path.substr(part);
}

bool replaces(const std::string& out, const std::string& input) {
  namespace fs = std::filesystem;
  std::error_code absent;
  if (fs::equivalent(out, input, absent)) return true;
  if (fs::is_directory(input, absent))
    return fs::is_regular_file(out, absent) && fs::path(out).extension() != ".gguf" &&
           fs::equivalent(fs::absolute(out).parent_path(), input, absent);
  const std::string split = split_of(fs::weakly_canonical(input, absent).string());
  return !split.empty() && split == split_of(fs::weakly_canonical(out, absent).string());
}

}  // namespace

Status check_output(const std::string& out, std::span<const std::string> inputs) {
  if (out.empty()) return {};
  for (const std::string& input : inputs)
    for (const char* aside : {"", ".partial", ".part"})
      if (!input.empty() && replaces(out + aside, input))
        return error(Code::invalid_argument, "{}: is read by this command, too; name another file for the output",
                     escape(out + aside));
  return {};
}

bool begins_like_gguf(const std::string& path) {
  const auto file = File::open_read(path);
  std::array<std::byte, 4> head{};
  return file.ok() && file->read_at(0, head).ok() && std::memcmp(head.data(), "GGUF", head.size()) == 0;
}

Expected<File> File::open_direct_write(const std::string& path) {
  File file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_DIRECT), path);
  if (!file.valid()) return error(Code::unsupported, "{}: no O_DIRECT here: {}", escape(path), system_text(errno));
  return file;
}

Expected<std::uint64_t> File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) {
    return error(Code::io_error, "{}: cannot read its size: {}", escape(path_), system_text(errno));
  }
  return static_cast<std::uint64_t>(status.st_size);
}

Status File::reserve(std::uint64_t bytes) const {
  if (bytes > static_cast<std::uint64_t>(INT64_MAX)) return write_failure(path_, EFBIG);
  const auto length = static_cast<off_t>(bytes);
  int result = 0;
  do result = bytes == 0 ? 0 : ::fallocate(fd_, 0, 0, length);
  while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == ENOSPC || errno == EDQUOT)) {
    struct statvfs disk {};
    const bool known = ::fstatvfs(fd_, &disk) == 0;
    const std::uint64_t free_bytes = known ? static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize : 0;
    return error(Code::io_error, "{}: needs {} but the disk has {} free; free some space or choose another folder",
                 escape(path_), format_bytes(bytes), format_bytes(free_bytes));
  }
  // File systems that cannot reserve say so; setting the length is enough for them.
  if (::ftruncate(fd_, length) != 0) return write_failure(path_, errno);
  return {};
}

Status File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) {
      return error(Code::io_error, "{}: cannot read at byte {}: {}; check the disk", escape(path_), offset,
                   system_text(errno));
    }
    if (got == 0) {
      return error(Code::io_error, "{}: the file became shorter while it was read; open it again when it is complete",
                   escape(path_));
    }
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

Status File::write_at(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put <= 0) return write_failure(path_, put == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return {};
}

Status File::sync() const {
  if (::fsync(fd_) != 0) return write_failure(path_, errno);
  return {};
}

Expected<std::vector<File>> open_files(std::span<const std::string> paths) {
  std::vector<File> files;
  for (const std::string& path : paths) {
    MR_ASSIGN_OR_RETURN(File file, File::open_read(path));
    files.push_back(std::move(file));
  }
  return files;
}

Cursor::Cursor(std::span<const std::byte> bytes) : window_(bytes), size_(bytes.size()) {}

Cursor::Cursor(const File& file, std::uint64_t size) : file_(&file), size_(size) {
  buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kBufferBytes, size)));
}

Status Cursor::cut_off(std::uint64_t bytes, std::string_view what) const {
  return error(Code::corrupt,
               "the header is damaged or cut off: {} at byte {} needs {} bytes, but {} remain; download the file again",
               what, position_, bytes, remaining());
}

Status Cursor::read(std::span<std::byte> out, std::string_view what) {
  if (out.size() > remaining()) return cut_off(out.size(), what);
  while (!out.empty()) {
    const std::uint64_t lead = position_ - window_begin_;
    if (position_ >= window_begin_ && lead < window_.size()) {
      const std::size_t take = std::min<std::size_t>(out.size(), window_.size() - static_cast<std::size_t>(lead));
      std::memcpy(out.data(), window_.data() + lead, take);
      out = out.subspan(take);
      position_ += take;
    } else if (out.size() >= buffer_.size()) {
      MR_RETURN_IF_ERROR(file_->read_at(position_, out));
      position_ += out.size();
      out = {};
    } else {
      const auto fill = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), remaining()));
      MR_RETURN_IF_ERROR(file_->read_at(position_, std::span(buffer_).first(fill)));
      window_ = std::span<const std::byte>(buffer_).first(fill);
      window_begin_ = position_;
    }
  }
  return {};
}

Status Cursor::skip(std::uint64_t bytes, std::string_view what) {
  if (bytes > remaining()) return cut_off(bytes, what);
  position_ += bytes;
  return {};
}

}  // namespace millrace::modelfile
