// Converts a checkpoint's RoPE scaling to GGUF's keys and tensors and back. Config files have it either as rope_theta
// and rope_scaling or, since 2025, as rope_parameters, one for each type of layer if they differ. Sources:
// transformers' documentation of RoPE; as in model/rope.h. Thread-safety: pure functions.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "convert/config.h"
#include "convert/header.h"

namespace millrace::convert {

/// A small F32 tensor [floats.size()] of a GGUF file, without a counterpart in the checkpoint.
struct Factors {
  std::string name;
  std::vector<float> floats;
};

/// The RoPE parameters of layers with full attention in one object, whichever way config.json spells them.
Config rotation_of(const Config& config);

/// Sets the keys "rope." and returns the factors that GGUF stores in tensors. Errors: unsupported (a scaling, named) by
/// config.fail().
std::vector<Factors> read_rotations(Config& config, Header& header);

/// The inverse, to rope_theta and rope_scaling. `factors(name)` reads such a tensor, and returns nothing if there is
/// none. Errors: unsupported (factors that no known scaling produces).
Status write_rotations(const Header& header,
                       const std::function<Expected<std::vector<float>>(std::string_view name)>& factors,
                       nlohmann::json& config);

}  // namespace millrace::convert
