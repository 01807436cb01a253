// CUDA's launchers: the ops of kernels/gpu, whose headers have their contracts, on one of CUDA's streams. A launcher
// returns the launch's error.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/gpu/delta_chunks.h"
#include "kernels/gpu/delta_step.h"
#include "kernels/gpu/draw.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/gather.h"
#include "kernels/gpu/heads.h"
#include "kernels/gpu/indexer.h"
#include "kernels/gpu/latent.h"
#include "kernels/gpu/launches.h"
#include "kernels/gpu/low_rank.h"
#include "kernels/gpu/ops.h"
#include "kernels/gpu/prompt_int8.h"
#include "kernels/gpu/recurrent.h"
#include "kernels/gpu/whole_rows.h"

namespace millrace::kernels::cuda {

// What calls are made of.
using gpu::ActivateEntriesCall;
using gpu::AttentionCall;
using gpu::Bf16;
using gpu::bf16_bytes;
using gpu::Candidates;
using gpu::ChooseCall;
using gpu::ChooseKeysCall;
using gpu::ClaimExpertsCall;
using gpu::CombineCall;
using gpu::convolve_workspace_bytes;
using gpu::ConvolveCall;
using gpu::delta_chunks_fit;
using gpu::DeltaChunksCall;
using gpu::DeltaRuleCall;
using gpu::DeltaStepCall;
using gpu::Effect;
using gpu::ExpertCall;
using gpu::GatedNormCall;
using gpu::gather_word_bytes;
using gpu::GatherCall;
using gpu::GatherState;
using gpu::half_rows_at;
using gpu::half_rows_bytes;
using gpu::HalfRows;
using gpu::HandOutExpertsCall;
using gpu::has_half_product;
using gpu::has_prompt_product;
using gpu::HeadProductCall;
using gpu::IndexStoreCall;
using gpu::IndexView;
using gpu::kAttentionChunk;
using gpu::kCandidates;
using gpu::kChunkRows;
using gpu::kConvolvedHead;
using gpu::kDeltaTaps;
using gpu::kFewGatherBlocks;
using gpu::kGatherQuad;
using gpu::kGatherStateBytes;
using gpu::kGatherThreads;
using gpu::kIndexDimStep;
using gpu::kLatentSpan;
using gpu::kMatvecRows;
using gpu::kMostChunkKeys;
using gpu::kMostClaimedExperts;
using gpu::kMostDeltaKeys;
using gpu::kMostDeltaValues;
using gpu::kMostGatedHeadDim;
using gpu::kMostGpus;
using gpu::kMostIndexDim;
using gpu::kMostLatentDim;
using gpu::kMostLatentValues;
using gpu::kMostNormedLatent;
using gpu::kMostProducts;
using gpu::kMostStateKeys;
using gpu::kMostTileProducts;
using gpu::kMostVocab;
using gpu::kSegment;
using gpu::kSegmentScales;
using gpu::KvView;
using gpu::kWideHeadDim;
using gpu::kWideHeadShared;
using gpu::LatentAttentionCall;
using gpu::LatentStoreCall;
using gpu::LowRankCall;
using gpu::MatmulCall;
using gpu::Matrix;
using gpu::NormCall;
using gpu::PickCall;
using gpu::PlaceCall;
using gpu::PlainLaunches;
using gpu::Product;
using gpu::ProductCopies;
using gpu::prompt_int8_at;
using gpu::prompt_int8_bytes;
using gpu::PromptInt8;
using gpu::PromptProducts;
using gpu::Q8;
using gpu::q8_at;
using gpu::q8_bytes;
using gpu::Q8Scale;
using gpu::RopeStoreCall;
using gpu::RowTile;
using gpu::RowView;
using gpu::ScanCall;
using gpu::SeenKeys;
using gpu::SigmoidGateCall;
using gpu::StateRun;
using gpu::StateRuns;
using gpu::TakeInCall;
using gpu::TakeInExpertsCall;
using gpu::TakenIn;
using gpu::TurnCall;

// low_rank.h
cudaError_t add_low_rank(const LowRankCall& call, cudaStream_t stream);

// ops.h
cudaError_t matvec(const MatmulCall& call, cudaStream_t stream);
cudaError_t matmul(const MatmulCall& call, cudaStream_t stream);
cudaError_t matmul_prompt(const MatmulCall& call, cudaStream_t stream);
PromptProducts prompt_products();
cudaError_t matvec_experts(const ExpertCall& call, cudaStream_t stream);
cudaError_t matmul_experts(const ExpertCall& call, cudaStream_t stream);
cudaError_t embed(const Matrix& table, const std::int32_t* tokens, std::int32_t rows, std::int32_t cols, float* out,
                  cudaStream_t stream);
cudaError_t rms_norm(const float* x, const std::int32_t* x_index, const std::byte* const* weight, std::int32_t rows,
                     std::int32_t cols, float eps, float* out, Q8 q8, cudaStream_t stream);
cudaError_t quantize_q8(const float* x, std::int64_t x_stride, std::int32_t rows, std::int32_t cols, Q8 out,
                        cudaStream_t stream);
cudaError_t to_bf16(const float* x, std::int64_t n, Bf16* out, cudaStream_t stream);
cudaError_t add(float* x, const float* y, std::int64_t n, cudaStream_t stream);
cudaError_t gate_mul(Activation activation, float limit, float* gate, const float* up, std::int64_t n,
                     cudaStream_t stream);
cudaError_t gather_rows(const float* x, const std::int32_t* index, std::int32_t rows, std::int32_t cols, float* out,
                        cudaStream_t stream);
cudaError_t rope_store(const RopeStoreCall& call, cudaStream_t stream);
cudaError_t rotate_heads(float* x, std::int32_t heads, std::int32_t head_dim, std::int32_t span, bool floats, Q8 out,
                         cudaStream_t stream);
std::int32_t attention_tile_rows(std::int32_t group);
std::size_t attention_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                                      std::int32_t max_position);
cudaError_t attention(const AttentionCall& call, cudaStream_t stream);
cudaError_t route(const float* scores, std::int32_t rows, std::int32_t experts, std::int32_t top_k, bool normalize,
                  float scale, std::int32_t* chosen, float* weights, cudaStream_t stream);
