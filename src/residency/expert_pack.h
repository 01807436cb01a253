// A pack is a copy of a model's experts, each in one piece. In a GGUF file, an expert's gate, up and down are in three
// tensors, which takes three reads; in a pack it takes one. The user creates a pack (`millrace pack`), and it is used
// only if reading from it was measured to be faster.
//
// One file, or several (stripes) in folders on several disks, over which experts go in turns. Each begins with a
// header:
//   "MRPACK01" | identity of the model, 32 characters | stripes u32 | number of this one u32 | experts u64 |
//   bytes of the file u64 | and in the first one: a checksum (XXH3, 64 bits) of each expert u64, then each further
//   file's path as its length u32 and its bytes | checksum of all that u64; little-endian, padded to whole blocks of
//   4096
// Experts follow in the order of their units: each on a block of its own, its parts in order, each on 32 bytes.
// Where they lie follows from the units, so that no offset is read from the file.
//
// Each expert is verified against its checksum when it is first read; a damaged pack fails the request and never gives
// wrong tokens. Thread-safety: open() and write_pack() are pure; only the store calls check().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "residency/unit.h"

namespace millrace::residency {

struct PackWriting {
  std::vector<std::string> folders;  // of further stripes
  /// Bytes written, of all; false cancels. May be empty.
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress;
};
/// Writes a pack of the experts of `units`, whose parts lie in `files`, to `path` and one file in each folder: aside,
/// and put in place when whole. identity: of the model, 32 characters. Errors: unsupported (no experts), io_error,
/// cancelled, invalid_argument (a file of the model would be written over).
Status write_pack(const std::string& path, const UnitTable& units, const std::vector<std::string>& files,
                  std::string_view identity, const PackWriting& writing);

class ExpertPack {
 public:
  /// Checks the headers against the model and the files' sizes. Errors: not_found, io_error, corrupt (damaged: what),
  /// invalid_argument (stale: made for another model); all name the file and what to do.
  static Expected<std::unique_ptr<ExpertPack>> open(const std::string& path, const UnitTable& units,
                                                    std::string_view identity);

  /// Its files, behind those of the model.
  const std::vector<std::string>& paths() const { return paths_; }
  /// The same units with their experts in the pack, cut at `tile_bytes`; the pack's files are numbered from first_file.
  UnitTable moved(const UnitTable& units, std::uint64_t tile_bytes, int first_file) const;
  /// Holds an expert's bytes, just read into a slot of `units` (made by moved()), to their checksum, where that has not
  /// been done before. REQUIRES: the tile is a whole expert. Errors: corrupt (which file, which expert).
  Status check(const UnitTable& units, std::int32_t tile, const std::byte* slot);

 private:
  ExpertPack() = default;
  std::vector<std::string> paths_;
  std::vector<std::uint64_t> checksums_;  // by expert
  std::vector<std::int32_t> number_of_;   // by unit: which expert it is; -1: none
  std::vector<bool> checked_;             // by expert
};

}  // namespace millrace::residency
