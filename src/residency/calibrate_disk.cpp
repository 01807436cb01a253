#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/os/file_info.h"
#include "base/os/scratch_file.h"
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
constexpr double kClearly = 1.05;

/// A file of random bytes, which no disk compresses.
Expected<os::ScratchFile> random_file(const std::string& folder, std::uint64_t bytes) {
  auto file = os::ScratchFile::make(folder);
  if (!file.ok())
    return error(Code::io_error, "cannot write a scratch file in {} ({}): name a model file to measure instead", folder,
                 file.status().message());
  std::vector<std::uint64_t> block(kSlotBytes / 8);
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  Status status;
  for (std::uint64_t written = 0; written < bytes && status.ok(); written += kSlotBytes) {
    for (std::uint64_t& word : block) word = next_random(state);
    status = file->write(std::as_bytes(std::span(block)));
  }
  // Where O_DIRECT is refused, what the page cache holds of the file must not be measured.
  if (status.ok()) status = file->flush_to_disk();
  if (!status.ok()) return error(Code::io_error, "writing a scratch file in {} failed: {}", folder, status.message());
  return file;
}

/// Reads files in order, round and round, each measurement where the one before stopped.
class DiskProbe {
 public:
  static Expected<DiskProbe> make(const std::vector<std::string>& paths) {
    DiskProbe probe;
    probe.paths_ = paths;
    for (std::size_t file = 0; file < paths.size(); ++file) {
      std::error_code code;
      const std::uint64_t bytes = fs::file_size(paths[file], code);
      if (code) return error(Code::not_found, "{}: {}", paths[file], code.message());
      for (std::uint64_t at = 0; at + kSlotBytes <= bytes; at += kSlotBytes)
        probe.tiles_.push_back({static_cast<int>(file), at});
    }
    if (probe.tiles_.empty()) return error(Code::not_found, "{}: too small to measure a disk with", paths.front());
    MR_ASSIGN_OR_RETURN(probe.memory_, device::HostBuffer::reserve(kSlots * kSlotBytes, device::Pages::huge));
    std::memset(probe.memory_.data(), 1, probe.memory_.bytes());
    return probe;
  }

  /// Bytes per second with this backend. Errors: unsupported where it is not offered.
  Expected<double> rate(const storage::OpenOptions& how, double seconds, std::uint64_t most_bytes = UINT64_MAX) {
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<storage::Backend> backend, storage::open_backend(paths_, how));
    std::array<storage::Completion, kSlots> completions;
    std::uint64_t started = 0;
    Status status;
    const auto begin = Clock::now();
    for (; seconds_since(begin) < seconds && (started + 1) * kSlotBytes <= most_bytes && status.ok(); ++started) {
      const std::uint64_t slot = started % kSlots;
      if (started >= kSlots) status = completions[slot].wait();
      const storage::Read read = next(slot, kSlotBytes);
      backend->submit({&read, 1}, completions[slot]);
    }
    for (storage::Completion& completion : completions) {
      if (const Status last = completion.wait(); status.ok()) status = last;
    }
    if (!status.ok()) return status;
    return static_cast<double>(started * kSlotBytes) / seconds_since(begin);
  }

  /// What a read of a few blocks takes alone beyond its bytes at `rate`: the middle one of those that `seconds` have
  /// room for.
  Expected<double> latency(const storage::OpenOptions& how, double rate, double seconds) {
    constexpr std::uint64_t kSmall = 128 * kKiB;
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<storage::Backend> backend, storage::open_backend(paths_, how));
    std::vector<double> times;
    for (const auto begin = Clock::now(); times.size() < 5 || seconds_since(begin) < seconds;) {
      const storage::Read read = next(times.size() % kSlots, kSmall);
      storage::Completion completion;
      const auto start = Clock::now();
      backend->submit({&read, 1}, completion);
      MR_RETURN_IF_ERROR(completion.wait());
      times.push_back(seconds_since(start));
    }
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    constexpr double kLeast = 1e-6;  // 0 is "not measured"
    return std::max(kLeast, *middle - static_cast<double>(kSmall) / rate);
  }

 private:
  struct Place {
    int file = 0;
    std::uint64_t offset = 0;
  };
  storage::Read next(std::uint64_t slot, std::uint64_t bytes) {
    const Place place = tiles_[next_tile_];
    next_tile_ = (next_tile_ + 1) % tiles_.size();
    return {
        .file = place.file, .offset = place.offset, .bytes = bytes, .destination = memory_.data() + slot * kSlotBytes};
  }

  std::vector<std::string> paths_;
  device::HostBuffer memory_;
  std::vector<Place> tiles_;
  std::size_t next_tile_ = 0;
};

