// The disk's part of calibrate() (calibrate_disk.cpp), and the clock of both. Thread-safety: one thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/status.h"
#include "residency/calibrate.h"
#include "storage/storage.h"

namespace millrace::residency {

using Clock = std::chrono::steady_clock;

/// What a disk gives.
struct DiskRates {
  double bytes_per_second = 0;  // of large reads, as many at once as are good
  double latency_seconds = 0;   // of one small read alone: what it takes beyond its bytes at that rate
  double directstorage = 0;     // bytes_per_second again, where DirectStorage is clearly the faster way; else 0
};

/// Of the disk of options.path: of the file there, or of a scratch file beside it. Errors: not_found, io_error.
Expected<DiskRates> measure_disk(const CalibrateOptions& options);

/// The same in at most about `seconds`, by the model's own files, read as its engine reads them, and no more than
/// `most_bytes` of them. Errors: those of open_backend and of its reads; unsupported where the files have holes, which
/// no disk is asked for.
Expected<DiskRates> measure_disk_briefly(const std::vector<std::string>& paths, const storage::OpenOptions& how,
                                         double seconds, std::uint64_t most_bytes);

}  // namespace millrace::residency
