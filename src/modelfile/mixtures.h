// What models are quantized to, by name: which type each tensor gets. Pure functions. Source of the names, their
// numbers and which tensors of a mixture have more bits: llama.cpp's quantizer, whose files these are like.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "tensor/dtype.h"

namespace millrace::modelfile {

enum class QuantizeType {
  f16,
  bf16,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  iq1_s,
  iq1_m,
  tq1_0,
  tq2_0,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq2_m,
  q2_k_s,
  q2_k,
  iq3_xxs,
  iq3_xs,
  iq3_s,
  iq3_m,
  q3_k_s,
  q3_k_m,
  q3_k_l,
  iq4_xs,
  iq4_nl,
  q4_k,
  q4_k_s,
  q4_k_m,
  q5_k_s,
  q5_k_m,
  q6_k,
  mxfp4_moe,
  nvfp4,
  q1_0,
  q2_0,
};

/// A type's name as users write it ("Q4_K_M"), its number in general.file_type (llama.cpp's llama_ftype), and the type
/// that most matrices get.
struct QuantizeTypeInfo {
  QuantizeType type;
  std::string_view name;
  std::uint32_t file_type;
  DType main;
};
/// In ascending bits, nearly.
std::span<const QuantizeTypeInfo> quantize_types();
const QuantizeTypeInfo& info(QuantizeType type);
/// What a number in general.file_type stands for: "F32", "Q4_K_M"; empty for one that is unknown.
std::string_view file_type_name(std::int64_t number);

/// By name in any case; "Q3_K", "Q5_K" are other names of their _M. Errors: unsupported, listing the names there are.
Expected<QuantizeType> quantize_type_from_name(std::string_view name);

/// What a mixture must know of the whole model.
struct MixtureContext {
  std::int64_t layers = 0;
  bool tied_head = false;       // no output.weight: token_embd is the head too
  std::int64_t kv_sharing = 1;  // query heads that share a head of keys and values, at most
};
/// Of a whole model's tensors.
MixtureContext mixture_context(std::span<const TensorInfo> tensors);

/// True for what stays F32 in every mixture: one-dimensional tensors, norms, biases, routers, short convolutions,
/// tables of positions and of token types.
bool stays_float(const TensorInfo& tensor);

/// Whether readers multiply the products of a matrix called so by the number beside it, NAME.scale for NAME.weight (of
/// a layer's experts one each), as files of NVFP4 have it: not of tables, of routers, and of what heads multiply by.
bool may_have_scale(std::string_view name);
/// "blk.0.attn_q.scale" of "blk.0.attn_q.weight".
std::string scale_name(std::string_view weight);

/// The type that `tensor` gets.
///  * What stays_float() is F32; integer tensors stay what they are.
///  * In types of fewer than eight bits the head (output.weight, or token_embd.weight where tied) is Q6_K, and Q5_K in
///    IQ1, IQ2 and IQ3_XXS.
///  * Mixtures (_S, _M, _L, Q2_K, IQ*, TQ*) give some matrices more bits, in some layers or all: attn_v, ffn_down (of
///    experts too), attn_output, attn_qkv, token_embd; mixtures.cpp has the table. Q4_K gives none. MXFP4_MOE is
///    experts in MXFP4, all else Q8_0. NVFP4 leaves the embedding at Q6_K.
///  * A row that is not whole super-blocks of 256 gets a type of 32 of about as many bits (IQ1 to IQ3, Q2_K, Q3_K,
///  IQ4_XS,
///    NVFP4: IQ4_NL; TQ1_0, TQ2_0, Q1_0, Q2_0: Q4_0; Q4_K: Q5_0; Q5_K: Q5_1; Q6_K: Q8_0), and one that is not whole
///    blocks of 32 gets F16.
DType choose_dtype(QuantizeType type, const TensorInfo& tensor, const MixtureContext& context);

/// `wanted`, or what a row of `cols` gets in its place.
DType fitting_dtype(DType wanted, std::int64_t cols);

}  // namespace millrace::modelfile
