// Checkpoints as Hugging Face publishes them: a safetensors file, or a folder of such files with an index. Every count,
// offset and length is checked before it is used: a file that lies yields an error that names what is wrong, never a
// crash and never an allocation out of proportion to the file. Only tables are read; bytes stay on the disk.
// Source: the safetensors format (8 bytes of header length, JSON, data). Thread-safety: immutable once opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::modelfile {

/// What an element of a checkpoint's tensor is.
enum class Element : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,  // a power of two alone
  u16,
  i16,
  f16,
  bf16,
  u32,
  i32,
  f32,
  u64,
  i64,
  f64
};

/// "BF16", "F8_E4M3" and so on, as the format spells them.
std::string_view element_name(Element element);
std::int64_t element_bytes(Element element);

/// A tensor's place. Shape as PyTorch has it: the last dimension is contiguous. No dimension: one number.
struct CheckpointTensor {
  std::string name;
  Element element = Element::f32;
  std::vector<std::int64_t> shape;
  int file = 0;              // index into Checkpoint::paths()
  std::uint64_t offset = 0;  // absolute in that file
  std::uint64_t bytes = 0;
  std::int64_t elements() const;
};

/// The table of a checkpoint, over one file or all its shards.
class Checkpoint {
 public:
  /// `path`: a folder, a .safetensors file, or the index of a sharded one. In a folder the index counts before
  /// model.safetensors, and that before a single file of another name.
  /// Errors: not_found (no such file; a shard of the index, named), corrupt (named: header, tensor, offsets),
  /// unsupported (an element type; a folder of PyTorch's pickles), io_error.
  static Expected<Checkpoint> open(const std::string& path);
  /// The same from bytes in memory (fuzzing): a single file whose size is bytes.size().
  static Expected<Checkpoint> parse(std::span<const std::byte> bytes, const std::string& name);
  /// Shards by the names of their tensors, from the text of an index. Errors: corrupt (a file name with a folder in it,
  /// too).
  static Expected<std::map<std::string, std::string, std::less<>>> parse_index(std::string_view json);

  /// Where config.json and the tokenizer lie: the folder of the files. Empty: the working directory.
  const std::string& folder() const { return folder_; }
  const std::vector<std::string>& paths() const { return paths_; }
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }  // by file, then offset
  const CheckpointTensor* find(std::string_view name) const;                 // nullptr if absent
  std::uint64_t tensor_bytes() const;

 private:
  Status add_file(const std::string& path);
  Status add_shards(const std::string& index_path);
  Status add_tensors(std::vector<CheckpointTensor> tensors, int file);

  std::string folder_;
  std::vector<std::string> paths_;
  std::vector<CheckpointTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

}  // namespace millrace::modelfile
