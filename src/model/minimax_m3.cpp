// MiniMax-M3: grouped-query attention with half of a head's channels rotated, whose KV heads each see blocks of tokens
// that an index head of their own chooses; before such layers some dense ones that see all. The mixtures have a part
// that all tokens use, and a router that takes sigmoids and chooses with a bias; all gates and ups are clamped as
// gpt-oss's are. Source: MiniMax-M3's model card (2026); keys and tensors as in llama.cpp's files of August 2026.
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {
namespace {

Expected<IndexerSpec> read_block_indexer(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  IndexerSpec index;
  exec::Indexer& indexer = index.indexer;
  indexer.heads = keys.required("attention.indexer.head_count", 1, 1024);
  indexer.head_dim = keys.required("attention.indexer.key_length", hp.rotary, kernels::kMostIndexDim);
  indexer.top_k = keys.required("attention.indexer.top_k", 1, 1 << 16);
  indexer.block = keys.required("attention.indexer.block_size", 1, 1 << 20);
  indexer.local = keys.required("attention.indexer.local_blocks", 0, indexer.top_k);
  MR_RETURN_IF_ERROR(keys.status());
  if (!exec::is_index_block(indexer.block))
    return error(Code::unsupported, "{} is {} (this version has blocks of a multiple of {} tokens that divides {})",
                 arch_key(file, "attention.indexer.block_size"), indexer.block, kv::kBlockTokens,
                 kernels::kAttentionChunk);
  if (indexer.heads != hp.kv_heads || 2 * indexer.heads > indexer.block)
    return error(Code::unsupported, "{} is {} (this version has one index head for each of {} KV heads, at most {})",
                 arch_key(file, "attention.indexer.head_count"), indexer.heads, hp.kv_heads, indexer.block / 2);
  return index;
}

}  // namespace

Expected<DecoderSpec> minimax_m3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  const std::int64_t leading = keys.optional("leading_dense_block_count", 0, 0, hp.layers);
  MR_RETURN_IF_ERROR(keys.status());
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.norm = HeadNorm::each;
  layer.attention.whole_pictures = false;
  layer.activation = kernels::Activation::clamped;
  LayerSpec dense = layer;
  if (leading > 0) {
    MR_ASSIGN_OR_RETURN(dense.ff_dim, read_ff_dim(file, hp));
  }
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(leading), dense);
  if (leading < hp.layers) {
    MixtureSpec usual;
    usual.gating = exec::Gating::sigmoid;
    MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp, usual));
    MR_ASSIGN_OR_RETURN(layer.attention.index, read_block_indexer(file, hp));
    layer.mixture.selection_bias = true;
  }
  spec.layers.insert(spec.layers.end(), static_cast<std::size_t>(hp.layers - leading), layer);
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.back().neox = true;
  spec.guesses = false;  // published files have no such block
  return spec;
}

}  // namespace millrace::model
