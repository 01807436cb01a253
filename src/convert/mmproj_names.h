// How checkpoints that see call their towers' tensors, and what of config.json becomes which key: a table a family.
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

/// How a checkpoint's tensor becomes one or more of an mmproj file.
enum class TowerForm : std::uint8_t {
  same,
  plus_one,    // a norm that counts from 1
  neighbours,  // rows of heads whose halves come to stand side by side
  thirds,      // rows of queries, keys and values, which become a tensor each
  frames,      // [rows, channels, 2, height, width]: of two pictures, which become a tensor each
  pixels,      // columns are [height, width, channels] and become [channels, height, width]
  tables,      // [places, axes, columns], which become [axes, places, columns]
  square,      // [rows, columns, channels] of places, which become [rows * columns, channels]
};

/// `theirs`: without "model." in front, with # for a number. Either is a whole name, or one without its last word
/// (weight, bias, input_min), which both then have.
struct TowerRule {
  std::string_view theirs, ours;
  TowerForm form = TowerForm::same;
};

/// What the keys are made of.
struct TowerConfig {
  Config& whole;   // config.json
  Config& vision;  // its vision_config
  Config& pixels;  // preprocessor_config.json, or what processor_config.json has in its place; empty without either
  std::int64_t text_width = 0;
};

struct TowerFamily {
  std::string_view model_type;  // of config.json
  vision::Projector projector;
  std::span<const TowerRule> rules;
  /// Errors by Config::fail().
  void (*read)(TowerConfig& config, Header& header);
};

/// nullptr: none of such checkpoints is converted.
const TowerFamily* tower_family(std::string_view model_type);

}  // namespace millrace::convert
