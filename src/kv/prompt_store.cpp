#include "kv/prompt_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"

namespace millrace::kv {

namespace fs = std::filesystem;
using Clock = std::chrono::system_clock;

namespace {

constexpr std::size_t kKeyDigits = 32;
constexpr std::string_view kSuffix = ".kv", kFresh = ".new";
constexpr std::size_t kOldestAtOnce = 1024;         // a folder may hold more files than memory should
constexpr auto kAbandoned = std::chrono::hours(1);  // a file half written so long ago has lost its writer
constexpr std::uint64_t kDiskBlock = 4096;

std::string name_of(const PromptKey& key) { return key.hex() + std::string(kSuffix); }

bool is_key(std::string_view text) {
  return text.size() == kKeyDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}
bool is_block(std::string_view name) {
  return name.ends_with(kSuffix) && is_key(name.substr(0, name.size() - kSuffix.size()));
}
/// KEY.PROCESS.NUMBER.new
bool is_fresh(std::string_view name) {
  return name.ends_with(kFresh) && name.size() > kKeyDigits && is_key(name.substr(0, kKeyDigits)) &&
         name[kKeyDigits] == '.';
}

timespec to_timespec(Clock::time_point time) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  return {static_cast<time_t>(since / 1'000'000'000), static_cast<long>(since % 1'000'000'000)};
}
Clock::time_point to_time(const timespec& time) {
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::seconds(time.tv_sec) +
                                                                       std::chrono::nanoseconds(time.tv_nsec)));
}

Status failed(std::string_view doing) {
  const int number = errno;
  const bool full = number == ENOSPC || number == EDQUOT || number == EFBIG;
  return error(full ? Code::out_of_budget : Code::io_error, "cannot {}: {}", doing, std::strerror(number));
}

Status write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write a KV block");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status read_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::read(fd, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read a KV block");
    if (got == 0) return error(Code::corrupt, "it ends early");
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

}  // namespace