cudaError_t sort_entries(const std::int32_t* chosen, std::int32_t entries, std::int32_t experts, std::int32_t* sorted,
                         std::int32_t* expert_first, cudaStream_t stream);
cudaError_t combine_experts(const float* expert_out, const float* weights, std::int32_t rows, std::int32_t top_k,
                            std::int32_t cols, bool residual, float* y, cudaStream_t stream);
std::size_t sample_workspace_bytes(std::int32_t rows, std::int32_t vocab);
cudaError_t candidates(const float* logits, std::int32_t rows, std::int32_t vocab, Candidates* out,
                       std::byte* workspace, cudaStream_t stream);

// gates.h
cudaError_t scale(float* x, float factor, std::int64_t n, cudaStream_t stream);
cudaError_t add_scaled(float* x, const float* y, float factor, std::int64_t n, cudaStream_t stream);
cudaError_t temper(float* x, const std::int32_t* position, float scale, std::int32_t period, std::int32_t offset,
                   std::int32_t rows, std::int32_t cols, cudaStream_t stream);
cudaError_t gate_rows(Activation activation, float limit, float* gate, const float* up, std::int64_t up_stride,
                      std::int32_t rows, std::int32_t cols, cudaStream_t stream);
cudaError_t scale_by(float* x, const std::byte* const* scalar, const std::byte* const* bias, std::int64_t rows,
                     std::int32_t cols, cudaStream_t stream);
cudaError_t softcap(float* x, float cap, std::int64_t n, cudaStream_t stream);
cudaError_t place_columns(const PlaceCall& call, cudaStream_t stream);
cudaError_t choose(const ChooseCall& call, cudaStream_t stream);

// heads.h
cudaError_t pick_heads(const PickCall& call, cudaStream_t stream);
cudaError_t multiply(float* x, const float* y, std::int64_t n, cudaStream_t stream);
cudaError_t sigmoid_gate(float* x, const float* gate, std::int64_t n, cudaStream_t stream);
cudaError_t sigmoid_gate(const SigmoidGateCall& call, cudaStream_t stream);
cudaError_t sigmoid_gate_rows(float* x, const float* gate, std::int32_t rows, std::int32_t cols, cudaStream_t stream);
cudaError_t l2_norm_heads(float* x, std::int64_t cols, std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                          float eps, cudaStream_t stream);
cudaError_t time_step(float* decay, float* step, const std::byte* const* a, const std::byte* const* bias,
                      std::int32_t rows, std::int32_t cols, std::int32_t together, float bound, cudaStream_t stream);
