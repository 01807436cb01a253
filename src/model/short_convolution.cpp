#include "model/short_convolution.h"

#include <string>

namespace millrace::model {

using exec::Act;

ShortConvolutionWeights list_short_convolution(UnitBuilder& units, int layer, const ShortConvolutionSpec& spec,
                                               std::int64_t model_dim) {
  const auto name = [&](std::string_view tensor) { return layer_tensor(layer, tensor); };
  const std::int64_t channels = spec.channels;
  const auto third = [&](std::int64_t index) {
    return units.rows(name("shortconv.in_proj.weight"), model_dim, 3 * channels, index * channels, channels);
  };
  ShortConvolutionWeights weights;
  weights.before = third(0);
  weights.after = third(1);
  weights.x = third(2);
  weights.taps = units.vectors(name("shortconv.conv.weight"), spec.taps, channels);
  weights.out = units.matrix(name("shortconv.out_proj.weight"), channels, model_dim);
  return weights;
}

void record_short_convolution(exec::Ops& ops, std::int64_t layer, const ShortConvolutionSpec& spec,
                              const ShortConvolutionWeights& weights, Act h) {
  const Act before = ops.buffer("before convolution", spec.channels), x = ops.buffer("convolved", spec.channels),
            after = ops.buffer("behind convolution", spec.channels);
  const exec::Product products[] = {{before, weights.before, {}}, {after, weights.after, {}}, {x, weights.x, {}}};
  ops.matmul(products, h);
  ops.multiply(x, before);
  ops.convolve(x, x, weights.taps, layer, {spec.taps, {}, false});
  ops.multiply(x, after);
  ops.matmul(h, weights.out, x);
}

}  // namespace millrace::model
