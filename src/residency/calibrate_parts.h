// The disk's part of calibrate() (calibrate_disk.cpp), and the clock of both. Thread-safety: one thread.
#pragma once

#include <chrono>

#include "base/status.h"
#include "residency/calibrate.h"

namespace millrace::residency {

using Clock = std::chrono::steady_clock;

/// Bytes per second that the disk of options.path gives: of the file there, or of a scratch file beside it. Errors:
/// not_found, io_error.
Expected<double> measure_disk(const CalibrateOptions& options);

}  // namespace millrace::residency
