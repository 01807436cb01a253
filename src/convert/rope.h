// How a checkpoint scales its rotations, into GGUF's keys and tensors and back. Config files say it in two ways: as
// rope_theta and rope_scaling beside each other, and (since 2025) as rope_parameters, for each kind of layer where they
// differ. Sources: transformers' documentation of RoPE; as in model/rope.h.
// Thread-safety: pure functions.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "convert/config.h"
#include "convert/header.h"

namespace millrace::convert {

/// A small tensor of a GGUF file that no tensor of the checkpoint holds: [floats.size()] of F32.
struct Factors {
  std::string name;
  std::vector<float> floats;
};

/// The rotation of layers that see all, in one object, however config.json spells it.
Config rotation_of(const Config& config);

/// Sets keys "rope." and gives the factors that stand in tensors. Errors: unsupported (a scaling, named) by
/// config.fail().
std::vector<Factors> read_rotations(Config& config, Header& header);

/// The way back, into rope_theta and rope_scaling. `factors(name)` reads one of these tensors, empty if there is none.
/// Errors: unsupported (factors of which nobody can tell how they were made).
Status write_rotations(const Header& header,
                       const std::function<Expected<std::vector<float>>(std::string_view name)>& factors,
                       nlohmann::json& config);

}  // namespace millrace::convert
