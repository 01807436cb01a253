// Rules that several families share.
// Thread-safety: constants.
#pragma once

#include <array>

#include "convert/family.h"

namespace millrace::convert {

inline constexpr NameRule kTopNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight", Form::norm},
    {"lm_head.weight", "output.weight"},
};

inline constexpr NameRule kAttentionNames[] = {
    {"model.layers.#.input_layernorm.weight", "blk.#.attn_norm.weight", Form::norm},
    {"model.layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight", Form::queries},
    {"model.layers.#.self_attn.q_proj.bias", "blk.#.attn_q.bias", Form::queries},
    {"model.layers.#.self_attn.k_proj.weight", "blk.#.attn_k.weight", Form::keys},
    {"model.layers.#.self_attn.k_proj.bias", "blk.#.attn_k.bias", Form::keys},
    {"model.layers.#.self_attn.v_proj.weight", "blk.#.attn_v.weight"},
    {"model.layers.#.self_attn.v_proj.bias", "blk.#.attn_v.bias"},
    {"model.layers.#.self_attn.q_norm.weight", "blk.#.attn_q_norm.weight", Form::norm},
    {"model.layers.#.self_attn.k_norm.weight", "blk.#.attn_k_norm.weight", Form::norm},
    {"model.layers.#.self_attn.o_proj.weight", "blk.#.attn_output.weight"},
    {"model.layers.#.self_attn.o_proj.bias", "blk.#.attn_output.bias"},
};

/// The norm before the feed-forward, by its most common name.
inline constexpr NameRule kFfnNorm[] = {
    {"model.layers.#.post_attention_layernorm.weight", "blk.#.ffn_norm.weight", Form::norm},
};
/// The same norm by its other name.
inline constexpr NameRule kPostAttentionNorm[] = {
    {"model.layers.#.post_attention_layernorm.weight", "blk.#.post_attention_norm.weight", Form::norm},
};

inline constexpr NameRule kDenseNames[] = {
    {"model.layers.#.mlp.gate_proj.weight", "blk.#.ffn_gate.weight"},
    {"model.layers.#.mlp.up_proj.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight"},
};

/// Experts as separate matrices, as most checkpoints have them, or joined.
inline constexpr NameRule kExpertNames[] = {
    {"model.layers.#.mlp.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.mlp.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.mlp.experts.*.gate_proj.weight", "blk.#.ffn_gate_exps.weight", Form::experts},
    {"model.layers.#.mlp.experts.*.up_proj.weight", "blk.#.ffn_up_exps.weight", Form::experts},
    {"model.layers.#.mlp.experts.*.down_proj.weight", "blk.#.ffn_down_exps.weight", Form::experts},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_gate_exps.weight", Form::first_half},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_up_exps.weight", Form::second_half},
    {"model.layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.mlp.switch_mlp.gate_proj.weight", "blk.#.ffn_gate_exps.weight"},  // MLX's
    {"model.layers.#.mlp.switch_mlp.up_proj.weight", "blk.#.ffn_up_exps.weight"},
    {"model.layers.#.mlp.switch_mlp.down_proj.weight", "blk.#.ffn_down_exps.weight"},
};

/// Experts as Mixtral names them.
inline constexpr NameRule kMixtralExperts[] = {
    {"model.layers.#.block_sparse_moe.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.block_sparse_moe.experts.*.w1.weight", "blk.#.ffn_gate_exps.weight", Form::experts},
    {"model.layers.#.block_sparse_moe.experts.*.w3.weight", "blk.#.ffn_up_exps.weight", Form::experts},
    {"model.layers.#.block_sparse_moe.experts.*.w2.weight", "blk.#.ffn_down_exps.weight", Form::experts},
    {"model.layers.#.block_sparse_moe.switch_mlp.gate_proj.weight", "blk.#.ffn_gate_exps.weight"},
    {"model.layers.#.block_sparse_moe.switch_mlp.up_proj.weight", "blk.#.ffn_up_exps.weight"},
    {"model.layers.#.block_sparse_moe.switch_mlp.down_proj.weight", "blk.#.ffn_down_exps.weight"},
};

