// Resolves a Form to rows: which rows of a checkpoint's tensors make a GGUF tensor, and the inverse. Thread-safety:
// pure functions.
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

/// The hyperparameters that determine row order.
struct Geometry {
  bool neighbours = false;
  std::int64_t halves = 0;  // rotated channels of a head to de-interleave; 0: none
  float norm_shift = 0;
  std::int64_t heads = 0, kv_heads = 0, experts = 0, vocab = 0, context = 0;
  std::int64_t nope = 0, value_dim = 0, rank = 0;  // latent attention: unrotated key channels, value channels, latent
  std::int64_t key_heads = 0, value_heads = 0, state_keys = 0,
               state_values = 0;                // delta nets: heads, channels of one
  std::int64_t groups = 1;                      // of Mamba-2's norm
  std::int64_t index_heads = 0, index_dim = 0;  // of an indexer
};
Geometry geometry_of(const Header& header, const Family& family);

/// A tensor of a checkpoint: its rows, and its shape in PyTorch's order.
struct Stored {
  Source source;
  std::vector<std::int64_t> shape;
};

/// The tensor that `rule` makes of `parts` (one; for Form::experts one per expert, for Form::pieces each, in order).
/// Appends the sources that it reads to `sources`. Errors: corrupt (a shape that the form does not allow; names the
/// tensor), unsupported.
Expected<Target> build(const NameRule& rule, const Geometry& geometry, std::span<const Stored> parts,
                       std::vector<Source>& sources);

/// The shape, in PyTorch's order, of the tensors from which build() makes one of `shape` (in GGUF's order). Errors:
/// unsupported (a form that export does not write).
Expected<std::vector<std::int64_t>> their_shape(const NameRule& rule, const Geometry& geometry,
                                                std::span<const std::int64_t> shape);

/// A part of a checkpoint's tensor, taken from a GGUF tensor: `first` is its first row, `run` the rows to copy, and
/// `lane` of `lanes` the columns (Target::lanes).
struct Placed {
  std::int64_t first = 0;
  Run run;
  std::int64_t lane = 0, lanes = 1;
};

/// The inverse of build(): for each source that build() read, the parts of it that the target's rows hold. `ours`: the
/// target's index among the sources that the returned runs name.
std::vector<std::vector<Placed>> invert(const Target& target, std::int32_t first_source, std::size_t sources,
                                        std::int32_t ours);

}  // namespace millrace::convert
