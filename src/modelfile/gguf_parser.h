// The reader of one GGUF file's header: metadata and tensor table, from a file or from memory. Private to modelfile/;
// everyone else uses Model in gguf.h.
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf.h"
#include "modelfile/overlay.h"

namespace millrace::modelfile {

/// Types of metadata values as GGUF numbers them.
enum class ValueType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF", read little-endian
constexpr std::uint32_t kDefaultAlignment = 32;
constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr std::string_view kSplitNoKey = "split.no", kSplitCountKey = "split.count",
                           kSplitTensorsKey = "split.tensors.count";

class GgufParser {
 public:
  /// `name`: for messages. The cursor stands at the file's first byte.
  GgufParser(Cursor& cursor, std::string name, const OpenOptions& options)
      : cursor_(cursor), name_(std::move(name)), options_(options) {}

  /// Reads and checks the whole header. Errors: corrupt, unsupported, io_error, each beginning with the name.
  Expected<Model> run();

  /// Opens one file, without looking for its other splits.
  static Expected<Model> open_one(const std::string& path, const OpenOptions& options);

  /// Puts split files, each opened alone and in order, together. Errors: corrupt (counts disagree, duplicate names).
  static Expected<Model> join(std::vector<Model> splits);

  /// As lay_over().
  static Expected<Model> lay_over(Model model, const Model& over, const MayAdd& may_add);

 private:
  Status parse();
  Status parse_magic();
  Status parse_metadata(std::uint64_t count);
  Status parse_tensor(std::uint64_t index);
  Status read_shape(TensorInfo& tensor, const std::string& what, std::int64_t& elements);
  Status check_tensors();
  Status check_outline() const;
  Status check_overlaps() const;
  Expected<std::uint32_t> alignment() const;

  Status read_string(std::string& out, std::string_view what, std::uint64_t most_bytes = UINT64_MAX);
  Status read_name(std::string& out, std::string_view what);
  Status skip_value(ValueType type, const std::string& what);
  Status charge(std::uint64_t bytes);
  Status add_to_outline(const TensorInfo& tensor);
  Status check_count(std::uint64_t count, std::uint64_t smallest_bytes, std::string_view what) const;
  Expected<Value> read_value(ValueType type, const std::string& what, int depth);
  Expected<std::shared_ptr<const Array>> read_array(const std::string& what, int depth);
  Status skip_array(const std::string& what, int depth);
  template <typename T>
  Expected<Value> read_number_value(const std::string& what);
  template <typename T>
  Expected<std::vector<T>> read_numbers(std::uint64_t count, const std::string& what);
  Expected<bool> read_bool(const std::string& what);

  Cursor& cursor_;
  std::string name_;
  OpenOptions options_;
  Model model_;
};

}  // namespace millrace::modelfile
