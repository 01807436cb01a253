// One GGUF model in several files and back: what gguf-split names and keys (-00001-of-0000N, split.no, split.count,
// split.tensors.count). No weight changes; bytes are copied by pieces, and files appear when all of them are whole.
// Thread-safety: functions without shared state.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace::modelfile {

struct CopyOptions {
  /// Called with bytes of tensors copied and in all; last with done == total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
  const std::atomic<bool>* cancel = nullptr;  // polled; the call then ends with `cancelled` and leaves no file
};

/// Writes the model of `in` (any of its splits, or a whole file) as files of `max_file_bytes` at most, "x.gguf" as
/// x-00001-of-0000N.gguf and so on (one file under its own name where that is enough; a tensor is never cut), or as one
/// file with max_file_bytes 0. Returns the files' names. Errors: those of Model::open; invalid_argument (a file of the
/// input would be written over), io_error, cancelled. No error leaves a file.
Expected<std::vector<std::string>> copy_model(const std::string& in, const std::string& out,
                                              std::uint64_t max_file_bytes, const CopyOptions& options = {});

}  // namespace millrace::modelfile
