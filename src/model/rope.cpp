#include "model/rope.h"

#include <cmath>
#include <cstring>

#include "model/hyperparameters.h"
#include "storage/storage.h"

namespace millrace::model {
namespace {

/// Positions are divided by this. 1 for none.
Expected<double> linear_factor(const modelfile::Model& file) {
  const std::string type_key = arch_key(file, "rope.scaling.type");
  // Files from before the scaling keys carry the factor alone, under another name.
  MR_ASSIGN_OR_RETURN(const double old_factor, file.get_float_or(arch_key(file, "rope.scale_linear"), 1));
  MR_ASSIGN_OR_RETURN(double factor, file.get_float_or(arch_key(file, "rope.scaling.factor"), old_factor));
  std::string type = factor == 1 ? "none" : "linear";
  if (file.has(type_key)) {
    MR_ASSIGN_OR_RETURN(type, file.get_string(type_key));
  }
  if (type == "none") return 1.0;
  if (type != "linear")
    return error(Code::unsupported, "RoPE scaling '{}' ({}): this version knows none, linear and llama-3's factors",
                 type, type_key);
  if (!std::isfinite(factor) || factor <= 0)
    return error(Code::corrupt, "{} is {}, which cannot be", arch_key(file, "rope.scaling.factor"), factor);
  return factor;
}

Expected<std::vector<float>> read_factors(const modelfile::Model& file, const modelfile::TensorInfo& tensor,
                                          std::int64_t size) {
  if (tensor.dtype != DType::f32 || tensor.cols() != size || tensor.rows() != 1)
    return error(Code::corrupt, "{} is {} {} x {} but the hyperparameters ask for F32 {}", tensor.name,
                 info(tensor.dtype).name, tensor.cols(), tensor.rows(), size);
  storage::OpenOptions options;
  options.kind = storage::BackendKind::pread_buffered;
  options.threads = 1;
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<storage::Backend> backend, storage::open_backend(file.paths(), options));
  // Every backend may ask for a destination congruent to the offset, so the vector leaves room to slide in.
  std::vector<std::byte> room(tensor.bytes + 2 * storage::kMaxAlignment);
  const auto base = reinterpret_cast<std::uintptr_t>(room.data());
  const std::uint64_t slide = (tensor.offset - base) % storage::kMaxAlignment;
  const storage::Read read{tensor.file, tensor.offset, tensor.bytes, room.data() + slide};
  storage::Completion done;
  backend->submit(std::span(&read, 1), done);
  MR_RETURN_IF_ERROR(done.wait());
  std::vector<float> factors(static_cast<std::size_t>(size));
  std::memcpy(factors.data(), read.destination, factors.size() * sizeof(float));
  for (const float factor : factors)
    if (!std::isfinite(factor) || factor <= 0)
      return error(Code::corrupt, "{} holds {}, which cannot be a factor", tensor.name, factor);
  return factors;
}

}  // namespace

Expected<std::vector<float>> rope_inverse_frequencies(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(const double factor, linear_factor(file));
  std::vector<float> inverse(static_cast<std::size_t>(hp.rotary / 2));
  for (std::size_t i = 0; i < inverse.size(); ++i)
    inverse[i] = static_cast<float>(
        std::pow(hp.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(hp.rotary)) / factor);
  if (const modelfile::TensorInfo* tensor = file.find("rope_freqs.weight")) {
    MR_ASSIGN_OR_RETURN(const std::vector<float> factors, read_factors(file, *tensor, hp.rotary / 2));
    for (std::size_t i = 0; i < inverse.size(); ++i) inverse[i] /= factors[i];
  }
  return inverse;
}

Expected<RopeSpec> read_rope(const modelfile::Model& file, const Hyperparameters& hp) {
  RopeSpec rope;
  rope.rotary = hp.rotary;
  MR_ASSIGN_OR_RETURN(rope.inv_freq, rope_inverse_frequencies(file, hp));
  return rope;
}

}  // namespace millrace::model
