// Converts a draft head of EAGLE-3 as its trainers publish it (config.json, safetensors) to the GGUF file that
// model/eagle3.h describes. The layer's tensors are "midlayer.*" (SafeAILab's EAGLE, SGLang's SpecForge) or
// "layers.0.*" (vLLM's speculators), and d2t holds distances: token i of the head is token i + d2t[i] of the model. A
// head has no tokenizer of its own, and says at most by number which of the model's layers it reads: both follow from
// the model. Thread-safety: functions without shared state; one call uses its own threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "convert/convert.h"

namespace millrace::convert {

struct DraftHeadReport {
  std::string architecture;  // of the model
  /// The layers whose inputs the head reads; the number of layers stands for what the last one gives.
  std::vector<std::int64_t> target_layers;
  std::uint64_t tensors = 0, bytes = 0;
};

/// True if `path` is such a head: its folder, or the safetensors file in it.
bool is_draft_head(const std::string& path);

/// `in`: a path for which is_draft_head() is true. `base`: the GGUF file of the model that it guesses for. `out`: the
/// file to write, which appears only when it is complete. The header is checked against both before the first weight is
/// read. options: `importance` and `header_only` have no effect. Errors: those of Checkpoint::open; not_found
/// (config.json); unsupported (more than one layer, a field or a tensor of another kind of head; named); corrupt (a
/// shape, a missing tensor, NaN; named); invalid_argument (a head for another model); io_error, cancelled. No error
/// leaves a file.
Expected<DraftHeadReport> convert_draft_head(const std::string& in, const std::string& base, const std::string& out,
                                             const ConvertOptions& options);

}  // namespace millrace::convert
