// The architectures registry.cpp chooses from: each reads what its layers are from a file's metadata.
// To add one: write its file, declare its function here, name it there.
#pragma once

#include "base/status.h"
#include "model/layer_spec.h"
#include "model/model.h"
#include "modelfile/gguf.h"

namespace millrace::model {

// Errors of each: not_found, corrupt, unsupported; a key or a tensor, named.
Expected<DecoderSpec> afmoe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> apertus_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> arcee_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> baichuan_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> bailingmoe3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> bailingmoe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> bert_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> bloom_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> cohere2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> cohere2moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> command_r_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> deepseek2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> deepseek32_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> deepseek4_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> deepseek_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> dots1_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> ernie4_5_moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> eurobert_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> exaone4_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> exaone_moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> falcon_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> falcon_h1_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> gemma_embedding_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> gemma2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> gemma3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> llama4_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> gemma3n_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> gemma4_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> gemma_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> glm4_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> glm4moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> glm_dsa_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> gpt2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> gpt_oss_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> gptneox_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> granite_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> granitehybrid_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> hunyuan_dense_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> hunyuan_moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> hy_v3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> jina_bert_v2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> jina_bert_v3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> kimi_linear_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> laguna_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> lfm2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> lfm2moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> llama_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> mamba_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> jamba_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> mamba2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> mimo2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> minicpm3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> minicpm_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> minimax_m2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> minimax_m3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> mistral3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> modern_bert_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> mpt_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> nemotron_h_moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> nemotron_h_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> nemotron_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> nomic_bert_moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> nomic_bert_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> olmo2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> olmoe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> orion_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> phi2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> phi3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> phimoe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> plamo3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> qwen2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> qwen2moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> qwen35_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> qwen35moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> qwen3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> qwen3moe_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> qwen3next_spec(const modelfile::Model& file, const Hyperparameters& hp);
/// Qwen3.8-Flash-Next.
Expected<DecoderSpec> qwen4exp_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> qwen_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> seed_oss_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> smollm3_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> stablelm_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> starcoder2_spec(const modelfile::Model& file, const Hyperparameters& hp);
Expected<DecoderSpec> step35_spec(const modelfile::Model& file, const Hyperparameters& hp);

}  // namespace millrace::model
