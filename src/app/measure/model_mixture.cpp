#include "app/measure/model_mixture.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "base/bytes.h"
#include "modelfile/quantize.h"

namespace millrace::measure {
namespace {

// What quantizing adds to a header that lacks them: general.file_type and general.quantization_version.
constexpr std::uint64_t kAddedKeys = 33 + 44;

/// Metadata and tensor table of the quantized file, which has the input's but for two numbers.
std::uint64_t header_bytes(const modelfile::Model& model) {
  if (model.paths().size() > 1) return model.file_bytes() - model.tensor_bytes();
  std::uint64_t first = model.file_bytes();
  for (const modelfile::TensorInfo& tensor : model.tensors()) first = std::min(first, tensor.offset);
  const bool has_keys = model.has("general.file_type") && model.has("general.quantization_version");
  return has_keys ? first : round_up(first + kAddedKeys, kTensorAlignment);
}

/// All that the quantized file holds but the groups: header, and tensors that become float32 or stay.
std::uint64_t other_bytes(const modelfile::Model& model, const std::vector<Group>& groups) {
  std::set<std::string_view> grouped;
  for (const Group& group : groups)
    for (const modelfile::TensorInfo* tensor : group.tensors) grouped.insert(tensor->name);
  std::uint64_t bytes = header_bytes(model);
  for (const modelfile::TensorInfo& tensor : model.tensors())
    if (!grouped.contains(tensor.name))
      bytes += file_bytes_as(tensor, modelfile::choose_dtype(modelfile::QuantizeType::q8_0, tensor, {}));
  return bytes;
}

}  // namespace

Expected<std::vector<std::vector<MixtureOption>>> mixture_options(const modelfile::Model& model,
                                                                  const Sensitivity* sensitivity,
                                                                  std::span<const DType> types, ThreadPool& pool) {
  std::vector<std::vector<MixtureOption>> options;
  std::span<const DType> measured = sensitivity != nullptr ? std::span(sensitivity->types) : types;
  std::map<std::string_view, const GroupSensitivity*> by_name;
  if (sensitivity != nullptr)
    for (const GroupSensitivity& one : sensitivity->groups) by_name.emplace(one.name, &one);
  for (const Group& group : groups_of(model)) {
    std::uint64_t own_bytes = 0;
    for (const modelfile::TensorInfo* tensor : group.tensors) own_bytes += file_bytes_as(*tensor, tensor->dtype);
    // What takes as many bits as the file has is no choice: the file's own weights lose nothing.
    std::vector<MixtureOption>& of_group = options.emplace_back();
    of_group.push_back({group.tensors.front()->dtype, own_bytes, 0});
    const GroupSensitivity* known = nullptr;
    if (sensitivity != nullptr) {
      const auto place = by_name.find(group.name);
      if (place == by_name.end() || place->second->tensors.size() != group.tensors.size())
        return error(Code::invalid_argument, "the sensitivity is of another model: it knows no {} of {} tensors",
                     group.name, group.tensors.size());
      known = place->second;
    }
    for (std::size_t t = 0; t < measured.size(); ++t) {
      const std::uint64_t bytes = bytes_as(group, measured[t]);
      if (bytes >= own_bytes) continue;
      double divergence = 0;
      if (known != nullptr) {
        divergence = known->divergence[t];
      } else {
        // A layer's mixer, its feed-forward and the head count alike, as figures of real models nearly have them; the
        // first two are two groups each.
        MR_ASSIGN_OR_RETURN(divergence, rounding_error(model, group, measured[t], pool));
        if (group.name.starts_with("blk.")) divergence /= 2;
      }
      of_group.push_back({measured[t], bytes, divergence});
    }
  }
  return options;
}

Expected<ModelMixture> best_mixture(const modelfile::Model& model, const Sensitivity* sensitivity,
                                    std::span<const DType> types, const MixtureLimits& limits, ThreadPool& pool) {
  MR_ASSIGN_OR_RETURN(const auto options, mixture_options(model, sensitivity, types, pool));
  const std::vector<Group> groups = groups_of(model);
  ModelMixture mixture;
  mixture.file_bytes = other_bytes(model, groups);
  MixtureLimits left = limits;
  left.bytes -= std::min(limits.bytes, mixture.file_bytes);
  auto chosen = choose_mixture(options, left);
  if (!chosen.ok() && limits.bytes < UINT64_MAX)
    return chosen.status().with_context(fmt::format("of {}, {} are not the matrices'", format_bytes(limits.bytes),
                                                    format_bytes(limits.bytes - left.bytes)));
  if (!chosen.ok()) return chosen.status();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const MixtureOption& option = options[g][(*chosen)[g]];
    mixture.file_bytes += option.bytes;
    mixture.divergence += option.divergence;
    mixture.groups.emplace_back(groups[g].name, option.dtype);
    for (const modelfile::TensorInfo* tensor : groups[g].tensors)
      mixture.types.emplace_back(
          tensor->name, (*chosen)[g] == 0 ? tensor->dtype : modelfile::fitting_dtype(option.dtype, tensor->cols()));
  }
  return mixture;
}

}  // namespace millrace::measure
