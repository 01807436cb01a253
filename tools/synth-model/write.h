// A whole synthetic model, from shape to file.
// Thread-safety: a call uses threads of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "synth-model/shapes.h"

namespace millrace::synth {

struct WriteOptions {
  Types types;
  std::uint64_t seed = 1;
  std::uint32_t alignment = 32;
  std::uint64_t max_file_bytes = 0;  // 0: one file
  int threads = 0;                   // 0: one a processor, 16 at most
  bool hollow = false;               // no weights: holes, which take no disk. For plans
};
struct Written {
  std::vector<std::string> paths;
  std::size_t tensors = 0;
  std::uint64_t parameters = 0, bytes = 0;
};

/// Errors: invalid_argument (the shape), those of modelfile::Writer, io_error.
Expected<Written> write(const std::string& path, const Shape& shape, const WriteOptions& options);

}  // namespace millrace::synth
