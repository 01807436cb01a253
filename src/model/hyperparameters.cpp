#include "model/hyperparameters.h"

#include <algorithm>
#include <cmath>

namespace millrace::model {
namespace {

/// Reads one architecture's keys; the first failure sticks, and later reads return harmless values.
class KeyReader {
 public:
  explicit KeyReader(const modelfile::Model& file) : file_(file) {}

  std::int64_t required(std::string_view key, std::int64_t least, std::int64_t most) {
    return in_range(key, file_.get_int(arch_key(file_, key)), least, most);
  }
  std::int64_t optional(std::string_view key, std::int64_t fallback, std::int64_t least, std::int64_t most) {
    return in_range(key, file_.get_int_or(arch_key(file_, key), fallback), least, most);
  }
  double optional_float(std::string_view key, double fallback, double above, double most) {
    const Expected<double> value = file_.get_float_or(arch_key(file_, key), fallback);
    if (!value.ok()) return fail(value.status()), fallback;
    if (!std::isfinite(*value) || *value <= above || *value > most)
      return fail(error(Code::corrupt, "{} is {}, which cannot be", arch_key(file_, key), *value)), fallback;
    return *value;
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& status() const { return status_; }

 private:
  std::int64_t in_range(std::string_view key, const Expected<std::int64_t>& value, std::int64_t least,
                        std::int64_t most) {
    if (!value.ok()) return fail(value.status()), least;
    if (*value < least || *value > most) {
      fail(error(Code::corrupt, "{} is {}, which cannot be (it must lie in {}..{})", arch_key(file_, key), *value,
                 least, most));
      return least;
    }
    return *value;
  }

  const modelfile::Model& file_;
  Status status_;
};

// Far above any model there is, far below what could overflow a product of two of them in 64 bits.
constexpr std::int64_t kMostLayers = 10'000, kMostDim = 1 << 20, kMostHeads = 1 << 14, kMostHeadDim = 512;
constexpr std::int64_t kMostContext = 1 << 28, kMostVocab = 1 << 24, kMostExperts = 1 << 14;

Status check_relations(const Hyperparameters& hp) {
  if (hp.heads % hp.kv_heads != 0)
    return error(Code::corrupt, "{} attention heads cannot share {} KV heads evenly", hp.heads, hp.kv_heads);
  if (hp.head_dim % 8 != 0)
    return error(Code::unsupported, "heads of {} channels (this version wants a multiple of 8)", hp.head_dim);
  if (hp.rotary % 2 != 0 || hp.rotary > hp.head_dim)
    return error(Code::corrupt, "RoPE over {} of {} channels cannot be", hp.rotary, hp.head_dim);
  if (hp.top_k > hp.experts)
    return error(Code::corrupt, "{} experts a token out of {} cannot be", hp.top_k, hp.experts);
  return {};
}

}  // namespace

std::string arch_key(const modelfile::Model& file, std::string_view key) {
  const Expected<std::string> architecture = file.get_string("general.architecture");
  return fmt::format("{}.{}", architecture.ok() ? *architecture : "?", key);
}

AttentionSpec plain_attention(const Hyperparameters& hp) {
  AttentionSpec attention;
  attention.heads = hp.heads;
  attention.kv_heads = hp.kv_heads;
  attention.head_dim = hp.head_dim;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(hp.head_dim));
  return attention;
}

Expected<std::int64_t> read_ff_dim(const modelfile::Model& file, const Hyperparameters& hp) {
  if (hp.ff_dim == 0) return error(Code::corrupt, "{} is missing or 0", arch_key(file, "feed_forward_length"));
  return hp.ff_dim;
}

Expected<MixtureSpec> read_mixture(const modelfile::Model& file, const Hyperparameters& hp) {
  if (hp.experts == 0 || hp.expert_ff == 0)
    return error(Code::corrupt, "{} or {} is missing or 0", arch_key(file, "expert_count"),
                 arch_key(file, "expert_feed_forward_length"));
  KeyReader keys(file);
  // Some converters write 0 for "not scaled".
  const double scale = keys.optional_float("expert_weights_scale", 1, -1e-30, 1e6);
  MR_RETURN_IF_ERROR(keys.status());
  MixtureSpec mixture;
  mixture.experts = hp.experts;
  mixture.top_k = hp.top_k;
  mixture.ff_dim = hp.expert_ff;
  mixture.scale = scale == 0 ? 1.0f : static_cast<float>(scale);
  return mixture;
}

Expected<Hyperparameters> read_hyperparameters(const modelfile::Model& file) {
  Hyperparameters hp;
  MR_ASSIGN_OR_RETURN(hp.architecture, file.get_string("general.architecture"));
  if (const Expected<std::string> name = file.get_string("general.name"); name.ok()) hp.name = *name;

  KeyReader keys(file);
  hp.layers = keys.required("block_count", 1, kMostLayers);
  hp.model_dim = keys.required("embedding_length", 1, kMostDim);
  hp.heads = keys.required("attention.head_count", 1, kMostHeads);
  hp.kv_heads = keys.optional("attention.head_count_kv", hp.heads, 1, kMostHeads);
  hp.context_length = keys.required("context_length", 1, kMostContext);
  hp.rms_eps = keys.optional_float("attention.layer_norm_rms_epsilon", 1e-5, 0, 1);
  hp.rope_theta = keys.optional_float("rope.freq_base", 10000, 0, 1e12);
  hp.experts = keys.optional("expert_count", 0, 0, kMostExperts);
  hp.top_k = hp.experts == 0 ? 0 : keys.required("expert_used_count", 1, kMostExperts);
  hp.ff_dim = keys.optional("feed_forward_length", 0, 0, kMostDim);
  hp.expert_ff = hp.experts == 0 ? 0 : keys.optional("expert_feed_forward_length", hp.ff_dim, 1, kMostDim);
  hp.head_dim = keys.optional("attention.key_length", hp.model_dim / hp.heads, 1, kMostHeadDim);
  hp.rotary = keys.optional("rope.dimension_count", hp.head_dim, 2, kMostHeadDim);
  hp.pooling = static_cast<Pooling>(std::min<std::int64_t>(keys.optional("pooling_type", 0, 0, 255), 4));
  const std::int64_t value_dim = keys.optional("attention.value_length", hp.head_dim, 1, kMostHeadDim);
  if (value_dim != hp.head_dim)
    keys.fail(error(Code::unsupported, "keys of {} and values of {} channels (this version wants them equal)",
                    hp.head_dim, value_dim));

  const Expected<bool> causal = file.get_bool_or(arch_key(file, "attention.causal"), true);
  if (!causal.ok()) keys.fail(causal.status());
  if (causal.ok() && !*causal)
    keys.fail(error(Code::unsupported, "tokens that attend to those after them (this version has causal models only)"));

  const modelfile::TensorInfo* table = file.find("token_embd.weight");
  hp.vocab = keys.optional("vocab_size", table == nullptr ? 1 : table->rows(), 1, kMostVocab);
  MR_RETURN_IF_ERROR(keys.status());
  MR_RETURN_IF_ERROR(check_relations(hp));
  return hp;
}

}  // namespace millrace::model
