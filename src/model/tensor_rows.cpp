#include "model/tensor_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "storage/storage.h"
#include "tensor/codec.h"
#include "tensor/dtype.h"

namespace millrace::model {

namespace {

/// Rows as they lie in the file.
struct RawRows {
  std::vector<std::byte> room;  // and some more
  const std::byte* data = nullptr;
};

Expected<RawRows> read_raw(const modelfile::Model& file, const modelfile::TensorInfo& tensor, std::int64_t first,
                           std::int64_t count) {
  storage::OpenOptions options;
  options.kind = storage::BackendKind::pread_buffered;
  options.threads = 1;
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<storage::Backend> backend, storage::open_backend(file.paths(), options));
  const auto stride = static_cast<std::uint64_t>(row_bytes(tensor.dtype, tensor.cols()));
  const std::uint64_t offset = tensor.offset + static_cast<std::uint64_t>(first) * stride;
  const std::uint64_t bytes = static_cast<std::uint64_t>(count) * stride;
  // Every backend may ask for a destination congruent to the offset, so the vector leaves room to slide in.
  RawRows rows;
  rows.room.resize(bytes + 2 * storage::kMaxAlignment);
  const auto base = reinterpret_cast<std::uintptr_t>(rows.room.data());
  const storage::Read read{tensor.file, offset, bytes, rows.room.data() + (offset - base) % storage::kMaxAlignment};
  storage::Completion done;
  backend->submit(std::span(&read, 1), done);
  MR_RETURN_IF_ERROR(done.wait());
  rows.data = read.destination;
  return rows;
}

}  // namespace

Expected<std::vector<float>> read_rows(const modelfile::Model& file, const modelfile::TensorInfo& tensor,
                                       std::int64_t first, std::int64_t count) {
  if (!info(tensor.dtype).computable)
    return error(Code::unsupported, "{} is {}, which cannot be computed with", tensor.name, info(tensor.dtype).name);
  MR_ASSIGN_OR_RETURN(const RawRows raw, read_raw(file, tensor, first, count));
  std::vector<float> rows(static_cast<std::size_t>(count * tensor.cols()));
  const std::int64_t stride = row_bytes(tensor.dtype, tensor.cols());
  for (std::int64_t row = 0; row < count; ++row)
    decode_row(tensor.dtype, raw.data + row * stride, tensor.cols(), rows.data() + row * tensor.cols());
  return rows;
}

Expected<std::vector<std::int64_t>> read_integers(const modelfile::Model& file, const modelfile::TensorInfo& tensor) {
  if (tensor.dtype != DType::i64 || tensor.rows() != 1)
    return error(Code::corrupt, "{} is no vector of I64", tensor.name);
  MR_ASSIGN_OR_RETURN(const RawRows raw, read_raw(file, tensor, 0, 1));
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(tensor.cols()));
  std::memcpy(numbers.data(), raw.data, numbers.size() * sizeof(std::int64_t));
  return numbers;
}

Status check_scales(const modelfile::Model& file) {
  std::vector<modelfile::File> files;
  std::vector<float> scales;
  for (const modelfile::TensorInfo& tensor : file.tensors()) {
    if (!tensor.name.ends_with(".scale") || tensor.dtype != DType::f32) continue;
    if (files.empty()) {
      MR_ASSIGN_OR_RETURN(files, modelfile::open_files(file.paths()));
    }
    scales.resize(tensor.bytes / sizeof(float));
    MR_RETURN_IF_ERROR(
        files[static_cast<std::size_t>(tensor.file)].read_at(tensor.offset, std::as_writable_bytes(std::span(scales))));
    if (!std::all_of(scales.begin(), scales.end(), [](float scale) { return std::isfinite(scale); }))
      return error(Code::corrupt, "{} holds a number that is not finite; fetch the file again",
                   modelfile::escape(tensor.name, 80));
  }
  return {};
}

}  // namespace millrace::model
