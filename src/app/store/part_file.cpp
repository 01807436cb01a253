#include "app/store/part_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "app/store/files.h"
#include "base/bytes.h"

namespace millrace::store {
namespace {

// Large enough that a sync a chunk costs little, small enough that several connections share a small file.
std::uint64_t chunk_bytes_for(std::uint64_t bytes) {
  return std::clamp<std::uint64_t>(round_up(bytes / 16 + 1, 64 * kKiB), 64 * kKiB, 16 * kMiB);
}

Status write_fully(int fd, std::uint64_t offset, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(path, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Expected<storage::ScopedFd> open_file(const std::string& path) {
  storage::ScopedFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.open()) return system_error(path, "open it");
  return fd;
}

}  // namespace

PartFile::PartFile(std::string path, std::uint64_t bytes)
    : path_(std::move(path)),
      bytes_(bytes),
      chunk_bytes_(chunk_bytes_for(bytes)),
      done_((bytes + chunk_bytes_ - 1) / chunk_bytes_) {}

std::uint64_t PartFile::chunk_end(std::size_t chunk) const { return std::min(bytes_, (chunk + 1) * chunk_bytes_); }

std::string PartFile::head(const std::string& identity) const {
  return fmt::format("millrace-part-1 {} {} {}\n", bytes_, chunk_bytes_, identity);
}

Expected<std::unique_ptr<PartFile>> PartFile::open(const std::string& path, std::uint64_t bytes,
                                                   const std::string& identity) {
  std::unique_ptr<PartFile> part(new PartFile(path, bytes));
  MR_ASSIGN_OR_RETURN(part->data_, open_file(path));
  MR_ASSIGN_OR_RETURN(part->journal_, open_file(part->journal_path()));
  struct stat information = {};
  if (fstat(part->data_.get(), &information) != 0) return system_error(path, "read its size");
  if (static_cast<std::uint64_t>(information.st_size) == bytes) MR_RETURN_IF_ERROR(part->read_journal(identity));
  if (part->done_bytes() == 0) MR_RETURN_IF_ERROR(part->begin_journal(identity));
  return part;
}

Status PartFile::read_journal(const std::string& identity) {
  MR_ASSIGN_OR_RETURN(const std::string text, read_whole(journal_path()));
  const std::string first = head(identity);
  if (!text.starts_with(first)) return {};
  std::size_t whole = first.size();  // bytes of lines that are whole
  for (auto end = text.find('\n', whole); end != std::string::npos; end = text.find('\n', whole)) {
    std::size_t chunk = 0;
    const auto [stop, failure] = std::from_chars(text.data() + whole, text.data() + end, chunk);
    if (failure != std::errc() || stop != text.data() + end || chunk >= done_.size()) break;
    if (!done(chunk)) done_bytes_ += chunk_end(chunk) - chunk_begin(chunk);
    done_[chunk] = 1;
    whole = end + 1;
  }
  // What is torn goes, so that the next line begins a line.
  if (ftruncate(journal_.get(), static_cast<off_t>(whole)) != 0) return system_error(journal_path(), "shorten it");
  if (lseek(journal_.get(), 0, SEEK_END) < 0) return system_error(journal_path(), "seek");
  return {};
}

Status PartFile::begin_journal(const std::string& identity) {
  if (ftruncate(journal_.get(), 0) != 0) return system_error(journal_path(), "empty it");
  if (ftruncate(data_.get(), 0) != 0 || ftruncate(data_.get(), static_cast<off_t>(bytes_)) != 0)
    return system_error(path_, "make room");
  const std::string first = head(identity);
  MR_RETURN_IF_ERROR(
      write_fully(journal_.get(), 0, std::as_bytes(std::span(first.data(), first.size())), journal_path()));
  if (lseek(journal_.get(), 0, SEEK_END) < 0) return system_error(journal_path(), "seek");
  return {};
}

Status PartFile::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  return write_fully(data_.get(), offset, bytes, path_);
}

Status PartFile::mark_done(std::size_t chunk) {
  if (fdatasync(data_.get()) != 0) return system_error(path_, "sync");
  const std::string line = fmt::format("{}\n", chunk);
  const MutexLock lock(mutex_);
  if (done(chunk)) return {};
  if (::write(journal_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return system_error(journal_path(), "write");
  if (fdatasync(journal_.get()) != 0) return system_error(journal_path(), "sync");
  done_[chunk].store(1, std::memory_order_release);
  done_bytes_ += chunk_end(chunk) - chunk_begin(chunk);
  return {};
}

void PartFile::discard() {
  std::remove(path_.c_str());
  std::remove(journal_path().c_str());
}

Status PartFile::move_to(const std::string& path) {
  if (fsync(data_.get()) != 0) return system_error(path_, "sync");
  MR_RETURN_IF_ERROR(move_file(path_, path));
  std::remove(journal_path().c_str());
  return {};
}

}  // namespace millrace::store
