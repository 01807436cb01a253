#include "kv/prompt_store.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/os/process.h"

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

std::int64_t to_ns(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
Clock::time_point to_time(std::int64_t ns) {
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(ns)));
}

/// The status, where it failed with what was to be done.
Status named(std::string_view doing, const Status& status) {
  if (status.ok()) return status;
  const bool full = status.code() == Code::out_of_budget || status.code() == Code::unsupported;
  return error(full ? Code::out_of_budget : Code::io_error, "cannot {}: {}", doing, status.message());
}

Status read_all(const os::File& file, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const auto got = file.read(bytes);
    if (!got.ok()) return named("read a KV block", got.status());
    if (*got == 0) return error(Code::corrupt, "it ends early");
    bytes = bytes.subspan(*got);
  }
  return {};
}

}  // namespace

Expected<std::unique_ptr<PromptStore>> PromptStore::open(Options options) {
  const fs::path path = options.folder;
  std::error_code failure;
  if (!path.parent_path().empty()) fs::create_directories(path.parent_path(), failure);
  MR_RETURN_IF_ERROR(named("make this folder", os::make_private_folder(options.folder)).with_context(options.folder));
  auto folder = os::Folder::open(options.folder);
  const Expected<bool> ours = folder.ok() ? folder->is_private() : folder.status();
  if (!ours.ok()) return named("open this folder", ours.status()).with_context(options.folder);
  if (!*ours)
    return error(Code::invalid_argument, "{}: others may write to this folder; chmod 700, or choose another",
                 options.folder);
  MR_RETURN_IF_ERROR(named("write to this folder", folder->check_writable()).with_context(options.folder));
  return std::unique_ptr<PromptStore>(new PromptStore(std::move(options), std::move(*folder)));
}

bool PromptStore::refresh(const PromptKey& key, Time used) {
  return folder_.set_modified(name_of(key), to_ns(used)).ok();
}

Status PromptStore::read_file(const PromptBlock& block, const os::File& file, std::byte* payload) {
  const auto info = file.info();
  if (!info.ok()) return named("examine a KV block", info.status());
  if (!info->is_regular() || info->bytes != block.file_bytes())
    return error(Code::corrupt, "it has {} bytes instead of {}", info->bytes, block.file_bytes());
  std::vector<std::byte> head(block.head_bytes());
  MR_RETURN_IF_ERROR(read_all(file, head));
  MR_RETURN_IF_ERROR(read_all(file, {payload, static_cast<std::size_t>(block.shape.block_bytes())}));
  return check_file(block, head.data(), payload);
}

Status PromptStore::load(const PromptBlock& block, std::byte* payload) {
  const std::string name = name_of(block.key);
  // Whatever lies there under a name of ours, opening it must not wait or follow.
  const auto file = folder_.open_file(name, {.links = os::Links::stay, .wait = false});
  if (file.status().code() == Code::not_found) return {Code::not_found, ""};
  if (file.status().code() == Code::invalid_argument) return remove_damaged(name, error(Code::corrupt, "it is a link"));
  if (!file.ok()) return named("open a KV block", file.status());
  Status status = read_file(block, *file, payload);
  if (status.code() == Code::corrupt) return remove_damaged(name, status);
  if (!status.ok()) return status;
  const MutexLock lock(mutex_);
  counters_.read_bytes += block.file_bytes();
  return {};
}

Status PromptStore::remove_damaged(const std::string& name, const Status& why) {
  log::warn("prompt cache: {}/{} is unusable and was removed: {}", options_.folder, name, why.message());
  (void)folder_.remove(name);
  const MutexLock lock(mutex_);
  ++counters_.damaged_files;
  return why;
}

Status PromptStore::save(const PromptBlock& block, const std::byte* payload, Time used) {
  std::string fresh;
  {
    const MutexLock lock(mutex_);
    fresh = fmt::format("{}.{}.{}{}", block.key.hex(), os::process_id(), writes_++, kFresh);
  }
  Status status;
  {
    const auto file = folder_.open_file(
        fresh, {.access = os::File::Access::write, .create = os::File::Create::always_new, .owner_only = true});
    // A namesake elsewhere (containers count processes anew) is at it.
    if (file.status().code() == Code::invalid_argument) return {};
    if (!file.ok()) return named("make a file", file.status()).with_context(options_.folder);
    const std::span<const std::byte> block_bytes(payload, static_cast<std::size_t>(block.shape.block_bytes()));
    status = named("write a KV block", file->write(make_head(block, payload)));
    if (status.ok()) status = named("write a KV block", file->write(block_bytes));
    if (status.ok()) status = named("set a file's time", file->set_modified(to_ns(used)));
  }
  // Not synced: after a power cut the checksum tells.
  if (status.ok()) status = named("put a file in place", folder_.replace(fresh, name_of(block.key)));
  if (!status.ok()) {
    (void)folder_.remove(fresh);
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
  Scan scan;
  const Time abandoned = Clock::now() - kAbandoned;
  const Status listed = folder_.for_each([&](const std::string& name) {
    if (!is_block(name) && !is_fresh(name)) return;
    const auto info = folder_.info(name);
    if (!info.ok() || !info->is_regular()) return;
    const Time used = to_time(info->modified_ns);
    if (is_fresh(name) && used < abandoned && folder_.remove(name).ok()) return;
    Scan::File file{name, round_up(info->bytes, kDiskBlock), used};
    if (is_fresh(name)) file.used = Time::max();  // its writer is at work
    scan.add(std::move(file));
  });
  MR_RETURN_IF_ERROR(named("list this folder", listed).with_context(options_.folder));
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
    const auto on_disk = folder_.free_bytes();
    if (!on_disk.ok()) return named("ask how full the disk is", on_disk.status()).with_context(options_.folder);
    std::uint64_t free = *on_disk - std::min(*on_disk, options_.least_free_bytes);
    std::uint64_t held = scan.bytes, removed = 0;
    const auto fits = [&] { return held + bytes <= options_.most_bytes && bytes <= free; };
    for (const Scan::File& file : scan.oldest) {
      if (fits() || file.used >= spared) break;
      if (!folder_.remove(file.name).ok()) continue;
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
