// Writes GGUF v3: metadata and tensor declarations first, then the tensors' bytes as a stream, so that a few MiB of
// memory are enough for a model of any size. Files get their final names only when finish() succeeds; until then they
// are NAME.partial in the same folder, and a writer that fails or is destroyed unfinished removes them.
// Source: the GGUF specification; split files as llama.cpp's gguf-split names and keys them.
// Thread-safety: one thread at a time, except write_range().
//
//   Writer writer("out.gguf");
//   MR_RETURN_IF_ERROR(writer.add("general.architecture", Value(std::string("llama"))));
//   MR_RETURN_IF_ERROR(writer.declare("token_embd.weight", DType::f16, {2048, 32000}));
//   MR_RETURN_IF_ERROR(writer.begin());
//   while (...) MR_RETURN_IF_ERROR(writer.write_tensor_data(piece));
//   MR_RETURN_IF_ERROR(writer.finish());
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "tensor/dtype.h"

namespace millrace::modelfile {

/// A metadata array value from a vector of one of Array's element types.
template <typename T>
Value array_value(std::vector<T> elements) {
  auto array = std::make_shared<Array>();
  array->elements = std::move(elements);
  return Value(std::shared_ptr<const Array>(std::move(array)));
}

struct WriteOptions {
  std::uint32_t alignment = 32;      // of tensor data, a multiple of 8; written as general.alignment unless 32
  std::uint64_t max_file_bytes = 0;  // 0: one file. Otherwise a new file is begun before a tensor that would pass this
                                     // (a tensor is never cut, so a file may hold one larger tensor)
  bool direct = false;               // write_range() may use O_DIRECT
  bool sparse = false;               // unwritten ranges take no disk space, if the file system supports it; otherwise
                                     // all space is reserved at once, so that the disk cannot fill up halfway
};

/// The size in bytes of a tensor's entry in the table.
std::uint64_t entry_bytes(const TensorInfo& tensor);

class Writer {
 public:
  /// `path`: the file to create. If the model is split, "x.gguf" becomes x-00001-of-0000N.gguf and so on. Does not
  /// access the disk.
  explicit Writer(std::string path, WriteOptions options = {});
  ~Writer();
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;

  /// Adds a metadata key; keys are written in this order. The writer sets `split.*` and `general.alignment` itself and
  /// ignores them here, so that a caller can copy a model's metadata key by key. Errors: invalid_argument (duplicate or
  /// empty key, after begin()).
  Status add(std::string key, Value value);

  /// Declares a tensor; data follows in this order. Shape in GGUF's order, 1 to 4 dimensions. Errors: invalid_argument
  /// (duplicate name, bad shape, a row that is not whole blocks, after begin()).
  Status declare(std::string name, DType dtype, std::vector<std::int64_t> shape);

  /// Lays out the files and writes their headers. Errors: io_error (with the system's error and the path).
  Status begin();

  /// Writes the next bytes of the tensors' data, in declared order. A piece may have any size and may span tensors (the
  /// writer adds the padding). Errors: io_error, invalid_argument (more bytes than were declared).
  Status write_tensor_data(std::span<const std::byte> bytes);

  /// An alternative to the stream for programs that write with many threads: writes bytes at an absolute offset of one
  /// file's data section. Concurrent calls are safe; the caller must cover every byte. With `direct`, a piece whose
  /// address, offset and length are multiples of 4096 bypasses the page cache where the file system allows it.
  /// Errors: io_error, invalid_argument (outside the data section).
  Status write_range(int file, std::uint64_t offset, std::span<const std::byte> bytes);

  /// Completes the files and renames them to their final names. Errors: io_error, invalid_argument (bytes are missing;
  /// names their tensor).
  Status finish();

  /// After begin(): each declared tensor with its file index and absolute offset; the files' final names, where each
  /// file's data section begins, and the sizes they will have.
  const std::vector<TensorInfo>& layout() const;
  const std::vector<std::string>& paths() const;
  const std::vector<std::uint64_t>& data_begin() const;
  const std::vector<std::uint64_t>& file_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::modelfile
