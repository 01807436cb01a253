// Shapes of models: the presets, their tensors under llama.cpp's names, and the metadata that readers ask for.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf_writer.h"
#include "tensor/dtype.h"

namespace millrace::synth {

/// Latent attention of deepseek2, deepseek32, glm-dsa, mistral4, kimi-linear and bailingmoe3: channels of the latent,
/// of the queries' own (0: none), of the rotated part of a key (kimi-linear: that heads share), and of a head's value.
/// head_dim is then that of queries.
struct Latent {
  std::int64_t rank = 0, q_rank = 0, rotated = 0, v_dim = 0;
};

/// An indexer beside it (deepseek32, glm-dsa): its heads, their channels, and how many tokens it chooses. `shares`:
/// from the fourth layer on each fourth has one. `block`: of so many tokens it chooses top_k blocks (minimax-m3, where
/// each KV head has an index head).
struct Index {
  std::int64_t heads = 0, dim = 0, top_k = 0;
  bool shares = false;
  std::int64_t block = 0;
};

/// DeepSeek-V4's attention, of which Latent has q_rank and rotated and Index the indexer, and its residual streams: the
/// window, groups of heads with an output of their own and its channels, streams, layers whose experts follow from the
/// token, and tokens to a row in the first two layers. The others have 4 and 128 in turn.
struct Compressed {
  std::int64_t window = 0, groups = 0, out_rank = 0, streams = 0, hash_layers = 0, first_ratio = 0;

  std::int64_t ratio(std::int64_t layer) const { return layer < 2 ? first_ratio : layer % 2 == 0 ? 4 : 128; }
};

/// Of qwen4exp: residual streams and the channels between their gates' matrices; tokens to a block of which Index's
/// indexer chooses; and before the second layer a table of n-grams, of 16 heads of so many rows, with their channels.
struct Engram {
  std::int64_t streams = 0, rank = 0, block = 0, head_rows = 0, channels = 0;
};

/// A mixture beside its experts: layers without one, shared experts, groups of which some are used, and whether the
/// router takes sigmoids, chooses with a bias and renormalises (else it takes a softmax).
struct Mixing {
  std::int64_t leading = 1, shared = 1, groups = 1, groups_used = 1;
  bool sigmoid = true;
  double scale = 1;
  std::int64_t latent = 0;  // channels that experts read and give, where these are not the model's (nemotron_h_moe)
};

/// Hyperparameters, under the field's names. Experts are 0 in a dense model.
struct Shape {
  // llama, qwen3, qwen3moe, qwen35, qwen35moe, qwen4exp, gemma3, gemma4, gpt-oss, glm4moe, deepseek2, deepseek32,
  // glm-dsa, deepseek4, mistral4, nemotron_h_moe, falcon-h1, kimi-linear, bailingmoe3, minimax-m3. Of gemma4, head_dim
  // is that of layers that attend to all tokens, kv_heads that of layers with a window.
  std::string architecture = "llama";
  std::string name = "custom";
  std::int64_t layers = 22, dim = 2048, ff = 5632, heads = 32, kv_heads = 4, head_dim = 64, vocab = 32000;
  std::int64_t experts = 0, top_k = 0, expert_ff = 0;
  std::int64_t context = 2048;
  double rope_theta = 10000, rms_eps = 1e-5;
  bool tied = false;   // the head is the embedding
  Latent latent = {};  // of those that have one
  Mixing mixing = {};  // glm4moe, nemotron_h_moe, minimax-m3, those with a latent
  // In a layer that keeps a state. qwen35, qwen35moe, qwen4exp: heads of values for 16 of keys, all of 128 channels.
  // nemotron_h_moe: heads of 64 channels in 8 groups. falcon-h1: heads of 128 in 2 groups, beside attention.
  // kimi-linear, bailingmoe3: as many heads of 128 as attend elsewhere.
  std::int64_t state_heads = 0;
  Index index = {};
  Compressed compressed = {};
  Engram engram = {};
};

/// What the random numbers of a tensor look like.
enum class Fill : std::uint8_t {
  weights,  // mean 0, standard deviation 1 / sqrt(row length)
  norm,     // about 1
  bias,     // about 0
  decay,    // about -0.1: what a state's logarithm of decay is multiplied by
  experts,  // whole numbers below Tensor::below, neighbours different
};

struct Tensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  Fill fill = Fill::weights;
  std::int64_t below = 0;
};

/// The type of every matrix, with the exceptions that name themselves at tensors().
struct Types {
  DType matrices = DType::f16;
  bool mixture_q4_k_m = false;  // instead: the Q4_K_M mixture of modelfile/quantize.h
};

std::span<const Shape> presets();
/// Errors: not_found, listing the presets.
Expected<Shape> preset(std::string_view name);

/// "Q4_K_M" or a dtype's name. Errors: unsupported (integer types too).
Expected<Types> types_from_name(std::string_view name);

/// Errors: invalid_argument (hyperparameters that cannot be, named).
Status check(const Shape& shape);

/// All tensors in file order. Norms, biases and routers are F32; under a type of fewer than six bits the head is Q6_K;
/// gpt-oss's experts are MXFP4; rows that are not whole blocks of the type get Q8_0 (or F16).
std::vector<Tensor> tensors(const Shape& shape, const Types& types);

/// Adds general.* and <architecture>.* keys. Errors: those of Writer::add.
Status add_hyperparameters(const Shape& shape, const Types& types, modelfile::Writer& writer);

}  // namespace millrace::synth
