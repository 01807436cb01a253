// Writes safetensors files: declarations first, then bytes at their places by as many threads as like. Shards and the
// index that names them are written into a folder that the caller renames when all is well.
// Source: the safetensors format. Thread-safety: one thread at a time, except write().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "modelfile/file_io.h"
#include "modelfile/safetensors.h"

namespace millrace::modelfile {

class CheckpointWriter {
 public:
  /// Files go into `folder`, which exists. `max_shard_bytes`: a new file is begun before a tensor that would pass it.
  CheckpointWriter(std::string folder, std::uint64_t max_shard_bytes);

  /// Errors: invalid_argument (after begin(), a name twice).
  Status declare(std::string name, Element element, std::vector<std::int64_t> shape);
  /// Creates the files and writes their headers, and the index where there are several. Errors: io_error.
  Status begin();
  /// Bytes of the declared tensor `index` at an offset in it. Errors: io_error.
  Status write(std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes) const;
  /// What was written has reached the disk. Errors: io_error.
  Status finish() const;

  std::size_t shards() const { return files_.size(); }
  std::uint64_t bytes() const { return bytes_; }  // of all tensors

 private:
  Status write_index() const;
  std::string file_name(std::size_t shard, std::size_t shards) const;

  const std::string folder_;
  const std::uint64_t max_shard_bytes_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<File> files_;
  std::uint64_t bytes_ = 0;
};

}  // namespace millrace::modelfile
