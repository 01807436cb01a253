// Apertus: Llama's layers with norms of queries and keys, and feed-forwards without a gate through xIELU, whose shape
// each layer has learned. Source: Apertus (arXiv:2509.14233).
#include <algorithm>
#include <cmath>

#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/keys.h"

namespace millrace::model {
namespace {

constexpr double kMost = 1e4;  // of any of the numbers

double softplus(double x) { return std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0); }

}  // namespace

Expected<DecoderSpec> apertus_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, qwen3_spec(file, hp));
  Keys keys(file);
  const auto of_layers = [&](std::string_view key) {
    if (!keys.has(key)) keys.fail(error(Code::not_found, "the file has no {}", arch_key(file, key)));
    return keys.floats_of_layers(key, hp.layers, 0, -kMost, kMost);
  };
  const auto alpha_p = of_layers("xielu.alpha_p"), alpha_n = of_layers("xielu.alpha_n"), beta = of_layers("xielu.beta"),
             eps = of_layers("xielu.eps");
  MR_RETURN_IF_ERROR(keys.status());
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.gated = false;
    // Files have what was trained, of which both are made.
    layer.xielu = kernels::Xielu{static_cast<float>(softplus(alpha_p[index])),
                                 static_cast<float>(beta[index] + softplus(alpha_n[index])),
                                 static_cast<float>(beta[index]), static_cast<float>(eps[index])};
  }
  return spec;
}

}  // namespace millrace::model