cudaError_t rms_norm_groups(float* x, const std::byte* const* weight, std::int32_t rows, std::int32_t groups,
                            std::int32_t dim, float eps, cudaStream_t stream);
cudaError_t rms_norm(const NormCall& call, cudaStream_t stream);
cudaError_t gated_norm(const GatedNormCall& call, cudaStream_t stream);
cudaError_t activate(Activation activation, float* x, std::int64_t n, cudaStream_t stream);
cudaError_t xielu(const Xielu& shape, float* x, std::int64_t n, cudaStream_t stream);
cudaError_t largest(const float* x, std::int32_t rows, std::int32_t cols, float* out, cudaStream_t stream);
cudaError_t activate_entries(const ActivateEntriesCall& call, cudaStream_t stream);
cudaError_t combine(const CombineCall& call, cudaStream_t stream);

// latent.h
cudaError_t store_latent(const LatentStoreCall& call, cudaStream_t stream);
cudaError_t head_product(const HeadProductCall& call, cudaStream_t stream);
std::size_t latent_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t v_dim,
                                   std::int32_t max_position);
cudaError_t latent_attention(const LatentAttentionCall& call, cudaStream_t stream);

// indexer.h
cudaError_t store_index(const IndexStoreCall& call, cudaStream_t stream);
std::size_t choose_workspace_bytes(std::int32_t rows, std::int32_t max_position);
cudaError_t choose_keys(const ChooseKeysCall& call, cudaStream_t stream);

// recurrent.h
cudaError_t convolve(const ConvolveCall& call, cudaStream_t stream);
cudaError_t delta_rule(const DeltaRuleCall& call, cudaStream_t stream);
cudaError_t scan(const ScanCall& call, cudaStream_t stream);

// delta_step.h
cudaError_t delta_step(const DeltaStepCall& call, cudaStream_t stream);

// delta_chunks.h
bool has_delta_chunks();
std::size_t delta_chunks_workspace_bytes(std::int64_t runs, std::int64_t key_heads, std::int64_t value_heads,
                                         std::int64_t key_dim);
cudaError_t delta_chunks(const DeltaChunksCall& call, cudaStream_t stream);

// exchange.h
cudaError_t hand_out(const float* from, std::int64_t count, float* to, std::uint32_t* flag, std::uint32_t number,
                     std::uint32_t* arrived, cudaStream_t stream);
cudaError_t hand_out_experts(const HandOutExpertsCall& call, cudaStream_t stream);
cudaError_t take_in(const TakeInCall& call, cudaStream_t stream);
cudaError_t claim_experts(const ClaimExpertsCall& call, cudaStream_t stream);
cudaError_t take_in_experts(const TakeInExpertsCall& call, cudaStream_t stream);

// whole_rows.h
cudaError_t layer_norm(const float* x, const std::byte* const* weight, const std::byte* const* bias, std::int32_t rows,
                       std::int32_t cols, float eps, float* out, cudaStream_t stream);
cudaError_t norm_heads(float* x, const std::byte* const* weight, std::int32_t heads, std::int32_t head_dim, float eps,
                       cudaStream_t stream);
cudaError_t turn_heads(const TurnCall& call, cudaStream_t stream);
cudaError_t clamp(float* x, float least, float most, std::int64_t n, cudaStream_t stream);
cudaError_t standardize(float* x, const std::byte* const* bias, const std::byte* const* scale, std::int64_t rows,
                        std::int32_t cols, cudaStream_t stream);
cudaError_t merge_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, bool by_channel,
                       float* out, cudaStream_t stream);
cudaError_t mean_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, float* out,
                      cudaStream_t stream);
cudaError_t to_half_rows(const float* x, std::int32_t rows, std::int32_t cols, HalfRows out, cudaStream_t stream);
cudaError_t matmul_half(const MatmulCall& call, HalfRows x, cudaStream_t stream);

// gather.h
cudaError_t gather(const GatherCall& call, cudaStream_t stream);
cudaError_t meet(const GatherCall& call, cudaStream_t stream);

// draw.h
cudaError_t draw(const float* logits, std::int32_t rows, std::int32_t vocab, const DrawRule* rules,
                 const Candidates* found, std::int32_t* drawn, cudaStream_t stream);

// prompt_int8.h
cudaError_t round_prompt(const Bf16* x, std::int32_t rows, std::int32_t cols, PromptInt8 out, cudaStream_t stream);
cudaError_t round_prompt(const float* x, std::int32_t rows, std::int32_t cols, PromptInt8 out, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
