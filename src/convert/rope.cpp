#include "convert/rope.h"

#include <algorithm>
#include <cmath>

#include "modelfile/escape.h"

namespace millrace::convert {

using nlohmann::json;

namespace {

constexpr std::int64_t kMostContext = 1 << 28;
constexpr float kNeverTurns = 1e30f;

/// Llama 3's divisors of frequencies: the factor for wavelengths beyond the original context, 1 for much shorter ones,
/// and an interpolation between.
struct Llama3 {
  double factor = 8, low = 1, high = 4, original = 8192;
  std::vector<float> factors(double theta, std::int64_t rotary) const {
    std::vector<float> all;
    for (std::int64_t i = 0; i < rotary / 2; ++i) {
      const double wave =
          2 * std::acos(-1.0) * std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(rotary));
      const double smooth = std::clamp((original / wave - low) / (high - low), 0.0, 1.0);
      all.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
    }
    return all;
  }
};

std::vector<float> floats_of(const std::vector<double>& numbers) { return {numbers.begin(), numbers.end()}; }

double growth(double factor, double multiplier) { return factor <= 1 ? 1 : 0.1 * multiplier * std::log(factor) + 1; }

/// Step-3.5: of layers with divisors half of the channels rotate; those of the others are 1.
bool rotates_half(const Header& header) { return header.architecture() == "step35"; }

/// Gemma 4's divisors of frequencies: the first part of a head's channels is rotated, the others are not.
std::vector<float> proportional_factors(std::int64_t head_dim, double part) {
  std::vector<float> all(static_cast<std::size_t>(head_dim / 2), kNeverTurns);
  const auto turned = static_cast<std::ptrdiff_t>(part * static_cast<double>(head_dim) / 2);
  std::fill_n(all.begin(), std::clamp<std::ptrdiff_t>(turned, 0, std::ssize(all)), 1.0f);
  return all;
}

/// The factor of transformers' sines and cosines, relative to the one that readers of GGUF apply themselves.
void read_yarn(Config& config, Config& rope, Header& header) {
  const std::int64_t original = rope.required("original_max_position_embeddings", 1, kMostContext);
  const double factor =
      rope.number("factor", static_cast<double>(header.integer("context_length")) / static_cast<double>(original));
  header.set("rope.scaling.type", std::string("yarn"));
  header.set_number("rope.scaling.factor", factor);
  header.set_integer("rope.scaling.original_context_length", original);
  header.set_number("rope.scaling.yarn_beta_fast", rope.number("beta_fast", 32));
  header.set_number("rope.scaling.yarn_beta_slow", rope.number("beta_slow", 1));
  const double scale = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
  const double wanted = rope.number(
      "attention_factor", scale != 0 && all != 0 ? growth(factor, scale) / growth(factor, all) : growth(factor, 1));
  constexpr std::string_view kLatent[] = {"deepseek2", "deepseek32", "glm-dsa", "mistral4"};
  const bool latent = std::ranges::find(kLatent, header.architecture()) != std::end(kLatent);
  double taken = growth(factor, 1);
  if (all != 0 && latent) {  // it scales scores, not rotations
    header.set_number("rope.scaling.yarn_log_multiplier", 0.1 * all);
    taken = 1;
  } else if (all != 0 && header.architecture() == "mistral3") {
    header.set_number("rope.scaling.yarn_log_multiplier", all);
    taken /= growth(factor, all);
  }
  if (std::abs(wanted / taken - 1) > 1e-7) header.set_number("rope.scaling.attn_factor", wanted / taken);
  const bool exact = header.architecture() == "gpt-oss";
  if (rope.flag("truncate", true) == exact)
    config.fail(error(Code::unsupported,
                      "truncate of YaRN in config.json is {}: this version has such models with {} alone", exact,
                      !exact));
}

std::vector<Factors> read_longrope(Config& config, Config& rope, Header& header) {
  const std::int64_t context = header.integer("context_length");
  const std::int64_t original = rope.required("original_max_position_embeddings", 1, kMostContext);
  const double stretch = rope.number("factor", static_cast<double>(context) / static_cast<double>(original));
  const double usual = stretch <= 1 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(static_cast<double>(original)));
  header.set("rope.scaling.type", std::string("longrope"));
  header.set_integer("rope.scaling.original_context_length", original);
  header.set_number("rope.scaling.attn_factor", rope.number("attention_factor", usual));
  std::vector<Factors> factors{{"rope_factors_long.weight", floats_of(rope.numbers("long_factor"))},
                               {"rope_factors_short.weight", floats_of(rope.numbers("short_factor"))}};
  for (const Factors& set : factors)
    if (set.floats.empty() || set.floats.size() != factors.front().floats.size())
      config.fail(error(Code::corrupt, "long_factor and short_factor of rope_scaling are no lists of one length"));
  return factors;
}

}  // namespace

