// What a Form says, as rows: which of a checkpoint's make a tensor of GGUF, and the way back.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "convert/family.h"
#include "convert/gather.h"
#include "convert/header.h"

namespace millrace::convert {

/// The numbers by which rows are counted.
struct Geometry {
  bool neighbours = false;
  std::int64_t halves = 0;  // channels of a head of which each second one comes to stand behind the others; 0: none
  float norm_shift = 0;
  std::int64_t heads = 0, kv_heads = 0, experts = 0, vocab = 0;
  std::int64_t nope = 0, value_dim = 0, rank = 0;  // latent attention: of a head's keys what is not turned, its values
  std::int64_t key_heads = 0, value_heads = 0, state_keys = 0, state_values = 0;  // delta nets: heads, channels of one
  std::int64_t groups = 1;                                                        // of Mamba-2's norm
};
Geometry geometry_of(const Header& header, const Family& family);

/// A checkpoint's tensor: its rows, and its shape in PyTorch's order.
struct Stored {
  Source source;
  std::vector<std::int64_t> shape;
};

/// The tensor that `rule` makes of `parts` (one; of Form::experts one an expert, in order). What it reads is put behind
/// `sources`. Errors: corrupt (a shape that the form cannot have, the tensor named), unsupported.
Expected<Target> build(const NameRule& rule, const Geometry& geometry, std::span<const Stored> parts,
                       std::vector<Source>& sources);

/// The shape, in PyTorch's order, of the tensors of which `build` makes one of `shape` (in GGUF's order).
/// Errors: unsupported (a form that is read and never written).
Expected<std::vector<std::int64_t>> their_shape(const NameRule& rule, const Geometry& geometry,
                                                std::span<const std::int64_t> shape);

/// A part of a checkpoint's tensor that a GGUF file's has: where in it `run`'s rows stand, and which of `lanes` its
/// columns are (Target::lanes).
struct Placed {
  std::int64_t first = 0;
  Run run;
  std::int64_t lane = 0, lanes = 1;
};

/// The way back: parts of the checkpoint's tensors that the target's rows are, by the source that build() read them
/// from; `ours` is the target's own place among the sources that the runs name.
std::vector<std::vector<Placed>> invert(const Target& target, std::int32_t first_source, std::size_t sources,
                                        std::int32_t ours);

}  // namespace millrace::convert
