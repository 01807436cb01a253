// Reads GGUF v2 and v3. Every count, offset and length is checked against the file before it is used: a malformed file
// yields an error that names the fault, never a crash, and never an allocation out of proportion to the file.
// Source: the GGUF specification (little-endian). Thread-safety: immutable once opened.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/work_grant.h"
#include "tensor/dtype.h"

namespace millrace::modelfile {

struct Array;
using Value = std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float,
                           bool, std::string, std::uint64_t, std::int64_t, double, std::shared_ptr<const Array>>;

/// A metadata array: elements of one type, stored packed (a vocabulary has 150,000 strings).
struct Array {
  std::variant<std::vector<std::uint8_t>, std::vector<std::int8_t>, std::vector<std::uint16_t>,
               std::vector<std::int16_t>, std::vector<std::uint32_t>, std::vector<std::int32_t>, std::vector<float>,
               std::vector<bool>, std::vector<std::string>, std::vector<std::uint64_t>, std::vector<std::int64_t>,
               std::vector<double>, std::vector<std::shared_ptr<const Array>>>
      elements;
  std::size_t size() const;
};

/// Where a tensor is stored. Shape in GGUF's order: shape[0] is the row length (contiguous), shape[1] the number of
/// rows, and so on.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  int file = 0;              // index into Model::paths()
  std::uint64_t offset = 0;  // absolute in that file
  std::uint64_t bytes = 0;
  std::int64_t cols() const { return shape.empty() ? 0 : shape[0]; }
  std::int64_t rows() const;  // product of the other dimensions
};

struct OpenOptions {
  // Skips the arrays tokenizer.ggml.{tokens,scores,token_type,merges}, which matter in a budget of 6 MB.
  bool skip_vocabulary = false;
  // Skips all arrays and keeps only totals of the tensors, which is enough for a list of models. Without tensor names,
  // duplicates and overlaps are not detected.
  bool outline = false;
  // Skips keys for which this returns false. Empty: reads all keys.
  std::function<bool(std::string_view key)> wanted = {};
  // Charged for the model's memory before it is allocated; must outlive the model. Null: the file's size is the limit.
  GrantedBytes* memory = nullptr;
};

/// A model's metadata and tensor table, over one file or all its splits.
class Model {
 public:
  /// `path`: a .gguf file; any split of -00001-of-0000N opens all. Errors: not_found (a missing split is named),
  /// corrupt, unsupported (a version or dtype, named), out_of_budget (options.memory grants too little).
  static Expected<Model> open(const std::string& path, const OpenOptions& options = {});
  /// The same from bytes in memory (fuzzing): a single file whose size is bytes.size().
  static Expected<Model> parse(std::span<const std::byte> bytes, const std::string& name);

  const std::vector<std::string>& paths() const { return paths_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, Value, std::less<>>& metadata() const { return metadata_; }
  std::uint32_t version() const { return version_; }
  std::uint64_t file_bytes() const { return file_bytes_; }  // all splits
  std::uint64_t tensor_bytes() const;
  std::uint64_t elements() const;                        // of all tensors; also of an outline
  std::map<DType, std::uint64_t> bytes_by_type() const;  // likewise

  const TensorInfo* find(std::string_view name) const;               // nullptr if absent
  Expected<const TensorInfo*> require(std::string_view name) const;  // not_found names the tensor

  /// Typed look-ups. Integers of any width convert if the value fits. Errors: not_found, corrupt (wrong type, named).
  Expected<std::int64_t> get_int(std::string_view key) const;
  Expected<double> get_float(std::string_view key) const;
  Expected<bool> get_bool(std::string_view key) const;
  Expected<std::string> get_string(std::string_view key) const;
  Expected<std::vector<std::string>> get_strings(std::string_view key) const;
  Expected<std::vector<float>> get_floats(std::string_view key) const;
  /// Booleans are 0 and 1.
  Expected<std::vector<std::int64_t>> get_ints(std::string_view key) const;
  bool has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }
  /// The value, or `fallback` if the key is absent; a value of the wrong type is still an error.
  Expected<std::int64_t> get_int_or(std::string_view key, std::int64_t fallback) const;
  Expected<double> get_float_or(std::string_view key, double fallback) const;
  Expected<bool> get_bool_or(std::string_view key, bool fallback) const;

 private:
  friend class GgufParser;
  std::vector<std::string> paths_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, Value, std::less<>> metadata_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::uint32_t version_ = 3;
  std::uint64_t file_bytes_ = 0;
  struct Totals {  // of an outline's tensors
    std::int64_t tensors = 0;
    std::uint64_t elements = 0, last_byte = 0;
    std::map<DType, std::uint64_t> bytes;
  };
  Totals totals_;
};

}  // namespace millrace::modelfile
