// Maps a program's steps to launches on a GPU: a list that is made once when passes are prepared, and that every pass
// walks (exec/gpu/emitter.h). Neighbouring steps become one launch if a kernel computes them together with the bits
// that separate steps would give. Which results later steps read, and in which form, is looked up in the program. Pure:
// it needs no GPU, and is tested without one. Thread-safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "exec/program.h"
#include "residency/unit.h"
#include "tensor/dtype.h"

namespace millrace::exec {

/// The forms of a buffer's rows: for products with float weights, with quantized weights, and with quantized weights if
/// the rows are those of a prompt.
struct Forms {
  bool floats = false, q8 = false, bf16 = false;
  bool any() const { return floats || q8 || bf16; }
  friend bool operator==(const Forms&, const Forms&) = default;
};

/// Steps [first, end) of a program, emitted together. One step may still be several kernels: products of several
/// dtypes, a router and its experts, logits that are scaled and capped.
struct Launch {
  enum class Kind : std::uint8_t {
    embed,
    norm,
    add,
    scale,
    copy,
    temper,
    product,      // of one input with up to four weights; of a prompt with one, maybe with the gather behind it
    gated,        // gate, up and what comes of them, in one kernel; of a prompt maybe with the gather behind it
    gate_and_up,  // the same where gate and up differ in dtype or adapters change one: one after the other, then what
                  // comes of them
    heads,        // heads' norms, RoPE and the KV store, in this one kernel alone
    heads_norm,   // that of heads which nothing attends with, or which `heads` does not normalise in their order
    gated_norm,   // the same, then the gate that multiplies by it
    latent,       // RoPE of the key beside a latent, their store, and RoPE of the queries, in one kernel
    index,        // an index key's LayerNorm, RoPE of an indexer's queries and of the key, and its store, in one kernel
    choose_keys,  // maybe the factor of the weights that scores are made with, before
    head_product,
    gate,
    activate,
    pick_heads,  // of one input, into one buffer or two
    multiply,
    sigmoid_gate,
    l2_norm,
    time_step,  // and the decay it leaves, or that alone
    convolve,
    delta_rule,
    delta_net,  // all between its products: one kernel for a row of each sequence, one after the other for more
    scan,
    attention,
    experts,  // before them maybe one that all rows share, or its gate alone; behind them what that one gave is added
    select_rows,
    select_norm,  // the rows that want logits, normalised as they are gathered
    logits,
    hidden,  // nothing: where the states lie is all that is said
    given,   // what the pass was handed, from host memory
    add_picture,
    gather,  // maybe added to the residual stream, or in the form that the next product reads
    layer_norm,
    turn,  // heads where they lie, if `heads` does not turn them in their order
    // Of programs whose rows all see each other, a step each.
    merge_rows,
    mean_rows,
    clamp,
    standardize,
    join,
    largest,  // of each row
  };
  Kind kind = Kind::embed;
  bool adds = false;  // product, experts, gather: the last step adds the result to `out`, the residual
                      // stream
  Forms leaves;       // written of `out`. What a later step reads beside that is made of the floats when it comes
  std::size_t first = 0, end = 0;
  Act out;
  bool gathers = false;  // product, gated: the second step gathers what the first made; `out` and `leaves` are its
  /// For a gather: other devices may still read or write the destination of this device's stores, so that all must
  /// synchronise first.
  bool meets_first = false;
};
/// "norm": for traces and messages.
std::string_view name(Launch::Kind kind);

/// What adapters do to a product: launches behind it add to its result, or (of few rows) one before it makes what its
/// own adds.
enum class Adapted : std::uint8_t { no, behind, before };

struct FuseOptions {
  bool neighbours = true;  // off: a step a launch, for tests that compare; but the steps of `heads` have one kernel.
                           // Programs whose rows all see each other are always so
  bool prompt = false;     // the rows are a prompt's; those that want logits never are
  /// How many rows of a matrix the processor computes, its last ones. Empty: none of any.
  std::function<std::int64_t(WeightRef)> host_rows;
  bool experts_from_host = false;  // it computes with some experts, and is handed their input in floats
  /// How adapters change products with a weight. What those read is wanted in floats; behind: gates and ups are made
  /// apart, and nothing is added to the residual stream before adapters have. Empty: none of any.
  std::function<Adapted(WeightRef)> adapted = {};
  /// Which quantized weights have products of prompts. Empty: all.
  std::function<bool(DType)> prompt_dtypes = {};
};

/// The launches of each block of the program, in order. Every step belongs to one launch, and none spans two blocks.
using Launches = std::vector<std::vector<Launch>>;

/// Errors: unsupported (names a step that no launch implements).
Expected<Launches> fuse(const Program& program, const residency::UnitTable& units, const FuseOptions& options);

}  // namespace millrace::exec