Expected<std::unique_ptr<PromptStore>> PromptStore::open(Options options) {
  const fs::path path = options.folder;
  std::error_code failure;
  if (!path.parent_path().empty()) fs::create_directories(path.parent_path(), failure);
  if (::mkdir(options.folder.c_str(), 0700) != 0 && errno != EEXIST)
    return failed("make this folder").with_context(options.folder);
  storage::ScopedFd folder(::open(options.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat information = {};
  if (!folder.open() || fstat(folder.get(), &information) != 0)
    return failed("open this folder").with_context(options.folder);
  const bool ours = information.st_uid == geteuid() || information.st_uid == 0 || geteuid() == 0;
  if (!ours || (information.st_mode & 022) != 0)
    return error(Code::invalid_argument, "{}: others may write to this folder; chmod 700, or choose another",
                 options.folder);
  if (faccessat(folder.get(), ".", W_OK | X_OK, AT_EACCESS) != 0)
    return failed("write to this folder").with_context(options.folder);
  return std::unique_ptr<PromptStore>(new PromptStore(std::move(options), std::move(folder)));
}

bool PromptStore::refresh(const PromptKey& key, Time used) {
  const timespec times[2] = {to_timespec(used), to_timespec(used)};
  return utimensat(folder_.get(), name_of(key).c_str(), times, AT_SYMLINK_NOFOLLOW) == 0;
}

Status PromptStore::read_file(const PromptBlock& block, int fd, std::byte* payload) {
  struct stat information = {};
  if (fstat(fd, &information) != 0) return failed("examine a KV block");
  if (!S_ISREG(information.st_mode) || static_cast<std::uint64_t>(information.st_size) != block.file_bytes())
    return error(Code::corrupt, "it has {} bytes instead of {}", information.st_size, block.file_bytes());
  std::vector<std::byte> head(block.head_bytes());
  MR_RETURN_IF_ERROR(read_all(fd, head));
  MR_RETURN_IF_ERROR(read_all(fd, {payload, static_cast<std::size_t>(block.shape.block_bytes())}));
  return check_file(block, head.data(), payload);
}

Status PromptStore::load(const PromptBlock& block, std::byte* payload) {
  const std::string name = name_of(block.key);
  // Whatever lies there under a name of ours, opening it must not wait or follow.
  const storage::ScopedFd file(
      openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file.open() && errno == ENOENT) return {Code::not_found, ""};
  if (!file.open() && errno == ELOOP) return remove_damaged(name, error(Code::corrupt, "it is a link"));
  if (!file.open()) return failed("open a KV block");
  Status status = read_file(block, file.get(), payload);
  if (status.code() == Code::corrupt) return remove_damaged(name, status);
  if (!status.ok()) return status;
  const MutexLock lock(mutex_);
  counters_.read_bytes += block.file_bytes();
  return {};
}

Status PromptStore::remove_damaged(const std::string& name, const Status& why) {
  log::warn("prompt cache: {}/{} is of no use and was removed: {}", options_.folder, name, why.message());
  unlinkat(folder_.get(), name.c_str(), 0);
  const MutexLock lock(mutex_);
  ++counters_.damaged_files;
  return why;
}

Status PromptStore::save(const PromptBlock& block, const std::byte* payload, Time used) {
  std::string fresh;
  {
    const MutexLock lock(mutex_);
    fresh = fmt::format("{}.{}.{}{}", block.key.hex(), getpid(), writes_++, kFresh);
  }
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  Status status;
  {
    const storage::ScopedFd file(openat(folder_.get(), fresh.c_str(), flags, 0600));
    if (!file.open() && errno == EEXIST) return {};  // a namesake elsewhere (containers count processes anew) is at it
    if (!file.open()) return failed("make a file").with_context(options_.folder);
    status = write_all(file.get(), make_head(block, payload));
    if (status.ok()) status = write_all(file.get(), {payload, static_cast<std::size_t>(block.shape.block_bytes())});
    const timespec times[2] = {to_timespec(used), to_timespec(used)};
    if (status.ok() && futimens(file.get(), times) != 0) status = failed("set a file's time");
  }
  // Not synced: after a power cut the checksum tells.
  if (status.ok() && renameat(folder_.get(), fresh.c_str(), folder_.get(), name_of(block.key).c_str()) != 0)
    status = failed("put a file in place");
  if (!status.ok()) {
    unlinkat(folder_.get(), fresh.c_str(), 0);
    return status.with_context(options_.folder);
  }
  const MutexLock lock(mutex_);
  ++counters_.files;
  counters_.bytes += round_up(block.file_bytes(), kDiskBlock);
  counters_.written_bytes += block.file_bytes();
  return {};
}

/// What the folder holds.
struct PromptStore::Scan {
  struct File {
    std::string name;
    std::uint64_t bytes = 0;
    Time used;
    /// Of files used at the same time (clocks of file systems may be coarse) the later blocks go first: they are
    /// longer.
    bool operator<(const File& other) const { return used != other.used ? used < other.used : bytes > other.bytes; }
  };
  std::uint64_t files = 0, bytes = 0;
  std::vector<File> oldest;  // in the order they should go, kOldestAtOnce at most

  void add(File file) {
    ++files;
    bytes += file.bytes;
    if (oldest.size() == kOldestAtOnce) {
      if (!(file < oldest.front())) return;
      std::pop_heap(oldest.begin(), oldest.end());
      oldest.pop_back();
    }
    oldest.push_back(std::move(file));
    std::push_heap(oldest.begin(), oldest.end());
  }
};

Expected<PromptStore::Scan> PromptStore::scan() {
  const int fd = openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> open(fd >= 0 ? fdopendir(fd) : nullptr, closedir);
  if (open == nullptr) return failed("list this folder").with_context(options_.folder);
  Scan scan;
  const Time abandoned = Clock::now() - kAbandoned;
  while (const dirent* const entry = readdir(open.get())) {  // NOLINT(concurrency-mt-unsafe): this thread's own DIR
    const std::string_view name = entry->d_name;
    if (!is_block(name) && !is_fresh(name)) continue;
    struct stat information = {};
    if (fstatat(folder_.get(), entry->d_name, &information, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(information.st_mode)) continue;
    const Time used = to_time(information.st_mtim);
    if (is_fresh(name) && used < abandoned && unlinkat(folder_.get(), entry->d_name, 0) == 0) continue;
    Scan::File file{std::string(name), round_up(static_cast<std::uint64_t>(information.st_size), kDiskBlock), used};
    if (is_fresh(name)) file.used = Time::max();  // its writer is at work
    scan.add(std::move(file));
  }
  std::sort_heap(scan.oldest.begin(), scan.oldest.end());
  const MutexLock lock(mutex_);
  counters_.files = scan.files;
  counters_.bytes = scan.bytes;
  return scan;
}

Expected<std::uint64_t> PromptStore::make_room(std::uint64_t bytes, Time spared) {
  bytes = std::min(bytes, options_.most_bytes);
  for (;;) {
    MR_ASSIGN_OR_RETURN(const Scan scan, this->scan());
    struct statvfs disk = {};
    if (fstatvfs(folder_.get(), &disk) != 0) return failed("ask how full the disk is").with_context(options_.folder);
    const std::uint64_t on_disk = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
    std::uint64_t free = on_disk - std::min(on_disk, options_.least_free_bytes);
    std::uint64_t held = scan.bytes, removed = 0;
    const auto fits = [&] { return held + bytes <= options_.most_bytes && bytes <= free; };
    for (const Scan::File& file : scan.oldest) {
      if (fits() || file.used >= spared) break;
      if (unlinkat(folder_.get(), file.name.c_str(), 0) != 0) continue;
      held -= file.bytes;
      free += file.bytes;
      ++removed;
    }
    {
      const MutexLock lock(mutex_);
      counters_.files = scan.files - removed;
      counters_.bytes = held;
      counters_.removed_files += removed;
    }
    if (fits()) return bytes;
    if (removed < kOldestAtOnce) return std::min(free, options_.most_bytes - std::min(options_.most_bytes, held));
  }
}

PromptStore::Counters PromptStore::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

}  // namespace millrace::kv
