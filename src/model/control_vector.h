// Control vectors: directions that are added to the residual stream behind layers, and steer what a model writes. Files
// are as llama.cpp and repeng write them: a GGUF file with tensors direction.N [model_dim], which belong to the layer
// of number N, counted from 0; the first layer has none. Source: Zou et al., representation engineering
// (arXiv:2310.01405).
//
// Several files become one, which is laid over the model (modelfile/overlay.h): the layers' sums are weights like
// others, placed and streamed with their layers. Thread-safety: functions without shared state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::model {

struct ControlVector {
  std::string path;  // a GGUF file
  float scale = 1;   // by which its directions are multiplied
};

struct ControlOptions {
  std::vector<ControlVector> vectors;
  std::int64_t first_layer = 1;
  std::int64_t last_layer = -1;  // itself included; -1, or beyond the model's: its last
};

/// The tensor of a layer's sum, float32 [model_dim]; and that of the number before it, float32 [1], which is 1: the
/// stream is multiplied by it and the sum added in one step that every device has.
constexpr std::string_view kControlSum = "control.sum", kControlOne = "control.one";

/// Whether a tensor of a file that is laid over a model is one of these two.
bool is_control_tensor(std::string_view name);

struct ControlReport {
  std::int64_t layers = 0, first_layer = 0, last_layer = 0;  // with a sum; the first and the last of them
};

/// Writes the file to be laid over `base`, whose header is enough. Errors: invalid_argument (no vectors, a scale that
/// is no number, layers of which the model or the files have none, directions of another width: another model's
/// vector), unsupported (a file of another kind, named), corrupt (numbers that are not finite), io_error.
Expected<ControlReport> write_control(const modelfile::Model& base, const ControlOptions& options,
                                      const std::string& out);

}  // namespace millrace::model
