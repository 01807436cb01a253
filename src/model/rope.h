// RoPE's inverse frequencies with the scaling a model file asks for. Sources: RoFormer (arXiv:2104.09864); linear
// position interpolation (arXiv:2306.15595); YaRN (arXiv:2309.00071); LongRoPE (arXiv:2402.13753); llama-3's
// per-frequency factors, which GGUF stores in rope_freqs.weight.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/layer_spec.h"
#include "model/model.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// Between which channels YaRN blends: its bounds rounded outwards, or as they come.
enum class YarnRamp : std::uint8_t { whole_channels, exact };

/// What grows with YaRN's factor: cos and sin, by how much more than yarn_log_multiplier says; or all scores, by as
/// much as the key says, which in such files holds a tenth of the multiplier (RopeSpec::score_growth).
enum class YarnGrowth : std::uint8_t { rotation, scores };

/// The file's rotation of hp.rotary channels, scaled as it says, in interleaved pairs: inv_freq is theta^(-2 i /
/// rotary), changed by the scaling (none, linear, yarn, longrope) and by the file's per-frequency factors.
/// LongRoPE has two sets of factors. The long one holds where sequences may grow beyond the original context
/// (hp.beyond_original: the context that was asked for decides), and there from the first token on, because keys turned
/// by one set do not meet queries turned by the other. So llama.cpp chooses; transformers goes by the positions of each
/// call.
/// `factors`: rope_freqs.weight has so many, of which the first are of this rotation; 0: as many as it has angles.
/// Errors: unsupported (another scaling, named), corrupt (a key or factors that cannot be), io_error.
Expected<RopeSpec> read_rope(const modelfile::Model& file, const Hyperparameters& hp,
                             YarnRamp ramp = YarnRamp::whole_channels, YarnGrowth growth = YarnGrowth::rotation,
                             std::int64_t factors = 0);

/// In which order angles go by a picture's three places (multimodal RoPE).
enum class RopeSections : std::uint8_t {
  apart,       // time's, then rows', then columns'
  interleaved  // one of each in turn, as long as there are some; the rest are time's
};

/// The axes of the file's `rope.dimension_sections`; empty where it has none. Sources: Qwen2-VL (arXiv:2409.12191),
/// Qwen3-VL (arXiv:2511.21631). Errors: corrupt (more angles than the rotation has).
Expected<std::vector<std::uint8_t>> read_rope_axes(const modelfile::Model& file, std::int64_t rotary,
                                                   RopeSections order);

/// One that nothing scales, of another base.
RopeSpec plain_rope(double theta, std::int64_t rotary);

}  // namespace millrace::model
