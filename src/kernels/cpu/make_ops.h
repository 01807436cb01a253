// Fills the table's ops from a vector type.
#pragma once

#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/index_body.h"
#include "kernels/cpu/latent_body.h"
#include "kernels/cpu/ops_body.h"
#include "kernels/cpu/recurrent_body.h"
#include "kernels/kernels.h"

namespace millrace::kernels {
namespace {

template <typename V>
Table make_ops(Isa isa) {
  Table table{};
  table.isa = isa;
  table.rms_norm = rms_norm<V>;
  table.layer_norm = layer_norm<V>;
  table.statistical_top_k = statistical_top_k<V>;
  table.match_rms = match_rms<V>;
  table.rope = rope<V>;
  table.gate_mul = gate_mul<V>;
  table.xielu = xielu<V>;
  table.add = add<V>;
  table.add_scaled = add_scaled<V>;
  table.softmax = softmax<V>;
  table.attention_chunk = attention_chunk<V>;
  table.attention_merge = attention_merge<V>;
  table.index_scores = index_scores<V>;
  table.softcap = softcap<V>;
  table.rotate = rotate<V>;
  table.f32_to_f16_row = f32_to_f16_row<V>;
  table.l2_norm = l2_norm<V>;
  table.sigmoid_mul = sigmoid_mul<V>;
  table.convolve = convolve<V>;
  table.delta_rule = delta_rule<V>;
  table.scan = scan<V>;
  table.selective_scan = selective_scan<V>;
  return table;
}

}  // namespace
}  // namespace millrace::kernels
