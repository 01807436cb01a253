#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "device/host_memory.h"
#include "residency/calibrate_parts.h"
#include "storage/storage.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSlotBytes = 2 * kMiB;  // a huge page
// Few slots on purpose: disks of virtual machines copy through the host's caches, and reads into 16 MiB that are used
// again and again were measured up to 1.4 times as fast as reads into 64 MiB.
constexpr std::uint64_t kSlots = 8;
constexpr std::uint64_t kSmallestFile = 32 * kMiB;

/// A file of random bytes without a name, so that nothing is left however the program ends.
class ScratchFile {
 public:
  static Expected<ScratchFile> make(const fs::path& directory, std::uint64_t bytes) {
    ScratchFile file;
    std::string path = (directory / "millrace-calibrate-XXXXXX").string();
    const int fd = mkstemp(path.data());
    if (fd < 0) {
      return error(Code::io_error, "cannot write a scratch file in {} ({}): name a model file to measure instead",
                   directory.string(), std::strerror(errno));
    }
    file.fd_ = fd;
    unlink(path.c_str());
    MR_RETURN_IF_ERROR(fill(fd, bytes, path));
    return file;
  }
  ScratchFile() = default;
  ScratchFile(ScratchFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ScratchFile& operator=(ScratchFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ScratchFile() {
    if (fd_ >= 0) close(fd_);
  }
  /// Opens it again, while this object lives.
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  static Status fill(int fd, std::uint64_t bytes, const std::string& path) {
    std::vector<std::uint64_t> block(kSlotBytes / 8);
    std::uint64_t state = 0x9e3779b97f4a7c15u;
    for (std::uint64_t written = 0; written < bytes;) {
      for (std::uint64_t& word : block) word = next_random(state);  // which no disk compresses
      const ssize_t result = write(fd, block.data(), kSlotBytes);
      if (result < 0 && errno == EINTR) continue;
      if (result <= 0) return error(Code::io_error, "writing {} failed: {}", path, std::strerror(errno));
      written += static_cast<std::uint64_t>(result);
    }
    if (fsync(fd) != 0) return error(Code::io_error, "writing {} failed: {}", path, std::strerror(errno));
    // Where O_DIRECT is refused, what the page cache holds of the file must not be measured.
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return {};
  }
  int fd_ = -1;
};

/// Reads a file in order, round and round, each measurement where the one before stopped.
class DiskProbe {
 public:
  static Expected<DiskProbe> make(const std::string& path) {
    DiskProbe probe;
    probe.path_ = path;
    std::error_code code;
    probe.tiles_ = fs::file_size(path, code) / kSlotBytes;
    if (code) return error(Code::not_found, "{}: {}", path, code.message());
    MR_ASSIGN_OR_RETURN(probe.memory_, device::HostBuffer::reserve(kSlots * kSlotBytes, device::Pages::huge));
    std::memset(probe.memory_.data(), 1, probe.memory_.bytes());
    return probe;
  }

  /// Bytes per second with this backend at this depth. Errors: unsupported where the backend is not offered.
  Expected<double> rate(storage::BackendKind kind, int depth, double seconds) {
    storage::OpenOptions options;
    options.kind = kind;
    options.threads = options.queue_depth = depth;
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<storage::Backend> backend, storage::open_backend({path_}, options));
    std::array<storage::Completion, kSlots> completions;
    std::uint64_t started = 0;
    Status status;
    const auto begin = Clock::now();
    for (; seconds_since(begin) < seconds && status.ok(); ++started) {
      const std::uint64_t slot = started % kSlots;
      if (started >= kSlots) status = completions[slot].wait();
      const storage::Read read = {.file = 0,
                                  .offset = next_tile_ * kSlotBytes,
                                  .bytes = kSlotBytes,
                                  .destination = memory_.data() + slot * kSlotBytes};
      backend->submit({&read, 1}, completions[slot]);
      next_tile_ = (next_tile_ + 1) % tiles_;
    }
    for (storage::Completion& completion : completions) {
      if (const Status last = completion.wait(); status.ok()) status = last;
    }
    if (!status.ok()) return status;
    return static_cast<double>(started * kSlotBytes) / seconds_since(begin);
  }

 private:
  std::string path_;
  device::HostBuffer memory_;
  std::uint64_t tiles_ = 0, next_tile_ = 0;
};

/// The best rate over backends and depths, each deepened until it gains no more.
Expected<double> disk_rate(const std::string& path, double seconds) {
  MR_ASSIGN_OR_RETURN(DiskProbe probe, DiskProbe::make(path));
  double best = 0;
  constexpr std::array kinds = {storage::BackendKind::io_uring, storage::BackendKind::pread_direct};
  for (const storage::BackendKind kind : kinds) {
    double before = 0;
    for (const int depth : {4, 8, 16, 32}) {
      // Disks of virtual machines change their rate from one moment to the next.
      const Expected<double> rate = probe.rate(kind, depth, seconds * 0.4);
      if (!rate.ok() && rate.status().code() == Code::unsupported) break;
      if (!rate.ok()) return rate.status();
      best = std::max(best, *rate);
      if (*rate < before * 1.03) break;
      before = *rate;
    }
  }
  if (best > 0) return best;
  log::warn("calibrate: no O_DIRECT on the disk of {}; what is measured may come from the page cache", path);
  return probe.rate(storage::BackendKind::pread_buffered, 8, seconds);
}

}  // namespace

Expected<double> measure_disk(const CalibrateOptions& options) {
  const fs::path path = options.path.empty() ? "." : options.path;
  std::error_code code;
  const bool directory = fs::is_directory(path, code);
  if (!directory && !fs::exists(path, code)) {
    return error(Code::not_found,
                 "{}: no such file or directory; name a model file or a directory on the disk to measure",
                 path.string());
  }
  if (!directory && fs::file_size(path, code) >= kSmallestFile && !code) {
    return disk_rate(path.string(), options.seconds_each);
  }
  const fs::path beside = directory ? path : fs::absolute(path).parent_path();
  MR_ASSIGN_OR_RETURN(const ScratchFile scratch,
                      ScratchFile::make(beside, std::max(options.scratch_bytes, kSmallestFile)));
  return disk_rate(scratch.path(), options.seconds_each);
}

}  // namespace millrace::residency
