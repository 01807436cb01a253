#include "app/measure/model_mixture.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/bytes.h"
#include "modelfile/quantize.h"

namespace millrace::measure {
namespace {

constexpr std::uint64_t kAlignment = 32;  // of a tensor in its file

/// All that a quantized file holds but the groups: header, padding, and what becomes float32 or stays.
std::uint64_t other_bytes(const modelfile::Model& model, const std::vector<Group>& groups) {
  std::set<std::string_view> grouped;
  for (const Group& group : groups)
    for (const modelfile::TensorInfo* tensor : group.tensors) grouped.insert(tensor->name);
  std::uint64_t bytes = model.file_bytes() - model.tensor_bytes() + kAlignment * model.tensors().size();
  for (const modelfile::TensorInfo& tensor : model.tensors()) {
    if (grouped.contains(tensor.name)) continue;
    const DType dtype = modelfile::choose_dtype(modelfile::QuantizeType::q8_0, tensor, {});
    bytes += static_cast<std::uint64_t>(tensor.rows() * row_bytes(dtype, tensor.cols()));
  }
  return bytes;
}

}  // namespace

Expected<std::vector<std::vector<MixtureOption>>> mixture_options(const modelfile::Model& model,
                                                                  const Sensitivity* sensitivity,
                                                                  std::span<const DType> types, ThreadPool& pool) {
  std::vector<std::vector<MixtureOption>> options;
  std::span<const DType> measured = sensitivity != nullptr ? std::span(sensitivity->types) : types;
  for (const Group& group : groups_of(model)) {
    std::uint64_t own_bytes = 0;
    for (const modelfile::TensorInfo* tensor : group.tensors) own_bytes += tensor->bytes;
    // What takes as many bits as the file has is no choice: the file's own weights lose nothing.
    std::vector<MixtureOption>& of_group = options.emplace_back();
    of_group.push_back({group.tensors.front()->dtype, own_bytes, 0});
    const GroupSensitivity* known = nullptr;
    if (sensitivity != nullptr) {
      const auto is_it = [&](const GroupSensitivity& one) { return one.name == group.name; };
      const auto place = std::find_if(sensitivity->groups.begin(), sensitivity->groups.end(), is_it);
      if (place == sensitivity->groups.end() || place->tensors.size() != group.tensors.size())
        return error(Code::invalid_argument, "the sensitivity is of another model: it knows no {} of {} tensors",
                     group.name, group.tensors.size());
      known = &*place;
    }
    for (std::size_t t = 0; t < measured.size(); ++t) {
      const std::uint64_t bytes = bytes_as(group, measured[t]);
      if (bytes >= own_bytes) continue;
      double divergence = 0;
      if (known != nullptr) {
        divergence = known->divergence[t];
      } else {
        MR_ASSIGN_OR_RETURN(divergence, rounding_error(model, group, measured[t], pool));
      }
      of_group.push_back({measured[t], bytes, divergence});
    }
  }
  return options;
}

Expected<ModelMixture> best_mixture(const modelfile::Model& model, const Sensitivity* sensitivity,
                                    std::span<const DType> types, std::uint64_t most_bytes, ThreadPool& pool) {
  MR_ASSIGN_OR_RETURN(const auto options, mixture_options(model, sensitivity, types, pool));
  const std::vector<Group> groups = groups_of(model);
  ModelMixture mixture;
  mixture.file_bytes = other_bytes(model, groups);
  const std::uint64_t left = most_bytes - std::min(most_bytes, mixture.file_bytes);
  auto chosen = choose_mixture(options, left);
  if (!chosen.ok())
    return chosen.status().with_context(
        fmt::format("of {}, {} are not the matrices'", format_bytes(most_bytes), format_bytes(most_bytes - left)));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const MixtureOption& option = options[g][(*chosen)[g]];
    mixture.file_bytes += option.bytes;
    mixture.divergence += option.divergence;
    mixture.groups.emplace_back(groups[g].name, option.dtype);
    for (const modelfile::TensorInfo* tensor : groups[g].tensors)
      mixture.types.emplace_back(tensor->name, (*chosen)[g] == 0 ? tensor->dtype : fitting(*tensor, option.dtype));
  }
  return mixture;
}

}  // namespace millrace::measure
