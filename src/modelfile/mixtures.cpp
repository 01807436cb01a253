#include "modelfile/mixtures.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string>

#include "modelfile/escape.h"
#include "tensor/blocks.h"

namespace millrace::modelfile {
namespace {

using Q = QuantizeType;
using D = DType;

constexpr std::array kTypes = {
    QuantizeTypeInfo{Q::q1_0, "Q1_0", 40, D::q1_0},
    QuantizeTypeInfo{Q::iq1_s, "IQ1_S", 24, D::iq1_s},
    QuantizeTypeInfo{Q::tq1_0, "TQ1_0", 36, D::tq1_0},
    QuantizeTypeInfo{Q::iq1_m, "IQ1_M", 31, D::iq1_m},
    QuantizeTypeInfo{Q::tq2_0, "TQ2_0", 37, D::tq2_0},
    QuantizeTypeInfo{Q::iq2_xxs, "IQ2_XXS", 19, D::iq2_xxs},
    QuantizeTypeInfo{Q::q2_0, "Q2_0", 41, D::q2_0},
    QuantizeTypeInfo{Q::iq2_xs, "IQ2_XS", 20, D::iq2_xs},
    QuantizeTypeInfo{Q::iq2_s, "IQ2_S", 28, D::iq2_xs},
    QuantizeTypeInfo{Q::iq2_m, "IQ2_M", 29, D::iq2_s},
    QuantizeTypeInfo{Q::q2_k_s, "Q2_K_S", 21, D::q2_k},
    QuantizeTypeInfo{Q::q2_k, "Q2_K", 10, D::q2_k},
    QuantizeTypeInfo{Q::iq3_xxs, "IQ3_XXS", 23, D::iq3_xxs},
    QuantizeTypeInfo{Q::iq3_xs, "IQ3_XS", 22, D::iq3_s},
    QuantizeTypeInfo{Q::q3_k_s, "Q3_K_S", 11, D::q3_k},
    QuantizeTypeInfo{Q::iq3_s, "IQ3_S", 26, D::iq3_s},
    QuantizeTypeInfo{Q::iq3_m, "IQ3_M", 27, D::iq3_s},
    QuantizeTypeInfo{Q::q3_k_m, "Q3_K_M", 12, D::q3_k},
    QuantizeTypeInfo{Q::q3_k_l, "Q3_K_L", 13, D::q3_k},
    QuantizeTypeInfo{Q::mxfp4_moe, "MXFP4_MOE", 38, D::q8_0},
    QuantizeTypeInfo{Q::iq4_xs, "IQ4_XS", 30, D::iq4_xs},
    QuantizeTypeInfo{Q::iq4_nl, "IQ4_NL", 25, D::iq4_nl},
    QuantizeTypeInfo{Q::nvfp4, "NVFP4", 39, D::nvfp4},
    QuantizeTypeInfo{Q::q4_0, "Q4_0", 2, D::q4_0},
    QuantizeTypeInfo{Q::q4_k, "Q4_K", 14, D::q4_k},
    QuantizeTypeInfo{Q::q4_k_s, "Q4_K_S", 14, D::q4_k},
    QuantizeTypeInfo{Q::q4_k_m, "Q4_K_M", 15, D::q4_k},
    QuantizeTypeInfo{Q::q4_1, "Q4_1", 3, D::q4_1},
    QuantizeTypeInfo{Q::q5_0, "Q5_0", 8, D::q5_0},
    QuantizeTypeInfo{Q::q5_k_s, "Q5_K_S", 16, D::q5_k},
    QuantizeTypeInfo{Q::q5_k_m, "Q5_K_M", 17, D::q5_k},
    QuantizeTypeInfo{Q::q5_1, "Q5_1", 9, D::q5_1},
    QuantizeTypeInfo{Q::q6_k, "Q6_K", 18, D::q6_k},
    QuantizeTypeInfo{Q::q8_0, "Q8_0", 7, D::q8_0},
    QuantizeTypeInfo{Q::f16, "F16", 1, D::f16},
    QuantizeTypeInfo{Q::bf16, "BF16", 32, D::bf16},
};

/// Matrices that mixtures tell apart.
enum class Part { other, embedding, query, key, value, qkv, output, gate_or_up, down };

/// In which layers. favoured: the outer eighths and every third between; middle: all but the outer eighths.
enum class Where { everywhere, first_two, first_four, first_sixteenth, first_eighth, favoured, middle };

/// `shared`: only where at least four query heads share keys and values, which makes the matrix small.
struct More {
  Q type;
  Part part;
  Where where;
  D dtype;
  bool shared = false;
};

/// The type whose rows below hold for this one: its own, or those of its sibling.
Q rows_of(Q type) {
  switch (type) {
    case Q::iq1_m:
      return Q::iq1_s;
    case Q::iq2_xs:
      return Q::iq2_xxs;
    case Q::iq2_m:
      return Q::iq2_s;
    case Q::tq2_0:
    case Q::q1_0:
    case Q::q2_0:
      return Q::tq1_0;
    default:
      return type;
  }
}

// The first row that fits a tensor holds; see rows_of().
constexpr More kMore[] = {
    {Q::iq1_s, Part::embedding, Where::everywhere, D::q2_k},
    {Q::iq1_s, Part::value, Where::everywhere, D::q4_k, true},
    {Q::iq1_s, Part::value, Where::everywhere, D::q2_k},
    {Q::iq1_s, Part::down, Where::first_eighth, D::q2_k},
    {Q::iq1_s, Part::output, Where::everywhere, D::iq2_xxs},
    {Q::iq2_xxs, Part::embedding, Where::everywhere, D::q2_k},
    {Q::iq2_xxs, Part::value, Where::everywhere, D::q4_k, true},
    {Q::iq2_xxs, Part::value, Where::everywhere, D::q2_k},
    {Q::iq2_xxs, Part::down, Where::first_eighth, D::q2_k},
    {Q::iq2_s, Part::embedding, Where::everywhere, D::iq3_s},
    {Q::iq2_s, Part::value, Where::everywhere, D::q4_k, true},
    {Q::iq2_s, Part::value, Where::everywhere, D::iq3_s},
    {Q::iq2_s, Part::down, Where::first_eighth, D::iq3_s},
    {Q::iq2_s, Part::output, Where::everywhere, D::iq3_s},
    {Q::iq3_xxs, Part::embedding, Where::everywhere, D::iq3_s},
    {Q::iq3_xxs, Part::value, Where::everywhere, D::q4_k, true},
    {Q::iq3_xxs, Part::value, Where::everywhere, D::iq3_s},
    {Q::iq3_xxs, Part::query, Where::everywhere, D::iq2_s},
    {Q::iq3_xxs, Part::key, Where::everywhere, D::iq2_s},
    {Q::iq3_xxs, Part::down, Where::first_eighth, D::q4_k},
    {Q::iq3_xxs, Part::down, Where::everywhere, D::q3_k},
    {Q::iq3_xxs, Part::output, Where::everywhere, D::iq3_s},
    {Q::iq3_xs, Part::value, Where::everywhere, D::q4_k, true},
    {Q::iq3_xs, Part::query, Where::everywhere, D::iq3_xxs},
    {Q::iq3_xs, Part::key, Where::everywhere, D::iq3_xxs},
    {Q::iq3_xs, Part::gate_or_up, Where::middle, D::iq3_xxs},
    {Q::iq3_s, Part::value, Where::everywhere, D::q4_k, true},
    {Q::iq3_m, Part::value, Where::everywhere, D::q4_k},
    {Q::iq3_m, Part::down, Where::first_eighth, D::q4_k},
    {Q::iq3_m, Part::output, Where::everywhere, D::q4_k},
    {Q::iq3_m, Part::qkv, Where::everywhere, D::q4_k},
    {Q::tq1_0, Part::embedding, Where::everywhere, D::q4_k},
    {Q::q2_k, Part::value, Where::everywhere, D::q4_k, true},
    {Q::q2_k, Part::value, Where::everywhere, D::q3_k},
    {Q::q2_k, Part::down, Where::everywhere, D::q3_k},
    {Q::q2_k, Part::output, Where::everywhere, D::q3_k},
    {Q::q2_k_s, Part::value, Where::everywhere, D::q4_k, true},
    {Q::q2_k_s, Part::down, Where::first_eighth, D::q4_k},
    {Q::q3_k_m, Part::value, Where::first_two, D::q5_k},
    {Q::q3_k_m, Part::value, Where::everywhere, D::q4_k},
    {Q::q3_k_m, Part::down, Where::first_sixteenth, D::q5_k},
    {Q::q3_k_m, Part::down, Where::favoured, D::q4_k},
    {Q::q3_k_m, Part::output, Where::everywhere, D::q4_k},
    {Q::q3_k_m, Part::qkv, Where::everywhere, D::q4_k},
    {Q::q3_k_l, Part::value, Where::everywhere, D::q5_k},
    {Q::q3_k_l, Part::down, Where::everywhere, D::q5_k},
    {Q::q3_k_l, Part::output, Where::everywhere, D::q5_k},
    {Q::q3_k_l, Part::qkv, Where::everywhere, D::q4_k},
    {Q::iq4_xs, Part::value, Where::everywhere, D::q5_k, true},
    {Q::iq4_xs, Part::down, Where::first_eighth, D::q5_k},
    {Q::iq4_nl, Part::value, Where::everywhere, D::q5_k, true},
    {Q::iq4_nl, Part::down, Where::first_eighth, D::q5_k},
    {Q::q4_k_s, Part::value, Where::first_four, D::q5_k},
    {Q::q4_k_s, Part::down, Where::first_eighth, D::q5_k},
    {Q::q4_k_m, Part::value, Where::favoured, D::q6_k},
    {Q::q4_k_m, Part::down, Where::favoured, D::q6_k},
    {Q::q4_k_m, Part::qkv, Where::everywhere, D::q5_k},
    {Q::q5_k_m, Part::value, Where::favoured, D::q6_k},
    {Q::q5_k_m, Part::down, Where::favoured, D::q6_k},
    {Q::q5_k_m, Part::qkv, Where::everywhere, D::q6_k},
    // Small numbers throughout, where the scales have but few steps: they begin at 2^-9, for levels up to 6.
    {Q::nvfp4, Part::embedding, Where::everywhere, D::q6_k},
};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

Part part_of(std::string_view name) {
  if (name == "token_embd.weight") return Part::embedding;
  if (contains(name, ".attn_q.")) return Part::query;
  if (contains(name, ".attn_k.")) return Part::key;
  if (contains(name, ".ffn_gate") || contains(name, ".ffn_up")) return Part::gate_or_up;
  if (contains(name, ".attn_v.")) return Part::value;
  if (contains(name, ".ffn_down")) return Part::down;
  if (contains(name, ".attn_output.")) return Part::output;
  if (contains(name, ".attn_qkv.")) return Part::qkv;
  return Part::other;
}

// The layer number in "blk.12.attn_v.weight"; -1 for a tensor outside the layers.
std::int64_t layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  std::int64_t layer = -1;
  if (name.starts_with(kPrefix)) std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

bool is_there(Where where, std::int64_t layer, std::int64_t layers) {
  switch (where) {
    case Where::everywhere:
      return true;
    case Where::first_two:
      return layer < 2;
    case Where::first_four:
      return layer < 4;
    case Where::first_sixteenth:
      return layer < layers / 16;
    case Where::first_eighth:
      return layer < layers / 8;
    case Where::middle:
      return layer >= layers / 8 && layer < 7 * layers / 8;
    case Where::favoured:
      break;
  }
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/// Of a head where few bits are asked for.
DType head_dtype(QuantizeType type) {
  switch (type) {
    case Q::iq1_s:
    case Q::iq1_m:
    case Q::iq2_xxs:
    case Q::iq2_xs:
    case Q::iq2_s:
    case Q::iq2_m:
    case Q::iq3_xxs:
      return D::q5_k;
    default:
      return D::q6_k;
  }
}

}  // namespace

std::span<const QuantizeTypeInfo> quantize_types() { return kTypes; }

const QuantizeTypeInfo& info(QuantizeType type) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const QuantizeTypeInfo& row) { return row.type == type; });
}