/// Merged as in transformers 5: rope_scaling takes precedence over rope_parameters; the top-level base and rotary
/// factor apply if neither has one; a top-level context takes precedence.
Config rotation_of(const Config& config) {
  json rope = json::object();
  const json *whole = config.find("rope_parameters"), *scaling = config.find("rope_scaling");
  const bool two = config.has("rope_local_base_freq");  // another base for layers with a window
  if (whole != nullptr && whole->is_object())
    rope = whole->contains("full_attention") ? (*whole)["full_attention"] : *whole;
  if (!rope.is_object()) rope = json::object();
  if (scaling != nullptr && scaling->is_object() && !scaling->empty()) {
    if (two)
      rope.update(*scaling);
    else
      rope = *scaling;
  }
  if (!rope.contains("rope_type") && rope.contains("type")) rope["rope_type"] = rope["type"];
  for (const char* key : {"rope_theta", "partial_rotary_factor"})
    if (const json* own = config.find(key); own != nullptr && !rope.contains(key)) rope[key] = *own;
  const char* context = "original_max_position_embeddings";
  if (const json* own = config.find(context); own != nullptr)
    rope[context] = *own;
  else if (const json* all = config.find("max_position_embeddings"); all != nullptr && !rope.contains(context))
    rope[context] = *all;
  return Config(rope);
}

std::vector<Factors> read_rotations(Config& config, Header& header) {
  Config rope = rotation_of(config);
  std::vector<Factors> factors;
  const double theta = rope.number("rope_theta", 0);
  if (theta > 0) header.set_number("rope.freq_base", theta);
  const Config local = config.within("rope_parameters").within("sliding_attention");
  if (config.has("rope_local_base_freq") || local.has("rope_theta"))
    header.set_number("rope.freq_base_swa",
                      Config(local).number("rope_theta", config.number("rope_local_base_freq", 0)));
  const std::int64_t dim = header.integer("attention.key_length");
  std::string type = rope.text("rope_type", "default");
  if (header.architecture() == "phi3" && (type == "su" || type == "yarn")) type = "longrope";
  if (const double part = rope.number("partial_rotary_factor", 1); part != 1 && config.partial_by_default())
    header.set_integer("rope.dimension_count", static_cast<std::int64_t>(static_cast<double>(dim) * part));
  else if (part != 1 && type != "default" && type != "proportional")
    config.fail(
        error(Code::unsupported,
              "partial_rotary_factor in config.json is {}: such models have it without a scaling alone, where it "
              "has no effect",
              part));
  if (type == "linear") {
    header.set("rope.scaling.type", type);
    header.set_number("rope.scaling.factor", rope.number("factor", 1));
  } else if (type == "yarn") {
    read_yarn(config, rope, header);
  } else if (type == "longrope") {
    factors = read_longrope(config, rope, header);
  } else if (type == "llama3") {
    const Llama3 llama3{rope.number("factor", 8), rope.number("low_freq_factor", 1), rope.number("high_freq_factor", 4),
                        rope.number("original_max_position_embeddings", 8192)};
    const std::int64_t rotary = header.integer("rope.dimension_count", dim);
    std::vector<float> divisors = llama3.factors(theta, rotates_half(header) ? rotary / 2 : rotary);
    divisors.resize(static_cast<std::size_t>(rotary / 2), 1.0f);
    factors.push_back({"rope_freqs.weight", std::move(divisors)});
  } else if (type == "proportional") {
    const std::int64_t wide = config.required("global_head_dim", 2, 1 << 16);
    factors.push_back({"rope_freqs.weight", proportional_factors(wide, rope.number("partial_rotary_factor", 1))});
    rope.expect("factor", 1);
  } else if (type != "default" && type != "mrope") {
    config.fail(error(Code::unsupported,
                      "rope_type '{}' in config.json: this version knows default, linear, llama3, yarn, longrope and "
                      "proportional",
                      modelfile::escape(type, 40)));
  }
  config.fail(rope.status());
  return factors;
}

