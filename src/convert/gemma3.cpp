// Gemma 2 and the language model of Gemma 3: four norms per layer, which store weight - 1; five layers with a window
// (Gemma 2: one), then one with full attention.
#include <algorithm>

#include "convert/names.h"
#include "modelfile/escape.h"

namespace millrace::convert {
namespace {

constexpr NameRule kNorms[] = {
    {"model.layers.#.post_attention_layernorm.weight", "blk.#.post_attention_norm.weight", Form::norm},
    {"model.layers.#.pre_feedforward_layernorm.weight", "blk.#.ffn_norm.weight", Form::norm},
    {"model.layers.#.post_feedforward_layernorm.weight", "blk.#.post_ffw_norm.weight", Form::norm},
};
constexpr Names kGemma3Names[] = {kTopNames, kAttentionNames, kNorms, kDenseNames};
constexpr KeyRule kGemma3Keys[] = {{"sliding_window", "attention.sliding_window"},
                                   {"final_logit_softcapping", "final_logit_softcapping", KeyRule::Kind::number}};

constexpr std::int64_t kGemma3UsualPeriod = 6, kLayersOf27B = 62;

/// The period of layers with full attention, from the list of layer types.
std::int64_t period_of(Config& config, const std::vector<std::string>& kinds) {
  const auto first = std::find(kinds.begin(), kinds.end(), "full_attention");
  const std::int64_t period = first - kinds.begin() + 1;
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if ((kinds[i] == "full_attention") != (static_cast<std::int64_t>(i + 1) % period == 0))
      config.fail(error(Code::unsupported,
                        "layer_types in config.json repeats nothing: layer {} is out of the order of the others", i));
  return period;
}

void read_gemma3(Config& config, Header& header) {
  const auto kinds = config.texts("layer_types");
  const std::string local = config.within("rope_parameters").within("sliding_attention").text("rope_type", "default");
  if (local != "default")
    config.fail(error(Code::unsupported,
                      "rope_parameters in config.json scale sliding_attention by '{}': this version has windows with "
                      "the default alone",
                      modelfile::escape(local, 40)));
  const std::int64_t period = kinds.empty() ? config.optional("sliding_window_pattern", kGemma3UsualPeriod, 1, 1 << 16)
                                            : period_of(config, kinds);
  if (period != kGemma3UsualPeriod) header.set_integer("attention.sliding_window_pattern", period);
  // GGUF has no key for the divisor of the scores: readers derive it from the number of layers.
  const bool by_width = header.layers() == kLayersOf27B;
  const std::int64_t scaled =
      by_width ? header.integer("embedding_length") / std::max<std::int64_t>(1, header.integer("attention.head_count"))
               : header.integer("attention.key_length");
  config.expect("query_pre_attn_scalar", scaled);
  config.expect("attn_logit_softcapping", nullptr);
  config.expect("hidden_activation", "gelu_pytorch_tanh");
  config.expect("use_bidirectional_attention", false);
}

Status write_gemma3(const Header& header, nlohmann::json& config) {
  const std::int64_t period = header.integer("attention.sliding_window_pattern", kGemma3UsualPeriod);
  config["layer_types"] = periodic_layer_types(header, period, "sliding_attention");
  config["sliding_window_pattern"] = period;
  const bool by_width = header.layers() == kLayersOf27B;
  config["query_pre_attn_scalar"] = by_width
                                        ? header.integer("embedding_length") / header.integer("attention.head_count")
                                        : header.integer("attention.key_length");
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config.erase("hidden_act");
  return {};
}

constexpr KeyRule kKeysOf2[] = {{"sliding_window", "attention.sliding_window"}};
constexpr std::int64_t kPeriodOf2 = 2, kLayersOf27BOf2 = 46;

std::int64_t scaled_of_2(const Header& header) {
  return header.layers() == kLayersOf27BOf2
             ? header.integer("embedding_length") / std::max<std::int64_t>(1, header.integer("attention.head_count"))
             : header.integer("attention.key_length");
}

/// Writes caps of 0, too: readers use the published models' cap if the key is absent.
void read_2(Config& config, Header& header) {
  const auto kinds = config.texts("layer_types");
  if (!kinds.empty() && period_of(config, kinds) != kPeriodOf2)
    config.fail(error(Code::unsupported, "layer_types in config.json: every second layer of such models sees all"));
  header.set_number("attn_logit_softcapping", config.number("attn_logit_softcapping", 0));
  header.set_number("final_logit_softcapping", config.number("final_logit_softcapping", 0));
  config.expect("query_pre_attn_scalar", scaled_of_2(header));
  config.expect("hidden_activation", "gelu_pytorch_tanh");
  config.expect("use_bidirectional_attention", false);
}

Status write_2(const Header& header, nlohmann::json& config) {
  const auto cap = [&](const char* key, double usual) {
    const double number = header.number(key, usual);
    config[key] = number > 0 ? nlohmann::json(number) : nlohmann::json();
  };
  cap("attn_logit_softcapping", 50);
  cap("final_logit_softcapping", 30);
  config["layer_types"] = periodic_layer_types(header, kPeriodOf2, "sliding_attention");
  config["query_pre_attn_scalar"] = scaled_of_2(header);
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config.erase("hidden_act");
  return {};
}

}  // namespace

const Family kGemma2{.model_type = "gemma2",
                     .model_class = "Gemma2ForCausalLM",
                     .architecture = "gemma2",
                     .names = kGemma3Names,
                     .keys = {kKeysOf2},
                     .norm_shift = 1,
                     .read = read_2,
                     .write = write_2};
const Family kGemma3{.model_type = "gemma3_text",
                     .model_class = "Gemma3ForCausalLM",
                     .architecture = "gemma3",
                     .names = kGemma3Names,
                     .keys = {kGemma3Keys},
                     .norm_shift = 1,
                     .read = read_gemma3,
                     .write = write_gemma3};

}  // namespace millrace::convert