std::string_view file_type_name(std::int64_t number) {
  std::string_view name = number == 0 ? "F32" : "";
  for (const QuantizeTypeInfo& row : kTypes)  // 14 is Q4_K and Q4_K_S: files of others are the latter
    if (row.file_type == number && row.name.size() > name.size()) name = row.name;
  return name;
}

Expected<QuantizeType> quantize_type_from_name(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (upper == "Q3_K") return Q::q3_k_m;
  if (upper == "Q5_K") return Q::q5_k_m;
  std::string known;
  for (const QuantizeTypeInfo& row : kTypes) {
    if (row.name == upper) return row.type;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return error(Code::unsupported, "cannot quantize to \"{}\"; choose one of {}", escape(name, 80), known);
}

MixtureContext mixture_context(std::span<const TensorInfo> tensors) {
  MixtureContext context;
  context.tied_head = true;
  std::int64_t queries = 0, values = 0;
  for (const TensorInfo& tensor : tensors) {
    context.tied_head &= tensor.name != "output.weight";
    // A layer past the number of tensors is a made-up name; it gets no say in what an eighth of the layers is.
    const std::int64_t layer = layer_of(tensor.name);
    if (layer < static_cast<std::int64_t>(tensors.size())) context.layers = std::max(context.layers, layer + 1);
    if (contains(tensor.name, ".attn_q.weight")) queries = std::max(queries, tensor.rows());
    if (contains(tensor.name, ".attn_v.weight")) values = std::max(values, tensor.rows());
  }
  if (values > 0) context.kv_sharing = std::max<std::int64_t>(1, queries / values);
  return context;
}

bool stays_float(const TensorInfo& tensor) {
  return tensor.shape.size() < 2 || !tensor.name.ends_with(".weight") || contains(tensor.name, "norm") ||
         contains(tensor.name, "ffn_gate_inp") || contains(tensor.name, "conv1d") ||
         contains(tensor.name, "shortconv.conv") || contains(tensor.name, "indexer.proj") ||
         contains(tensor.name, "altup_router") || contains(tensor.name, "_coef.") || contains(tensor.name, "_fn.") ||
         contains(tensor.name, "_ape.") || contains(tensor.name, "position_embd") ||
         contains(tensor.name, "token_types");
}

bool may_have_scale(std::string_view name) {
  if (!name.ends_with(".weight") || !(name.starts_with("blk.") || name == "output.weight")) return false;
  for (const std::string_view other : {"ffn_gate_inp", "ffn_gate_up_exps", "attn_k_b.", "attn_v_b.", "attn_kv_b.",
                                       "attn_output_a.", "hc_", "_ape.", "tid2eid", "nextn.embed_tokens"})
    if (contains(name, other)) return false;
  return true;
}

std::string scale_name(std::string_view weight) {
  constexpr std::string_view kWeight = ".weight";
  if (weight.ends_with(kWeight)) weight.remove_suffix(kWeight.size());
  return std::string(weight) + ".scale";
}

DType fitting_dtype(DType wanted, std::int64_t cols) {
  if (cols % millrace::info(wanted).block_elements == 0) return wanted;
  if (cols % kBlock != 0) return D::f16;
  switch (wanted) {
    case D::iq1_s:
    case D::iq1_m:
    case D::iq2_xxs:
    case D::iq2_xs:
    case D::iq2_s:
    case D::iq3_xxs:
    case D::iq3_s:
    case D::q2_k:
    case D::q3_k:
    case D::iq4_xs:
    case D::nvfp4:
      return D::iq4_nl;
    case D::tq1_0:
    case D::tq2_0:
    case D::q1_0:
    case D::q2_0:
      return D::q4_0;
    case D::q4_k:
      return D::q5_0;
    case D::q5_k:
      return D::q5_1;
    default:
      return D::q8_0;
  }
}

DType choose_dtype(QuantizeType type, const TensorInfo& tensor, const MixtureContext& context) {
  if (!millrace::info(tensor.dtype).computable) return tensor.dtype;
  if (stays_float(tensor)) return D::f32;
  const std::string_view name = tensor.name;
  const DType main = info(type).main;
  const bool is_head = name == "output.weight" || (context.tied_head && name == "token_embd.weight");
  const bool few_bits = millrace::info(main).block_elements > 1 && main != D::q8_0;
  if (few_bits && is_head) return fitting_dtype(head_dtype(type), tensor.cols());
  if (type == Q::mxfp4_moe && contains(name, "_exps.")) return fitting_dtype(D::mxfp4, tensor.cols());
  const std::int64_t layer = layer_of(name);
  const Part part = part_of(name);
  if (part != Part::other && (layer >= 0 || part == Part::embedding))
    for (const More& more : kMore)
      if (more.type == rows_of(type) && more.part == part && (!more.shared || context.kv_sharing >= 4) &&
          is_there(more.where, layer, context.layers))
        return fitting_dtype(more.dtype, tensor.cols());
  return fitting_dtype(main, tensor.cols());
}

}  // namespace millrace::modelfile
