// Recognises a checkpoint's tensors of integers with scales, and their layouts:
//   MLX                NAME.weight in words, NAME.scales, NAME.biases. "quantization" in config.json has bits and
//                      groups, also for single matrices; with mode "mxfp4", scales are exponents
//   GPTQ               NAME.qweight, NAME.qzeros, NAME.scales, NAME.g_idx, all but the last transposed
//   AWQ                the same without g_idx, with interleaved rows
//   compressed-tensors NAME.weight_packed with NAME.weight_shape, or NAME.weight of int8; NAME.weight_scale,
//                      optionally NAME.weight_zero_point and NAME.weight_g_idx
// Thread-safety: immutable once made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "convert/config.h"
#include "convert/stored.h"
#include "modelfile/file_io.h"
#include "modelfile/safetensors.h"

namespace millrace::convert {

class IntegerLayouts {
 public:
  /// The arguments outlive the object.
  IntegerLayouts(const modelfile::Checkpoint& checkpoint, const std::vector<modelfile::File>& files,
                 const Config& config)
      : checkpoint_(checkpoint), files_(files), config_(config) {}

  /// Reads the quantization of the whole checkpoint from config.json. Errors: unsupported (a quant_method, or a variant
  /// of one), corrupt.
  Status check_config();

  /// True if the tensor is part of another: scales, zeros, or an all-zero bias of a GPTQ matrix. Errors: io_error.
  Expected<bool> is_beside(const modelfile::CheckpointTensor& tensor) const;

  /// nullopt: the tensor does not hold a matrix of integers. Errors: corrupt (a shape, a missing tensor, named),
  /// unsupported.
  Expected<std::optional<NamedTensor>> read(const modelfile::CheckpointTensor& tensor) const;

 private:
  struct Grouping {
    std::int64_t bits = 4, columns = 64;
    std::string mode;
  };
  using Tensor = modelfile::CheckpointTensor;

  bool has(std::string_view stem, std::string_view suffix) const;
  Expected<const Tensor*> beside(const Tensor& tensor, std::string_view stem, std::string_view suffix) const;
  const modelfile::File& file_of(const Tensor& tensor) const { return files_[static_cast<std::size_t>(tensor.file)]; }
  Packed packed(const Tensor& tensor, WordOrder order) const;
  Expected<GroupFloats> floats(const Tensor& tensor, std::span<const std::int64_t> shape, bool turned) const;
  Expected<std::vector<std::int64_t>> whole_numbers(const Tensor& tensor, std::int64_t count) const;
  Expected<bool> is_filled_with(const Tensor& tensor, std::uint32_t word) const;

  Expected<Grouping> grouping_of(std::string_view stem) const;
  Expected<NamedTensor> read_mlx(const Tensor& tensor, std::string_view stem) const;
  Expected<NamedTensor> read_mlx_mxfp4(const Tensor& tensor, std::string_view stem) const;
  Expected<NamedTensor> read_gptq(const Tensor& tensor, std::string_view stem) const;
  Expected<NamedTensor> read_awq(const Tensor& tensor, std::string_view stem) const;
  Expected<NamedTensor> read_packed(const Tensor& tensor, std::string_view stem) const;
  Expected<NamedTensor> read_int8(const Tensor& tensor, std::string_view stem) const;
  Status set_scales_of_rows(const Tensor& tensor, std::string_view stem, Integers& integers) const;
  Status set_zeros_of_rows(const Tensor& tensor, std::string_view stem, Integers& integers) const;
  Status set_groups(const Tensor& g_idx, Integers& integers) const;

  const modelfile::Checkpoint& checkpoint_;
  const std::vector<modelfile::File>& files_;
  const Config& config_;
  std::string method_;
  std::int64_t bits_ = 4;
  bool zeros_are_one_less_ = true, may_be_symmetric_ = true;
};

}  // namespace millrace::convert
