// Tensor names and config keys of vision towers in checkpoints, one table per family.
// Sources: the vision models of Hugging Face transformers; tensor and key names as llama.cpp writes them.
// Thread-safety: constants and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "convert/config.h"
#include "convert/header.h"
#include "vision/spec.h"

namespace millrace::convert {

/// How a tensor of a checkpoint becomes one or more of an mmproj file.
enum class TowerForm : std::uint8_t {
  same,
  plus_one,    // a norm that stores weight - 1
  neighbours,  // rows of heads, whose halves are interleaved
  thirds,      // rows of queries, keys and values, split into three tensors
  frames,      // [rows, channels, 2, height, width]: two frames, split into two tensors
  pixels,      // columns [height, width, channels] become [channels, height, width]
  tables,      // [positions, axes, columns] become [axes, positions, columns]
  square,      // position embeddings [rows, columns, channels] become [rows * columns, channels]
};

/// `theirs`: without the prefix "model.", with # for a number. Both names are complete, or both lack the last word
/// (weight, bias, input_min), which is then the same.
struct TowerRule {
  std::string_view theirs, ours;
  TowerForm form = TowerForm::same;
};

/// The files that keys are read from.
struct TowerConfig {
  Config& whole;   // config.json
  Config& vision;  // its vision_config
  Config& pixels;  // preprocessor_config.json, or its counterpart in processor_config.json; empty if there is neither
  std::int64_t text_width = 0;
};

struct TowerFamily {
  std::string_view model_type;  // of config.json
  vision::Projector projector;
  std::span<const TowerRule> rules;
  /// Errors by Config::fail().
  void (*read)(TowerConfig& config, Header& header);
};

/// nullptr: towers of this model type are not supported.
const TowerFamily* tower_family(std::string_view model_type);

}  // namespace millrace::convert
