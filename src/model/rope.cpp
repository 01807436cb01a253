#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/hyperparameters.h"
#include "model/tensor_rows.h"
#include "modelfile/escape.h"

namespace millrace::model {
namespace {

enum class Scaling : std::uint8_t { none, linear, yarn, longrope };

/// Which scaling, and by what positions are divided.
struct Stretch {
  Scaling scaling = Scaling::none;
  double factor = 1;
};

Expected<Stretch> read_stretch(const modelfile::Model& file) {
  const std::string type_key = arch_key(file, "rope.scaling.type");
  // Files from before the scaling keys carry the factor alone, under another name.
  MR_ASSIGN_OR_RETURN(const double old_factor, file.get_float_or(arch_key(file, "rope.scale_linear"), 1));
  Stretch stretch;
  MR_ASSIGN_OR_RETURN(stretch.factor, file.get_float_or(arch_key(file, "rope.scaling.factor"), old_factor));
  std::string type = stretch.factor == 1 ? "none" : "linear";
  if (file.has(type_key)) {
    MR_ASSIGN_OR_RETURN(type, file.get_string(type_key));
  }
  constexpr std::pair<std::string_view, Scaling> kKnown[] = {
      {"none", Scaling::none}, {"linear", Scaling::linear}, {"yarn", Scaling::yarn}, {"longrope", Scaling::longrope}};
  const auto* known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const auto& k) { return k.first == type; });
  if (known == std::end(kKnown))
    return error(Code::unsupported, "RoPE scaling '{}' ({}): this version knows none, linear, yarn and longrope",
                 modelfile::escape(type, 80), type_key);
  stretch.scaling = known->second;
  if (stretch.scaling == Scaling::none) stretch.factor = 1;
  if (!std::isfinite(stretch.factor) || stretch.factor <= 0)
    return error(Code::corrupt, "{} is {}, which cannot be", arch_key(file, "rope.scaling.factor"), stretch.factor);
  return stretch;
}

/// YaRN: slow channels are divided by the factor, fast ones (which turn more than beta_fast times over the original
/// context) left alone, those between blended; scores grow with the factor.
Status apply_yarn(Keys& keys, double theta, double factor, YarnRamp kind, YarnGrowth grows, RopeSpec& rope) {
  const auto rotary = static_cast<double>(rope.rotary);
  const auto original = static_cast<double>(keys.required("rope.scaling.original_context_length", 1, 1 << 28));
  const double fast = keys.optional_float("rope.scaling.yarn_beta_fast", 32, 0, 1e6);
  const double slow = keys.optional_float("rope.scaling.yarn_beta_slow", 1, 0, 1e6);
  const double multiplier = keys.optional_float("rope.scaling.yarn_log_multiplier", 0, -1e-9, 100);
  MR_RETURN_IF_ERROR(keys.status());
  const auto channel = [&](double turns) {
    return rotary * std::log(original / (turns * 2 * std::acos(-1.0))) / (2 * std::log(theta));
  };
  const bool whole = kind == YarnRamp::whole_channels;
  const double low = std::max(0.0, whole ? std::floor(channel(fast)) : channel(fast));
  const double high = std::min(rotary - 1, whole ? std::ceil(channel(slow)) : channel(slow));
  for (std::size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double plain = std::pow(theta, -2.0 * static_cast<double>(i) / rotary);
    rope.inv_freq[i] = static_cast<float>(plain / factor * ramp + plain * (1 - ramp));
  }
  const auto growth = [&](double of) { return factor <= 1 ? 1.0 : 0.1 * of * std::log(factor) + 1; };
  if (grows == YarnGrowth::rotation || multiplier <= 0) {
    rope.magnitude = static_cast<float>(growth(1) / growth(multiplier));
  } else {  // queries and keys both
    rope.score_growth = static_cast<float>(growth(10 * multiplier) * growth(10 * multiplier));
  }
  return {};
}

Expected<std::vector<float>> read_factors(const modelfile::Model& file, const modelfile::TensorInfo& tensor,
                                          std::int64_t size) {
  if (tensor.dtype != DType::f32 || tensor.cols() != size || tensor.rows() != 1)
    return error(Code::corrupt, "{} is {} {} x {} but the hyperparameters ask for F32 {}", tensor.name,
                 info(tensor.dtype).name, tensor.cols(), tensor.rows(), size);
  MR_ASSIGN_OR_RETURN(const std::vector<float> factors, read_rows(file, tensor, 0, 1));
  for (const float factor : factors)
    if (!std::isfinite(factor) || factor <= 0)
      return error(Code::corrupt, "{} holds {}, which cannot be a factor", tensor.name, factor);
  return factors;
}

