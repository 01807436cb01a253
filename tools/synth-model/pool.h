// Random valid bytes for tensors. A Pool holds a few MiB of random blocks of one type and scale, made once; a tensor's
// bytes are stretches of its pool that begin at blocks drawn from the seed, so they cost a copy each, not a draw.
// Thread-safety: immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "synth-model/shapes.h"
#include "tensor/dtype.h"

namespace millrace::synth {

/// SplitMix64: a good 64-bit hash of a counter (Steele, Lea and Flood, 2014).
std::uint64_t mix(std::uint64_t value);

class Pool {
 public:
  /// `deviation`: standard deviation of the decoded weights. Block scales vary by a factor of up to 1.5 around what
  /// gives it, with either sign where the type allows it; the quantized values are random bits, so every code occurs.
  /// Of Fill::experts it is what the whole numbers are below. `bytes`: how much of it the model needs; the pool holds
  /// that, within 2 to 16 MiB.
  Pool(DType dtype, Fill fill, double deviation, std::uint64_t bytes, std::uint64_t seed);

  /// Fills `out` with bytes [offset, offset + out.size()) of the tensor that `tensor_seed` names: always the same bytes
  /// for the same place.
  void fill(std::uint64_t tensor_seed, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::uint64_t block_bytes_;
  std::uint64_t stretch_bytes_;  // whole blocks; a new start is drawn after each
  std::vector<std::byte> blocks_;
};

/// The pools that a model's tensors need, one for each type, kind and row length.
class Pools {
 public:
  Pools(std::span<const Tensor> tensors, std::uint64_t seed);
  const Pool& of(const Tensor& tensor) const { return pools_.at(key(tensor)); }

 private:
  using Key = std::tuple<DType, Fill, std::int64_t>;  // the last: row length of weights, or Tensor::below
  static Key key(const Tensor& tensor);
  std::map<Key, Pool> pools_;
};

}  // namespace millrace::synth
