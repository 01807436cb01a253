// The JSON at the front of a safetensors file, read event by event: tables of 100,000 tensors take no tree in memory.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/safetensors.h"

namespace millrace::modelfile {

/// The longest header that is read: what the format's own library reads.
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

/// The tensors of a header, by offset; `data_begin` is where offsets count from, `file_bytes` the file's size.
/// Errors: corrupt (no such JSON; a tensor that is there twice, that lies about its shape, that overlaps another or
/// ends behind the file, named), unsupported (an element type, named).
Expected<std::vector<CheckpointTensor>> parse_header(std::string_view json, std::uint64_t data_begin,
                                                     std::uint64_t file_bytes);

}  // namespace millrace::modelfile