Status divide_by_factors(const modelfile::Model& file, const char* name, RopeSpec& rope, std::int64_t count = 0) {
  MR_ASSIGN_OR_RETURN(const modelfile::TensorInfo* tensor, file.require(name));
  MR_ASSIGN_OR_RETURN(const std::vector<float> factors,
                      read_factors(file, *tensor, count > 0 ? count : rope.rotary / 2));
  for (std::size_t i = 0; i < rope.inv_freq.size(); ++i) rope.inv_freq[i] /= factors[i];
  return {};
}

}  // namespace

RopeSpec plain_rope(double theta, std::int64_t rotary) {
  RopeSpec rope;
  rope.rotary = rotary;
  for (std::int64_t i = 0; i < rotary / 2; ++i)
    rope.inv_freq.push_back(
        static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary))));
  return rope;
}

Expected<std::vector<std::uint8_t>> read_rope_axes(const modelfile::Model& file, std::int64_t rotary,
                                                   RopeSections order) {
  const std::string key = arch_key(file, "rope.dimension_sections");
  if (!file.has(key)) return std::vector<std::uint8_t>();
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> sections, file.get_ints(key));
  const std::int64_t half = rotary / 2;
  const bool plausible = sections.size() >= 3 && sections.size() <= 4 && (sections.size() == 3 || sections[3] == 0) &&
                         std::all_of(sections.begin(), sections.end(), [&](auto s) { return s >= 0 && s <= half; });
  if (!plausible || sections[0] + sections[1] + sections[2] != half)
    return error(Code::corrupt, "{} does not divide the {} angles of a head among time, rows and columns", key, half);
  std::vector<std::uint8_t> axes(static_cast<std::size_t>(half), 0);
  for (std::int64_t i = 0; i < half; ++i) {
    const std::int64_t turn = i % 3, place = i / 3;
    std::uint8_t axis = 0;
    if (order == RopeSections::interleaved)
      axis = turn != 0 && place < sections[static_cast<std::size_t>(turn)] ? static_cast<std::uint8_t>(turn) : 0;
    else
      axis = i < sections[0] ? 0 : i < sections[0] + sections[1] ? 1 : 2;
    axes[static_cast<std::size_t>(i)] = axis;
  }
  return axes;
}

Expected<RopeSpec> read_rope(const modelfile::Model& file, const Hyperparameters& hp, YarnRamp ramp, YarnGrowth growth,
                             std::int64_t factors) {
  MR_ASSIGN_OR_RETURN(const Stretch stretch, read_stretch(file));
  RopeSpec rope = plain_rope(hp.rope_theta, hp.rotary);
  Keys keys(file);
  if (stretch.scaling == Scaling::linear)
    for (std::size_t i = 0; i < rope.inv_freq.size(); ++i)
      rope.inv_freq[i] = static_cast<float>(
          std::pow(hp.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(hp.rotary)) / stretch.factor);
  if (stretch.scaling == Scaling::yarn)
    MR_RETURN_IF_ERROR(apply_yarn(keys, hp.rope_theta, stretch.factor, ramp, growth, rope));
  // MiniCPM 3's files have the factors and no key for them.
  const bool unnamed = stretch.scaling == Scaling::none && file.find("rope_factors_short.weight") != nullptr;
  if (stretch.scaling == Scaling::longrope || unnamed)
    MR_RETURN_IF_ERROR(
        divide_by_factors(file, hp.beyond_original ? "rope_factors_long.weight" : "rope_factors_short.weight", rope));
  rope.magnitude *= static_cast<float>(keys.optional_float("rope.scaling.attn_factor", 1, 0, 1e3));
  MR_RETURN_IF_ERROR(keys.status());
  if (file.find("rope_freqs.weight") != nullptr)
    MR_RETURN_IF_ERROR(divide_by_factors(file, "rope_freqs.weight", rope, factors));
  return rope;
}

}  // namespace millrace::model
