#include "app/store/part_file.h"

#include <algorithm>
#include <charconv>

#include "app/store/files.h"
#include "base/bytes.h"

namespace millrace::store {
namespace {

// Large enough that a sync a chunk costs little, small enough that several connections share a small file.
std::uint64_t chunk_bytes_for(std::uint64_t bytes) {
  return std::clamp<std::uint64_t>(round_up(bytes / 16 + 1, 64 * kKiB), 64 * kKiB, 16 * kMiB);
}

Expected<os::File> open_file(const std::string& path) {
  auto file = os::File::open(
      path, {.access = os::File::Access::both, .create = os::File::Create::if_missing, .writable_by_all = false});
  if (!file.ok()) return named(path, "open it", file.status());
  return file;
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
  const auto info = part->data_.info();
  if (!info.ok()) return named(path, "read its size", info.status());
  if (info->bytes == bytes) MR_RETURN_IF_ERROR(part->read_journal(identity));
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
  const MutexLock lock(mutex_);
  journal_bytes_ = whole;
  return named(journal_path(), "shorten it", journal_.resize(whole));
}

Status PartFile::begin_journal(const std::string& identity) {
  MR_RETURN_IF_ERROR(named(journal_path(), "empty it", journal_.resize(0)));
  MR_RETURN_IF_ERROR(named(path_, "make room", data_.resize(0)));
  MR_RETURN_IF_ERROR(named(path_, "make room", data_.resize(bytes_)));
  const std::string first = head(identity);
  const MutexLock lock(mutex_);
  journal_bytes_ = first.size();
  return named(journal_path(), "write", journal_.write_at(0, std::as_bytes(std::span(first.data(), first.size()))));
}

Status PartFile::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  return named(path_, "write", data_.write_at(offset, bytes));
}

Status PartFile::mark_done(std::size_t chunk) {
  MR_RETURN_IF_ERROR(named(path_, "sync", data_.sync_data()));
  const std::string line = fmt::format("{}\n", chunk);
  const MutexLock lock(mutex_);
  if (done(chunk)) return {};
  MR_RETURN_IF_ERROR(named(journal_path(), "write",
                           journal_.write_at(journal_bytes_, std::as_bytes(std::span(line.data(), line.size())))));
  journal_bytes_ += line.size();
  MR_RETURN_IF_ERROR(named(journal_path(), "sync", journal_.sync_data()));
  done_[chunk].store(1, std::memory_order_release);
  done_bytes_ += chunk_end(chunk) - chunk_begin(chunk);
  return {};
}

void PartFile::discard() {
  data_ = os::File();  // Windows keeps the name of a file that is open
  journal_ = os::File();
  std::remove(path_.c_str());
  std::remove(journal_path().c_str());
}

Status PartFile::move_to(const std::string& path) {
  MR_RETURN_IF_ERROR(named(path_, "sync", data_.sync()));
  MR_RETURN_IF_ERROR(move_file(path_, path));
  journal_ = os::File();
  std::remove(journal_path().c_str());
  return {};
}

}  // namespace millrace::store