/// An expert that every token uses.
inline constexpr NameRule kSharedExpertsNames[] = {
    {"model.layers.#.mlp.shared_experts.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.mlp.shared_experts.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.mlp.shared_experts.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
};

/// The same with its own gate, by Qwen's names.
inline constexpr NameRule kSharedExpertNames[] = {
    {"model.layers.#.mlp.shared_expert.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.mlp.shared_expert.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.mlp.shared_expert.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
    {"model.layers.#.mlp.shared_expert_gate.weight", "blk.#.ffn_gate_inp_shexp.weight", Form::vector},
};

/// MTP blocks after the layers, as DeepSeek and GLM publish them.
inline constexpr NameRule kDraftNames[] = {
    {"model.layers.#.eh_proj.weight", "blk.#.nextn.eh_proj.weight"},
    {"model.layers.#.enorm.weight", "blk.#.nextn.enorm.weight"},
    {"model.layers.#.hnorm.weight", "blk.#.nextn.hnorm.weight"},
    {"model.layers.#.embed_tokens.weight", "blk.#.nextn.embed_tokens.weight"},
    {"model.layers.#.shared_head.head.weight", "blk.#.nextn.shared_head_head.weight"},
    {"model.layers.#.shared_head.norm.weight", "blk.#.nextn.shared_head_norm.weight"},
};

/// Keys that most mixtures have.
inline constexpr KeyRule kMixtureKeys[] = {
    {"num_experts", "expert_count"},
    {"num_experts_per_tok", "expert_used_count"},
    {"moe_intermediate_size", "expert_feed_forward_length"},
};

/// Delta nets since Qwen3.5, whose value heads GGUF orders otherwise, and their keys.
inline constexpr NameRule kTiledNet[] = {
    {"model.layers.#.linear_attn.conv1d.weight", "blk.#.ssm_conv1d.weight", Form::tiled_taps},
    {"model.layers.#.linear_attn.dt_bias", "blk.#.ssm_dt.bias", Form::tiled_each},
    {"model.layers.#.linear_attn.A_log", "blk.#.ssm_a", Form::tiled_decay},
    {"model.layers.#.linear_attn.norm.weight", "blk.#.ssm_norm.weight"},
    {"model.layers.#.linear_attn.out_proj.weight", "blk.#.ssm_out.weight", Form::tiled_columns},
    {"model.layers.#.linear_attn.in_proj_qkv.weight", "blk.#.attn_qkv.weight", Form::tiled_qkv},
    {"model.layers.#.linear_attn.in_proj_z.weight", "blk.#.attn_gate.weight", Form::tiled_heads},
    {"model.layers.#.linear_attn.in_proj_b.weight", "blk.#.ssm_beta.weight", Form::tiled_each},
    {"model.layers.#.linear_attn.in_proj_a.weight", "blk.#.ssm_alpha.weight", Form::tiled_each},
};

inline constexpr KeyRule kQwen35Keys[] = {{"linear_conv_kernel_dim", "ssm.conv_kernel"},
                                          {"linear_key_head_dim", "ssm.state_size"},
                                          {"linear_num_key_heads", "ssm.group_count"},
                                          {"linear_num_value_heads", "ssm.time_step_rank"},
                                          {"full_attention_interval", "full_attention_interval"}};
inline constexpr KeyRule kQwen35MoeKeys[] = {{"shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
                                             {"norm_topk_prob", "expert_weights_norm", KeyRule::Kind::flag}};

/// Values of expert_gating_func.
inline constexpr std::int64_t kSoftmaxGating = 1, kSigmoidGating = 2;

inline constexpr KeyRule kCohereKeys[] = {{"layer_norm_eps", "attention.layer_norm_epsilon", KeyRule::Kind::number},
                                          {"logit_scale", "logit_scale", KeyRule::Kind::number}};

}  // namespace millrace::convert