namespace {

/// Finds the scaling with these factors among those of published models.
Expected<Llama3> llama3_of(const std::vector<float>& factors, double theta) {
  const auto rotary = static_cast<std::int64_t>(factors.size()) * 2;
  Llama3 llama3;
  llama3.factor = *std::max_element(factors.begin(), factors.end());
  for (llama3.original = 64; llama3.original <= kMostContext; llama3.original *= 2)
    for (const double high : {4.0, 2.0, 8.0, 32.0})
      for (const double low : {1.0, 2.0, 0.5}) {
        llama3.low = low;
        llama3.high = high;
        if (low < high && llama3.factors(theta, rotary) == factors) return llama3;
      }
  return error(Code::unsupported, "rope_freqs.weight holds factors that no known scaling of a checkpoint gives");
}

Status write_longrope(const Header& header,
                      const std::function<Expected<std::vector<float>>(std::string_view)>& factors, json& scaling) {
  scaling["rope_type"] = "longrope";
  for (const auto& [name, key] :
       {std::pair("rope_factors_long.weight", "long_factor"), std::pair("rope_factors_short.weight", "short_factor")}) {
    MR_ASSIGN_OR_RETURN(const std::vector<float> floats, factors(name));
    scaling[key] = floats;
  }
  scaling["attention_factor"] = header.number("rope.scaling.attn_factor", 1);
  return {};
}

}  // namespace

Status write_rotations(const Header& header,
                       const std::function<Expected<std::vector<float>>(std::string_view name)>& factors,
                       json& config) {
  const double theta = header.number("rope.freq_base", 10000);
  const std::string type = header.text("rope.scaling.type", "none");
  json scaling = json::object();
  MR_ASSIGN_OR_RETURN(std::vector<float> frequencies, factors("rope_freqs.weight"));
  if (rotates_half(header)) frequencies.resize(frequencies.size() / 2);
  if (type == "longrope") {
    MR_RETURN_IF_ERROR(write_longrope(header, factors, scaling));
    config["original_max_position_embeddings"] = header.integer("rope.scaling.original_context_length");
  } else if (type == "yarn") {
    scaling = {{"rope_type", "yarn"},
               {"factor", header.number("rope.scaling.factor", 1)},
               {"original_max_position_embeddings", header.integer("rope.scaling.original_context_length")},
               {"beta_fast", header.number("rope.scaling.yarn_beta_fast", 32)},
               {"beta_slow", header.number("rope.scaling.yarn_beta_slow", 1)}};
    if (header.has("rope.scaling.attn_factor")) {
      const double factor = header.number("rope.scaling.factor", 1);
      const double multiplier = header.number("rope.scaling.yarn_log_multiplier", 0);
      const bool scores = header.has("attention.kv_lora_rank") && multiplier != 0;
      scaling["attention_factor"] =
          header.number("rope.scaling.attn_factor") * (scores ? 1 : growth(factor, 1) / growth(factor, multiplier));
    }
    if (header.architecture() == "gpt-oss") scaling["truncate"] = false;
  } else if (type == "linear") {
    scaling = {{"rope_type", "linear"}, {"factor", header.number("rope.scaling.factor", 1)}};
  } else if (const auto turned = std::count(frequencies.begin(), frequencies.end(), 1.0f);
             !frequencies.empty() &&
             turned + std::count(frequencies.begin(), frequencies.end(), kNeverTurns) == std::ssize(frequencies)) {
    scaling = {{"rope_type", "proportional"},
               {"partial_rotary_factor", static_cast<double>(turned) / static_cast<double>(frequencies.size())}};
  } else if (!frequencies.empty()) {
    MR_ASSIGN_OR_RETURN(const Llama3 llama3, llama3_of(frequencies, theta));
    scaling = {{"rope_type", "llama3"},
               {"factor", llama3.factor},
               {"low_freq_factor", llama3.low},
               {"high_freq_factor", llama3.high},
               {"original_max_position_embeddings", static_cast<std::int64_t>(llama3.original)}};
  }
  config["rope_theta"] = theta;
  if (!scaling.empty()) config["rope_scaling"] = scaling;
  // The same in the form of files since 2025.
  json whole = scaling;
  if (!whole.contains("rope_type")) whole["rope_type"] = "default";
  whole["rope_theta"] = theta;
  const std::int64_t heads = std::max<std::int64_t>(1, header.integer("attention.head_count", 1));
  const std::int64_t dim = header.integer("attention.key_length", header.integer("embedding_length") / heads);
  const std::int64_t turned = header.integer("rope.dimension_count", dim);
  if (turned != dim && dim > 0 && !header.has("attention.kv_lora_rank"))
    config["partial_rotary_factor"] = whole["partial_rotary_factor"] =
        static_cast<double>(turned) / static_cast<double>(dim);
  if (header.has("rope.freq_base_swa")) {
    const double local = header.number("rope.freq_base_swa");
    config["rope_local_base_freq"] = local;
    whole = {{"full_attention", whole}, {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local}}}};
  }
  config["rope_parameters"] = whole;
  return {};
}

}  // namespace millrace::convert