storage::OpenOptions open_with(storage::BackendKind kind, int depth) {
  storage::OpenOptions options;
  options.kind = kind;
  options.threads = options.queue_depth = depth;
  return options;
}

/// The best rate over backends and depths, each deepened until it gains no more.
Expected<DiskRates> disk_rates(const std::string& path, double seconds) {
  MR_ASSIGN_OR_RETURN(DiskProbe probe, DiskProbe::make({path}));
  DiskRates best;
  storage::OpenOptions with = open_with(storage::BackendKind::pread_buffered, 8);
  for (const storage::BackendKind kind : storage::uncached_kinds()) {
    // DirectStorage copies on its way: what it gains has to show beyond what rates differ by from one run to the next.
    const bool directstorage = kind == storage::BackendKind::directstorage;
    const double needed = best.bytes_per_second * (directstorage ? kClearly : 1);
    double before = 0;
    for (const int depth : {4, 8, 16, 32}) {
      // Disks of virtual machines change their rate from one moment to the next.
      const Expected<double> rate = probe.rate(open_with(kind, depth), seconds * 0.4);
      if (!rate.ok() && rate.status().code() == Code::unsupported) break;
      if (!rate.ok()) return rate.status();
      if (*rate > std::max(needed, best.bytes_per_second)) {
        best.bytes_per_second = *rate, with = open_with(kind, depth);
        if (directstorage) best.directstorage = *rate;
      }
      if (*rate < before * 1.03) break;
      before = *rate;
    }
  }
  if (best.bytes_per_second <= 0) {
    log::warn("calibrate: no O_DIRECT on the disk of {}; what is measured may come from the page cache", path);
    MR_ASSIGN_OR_RETURN(best.bytes_per_second, probe.rate(with, seconds));
  }
  MR_ASSIGN_OR_RETURN(best.latency_seconds, probe.latency(with, best.bytes_per_second, seconds * 0.2));
  return best;
}

/// Bytes that no disk holds: a file written to be planned with, or one that is still coming.
Status check_no_holes(const std::string& path) {
  const auto info = os::file_info(path);
  if (!info.ok()) return error(Code::not_found, "{}: {}", path, info.status().message());
  if (info->disk_bytes >= info->bytes / 10 * 9) return {};
  return error(
      Code::unsupported,
      "{}: most of the file is holes, and reading those does not measure the disk; name another file or a folder",
      path);
}

}  // namespace

Expected<DiskRates> measure_disk_briefly(const std::vector<std::string>& paths, const storage::OpenOptions& how,
                                         double seconds, std::uint64_t most_bytes) {
  constexpr double kForRate = 0.8;
  for (const std::string& path : paths) MR_RETURN_IF_ERROR(check_no_holes(path));
  MR_ASSIGN_OR_RETURN(DiskProbe probe, DiskProbe::make(paths));
  DiskRates rates;
  MR_ASSIGN_OR_RETURN(rates.bytes_per_second, probe.rate(how, kForRate * seconds, most_bytes));
  MR_ASSIGN_OR_RETURN(rates.latency_seconds, probe.latency(how, rates.bytes_per_second, (1 - kForRate) * seconds));
  return rates;
}

Expected<DiskRates> measure_disk(const CalibrateOptions& options) {
  const fs::path path = options.path.empty() ? "." : options.path;
  std::error_code code;
  const bool directory = fs::is_directory(path, code);
  if (!directory && !fs::exists(path, code)) {
    return error(Code::not_found,
                 "{}: no such file or directory; name a model file or a directory on the disk to measure",
                 path.string());
  }
  if (!directory && fs::file_size(path, code) >= kSmallestFile && !code) {
    return disk_rates(path.string(), options.seconds_each);
  }
  const fs::path beside = directory ? path : fs::absolute(path).parent_path();
  MR_ASSIGN_OR_RETURN(const os::ScratchFile scratch,
                      random_file(beside.string(), std::max(options.scratch_bytes, kSmallestFile)));
  return disk_rates(scratch.path(), options.seconds_each);
}

}  // namespace millrace::residency
