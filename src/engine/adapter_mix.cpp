#include "engine/adapter_mix.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/bytes.h"
#include "base/log.h"
#include "model/adapter.h"
#include "modelfile/escape.h"

namespace millrace::engine {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kKeyedTokens = 8;  // 31 bits of a hash each

/// Of a folder all of its name.
std::string name_of(const AdapterOptions& adapter) {
  if (!adapter.name.empty()) return adapter.name;
  const fs::path path = fs::path(adapter.path).lexically_normal();
  const fs::path last = path.has_filename() ? path.filename() : path.parent_path().filename();
  return last.extension() == ".gguf" ? last.stem().string() : last.string();
}

/// How the user named it, for an error.
template <typename Named>  // AdapterOptions, AdapterState
std::string given_as(const Named& adapter) {
  return (adapter.of_model ? "ADAPTER " : "--lora ") + modelfile::escape(adapter.path, 200);
}

Status no_number(float scale) {
  return error(Code::invalid_argument, "an adapter's scale has to be a number, and is {}; give one such as 0.5", scale);
}

}  // namespace

Expected<AdapterOptions> parse_adapter(std::string_view text) {
  AdapterOptions adapter;
  adapter.path = text;
  if (const std::size_t at = text.rfind('='); at != std::string_view::npos) {
    const char* const end = text.data() + text.size();
    const auto [rest, code] = std::from_chars(text.data() + at + 1, end, adapter.scale);
    if (code == std::errc() && rest == end) {
      adapter.path = text.substr(0, at);
      if (!std::isfinite(adapter.scale)) return no_number(adapter.scale);
    } else {
      adapter.scale = 1;
    }
  }
  if (adapter.path.empty())
    return error(Code::invalid_argument, "--lora {}: name an adapter's file", modelfile::escape(text, 80));
  adapter.name = name_of(adapter);
  return adapter;
}

Status check_adapter_device(const EngineOptions& options) {
  if (options.part.cluster != nullptr || options.part.ranks > 1 || !options.part.stage.whole())
    return error(Code::unsupported, "adapters (--lora) are for one process, not for several; leave one of both out");
  if (!options.device.gpus_beside.empty())
    return error(Code::unsupported,
                 "adapters (--lora) are for one GPU, not for several; name one, or use --device cpu");
  return {};
}

Status read_adapters(const EngineOptions& options, const modelfile::Model& file, Parts& parts) {
  if (options.model.adapters.empty()) return {};
  MR_RETURN_IF_ERROR(check_adapter_device(options));
  parts.adapter_states.clear();
  parts.limits.adapters = std::ssize(options.model.adapters);
  parts.adapter_bytes = 0;
  parts.adapted_weights.clear();
  parts.adapts_embedding = false;
  for (const AdapterOptions& adapter : options.model.adapters) {
    const std::string name = name_of(adapter);
    const auto is_it = [&](const AdapterState& other) { return other.name == name; };
    if (std::any_of(parts.adapter_states.begin(), parts.adapter_states.end(), is_it))
      return error(Code::invalid_argument, "{}: there is an adapter named {} already; rename the file",
                   given_as(adapter), modelfile::escape(name, 80));
    if (!std::isfinite(adapter.scale)) return no_number(adapter.scale);
    MR_ASSIGN_OR_RETURN(const model::AdapterFile opened, model::AdapterFile::open(adapter.path));
    if (const Status fits = opened.check(file); !fits.ok()) return fits.with_context(given_as(adapter));
    parts.adapter_bytes += opened.memory_bytes();
    parts.adapts_embedding = parts.adapts_embedding || opened.adapts_embedding();
    for (const residency::WeightRef ref : opened.weights(*parts.model)) parts.adapted_weights.push_back(ref);
    parts.limits.adapter_rank = std::max(parts.limits.adapter_rank, opened.most_rank());
    parts.adapter_states.push_back(
        {name, adapter.path, adapter.scale, adapter.scale == 0 ? 1 : adapter.scale, adapter.of_model});
  }
  return {};
}

Status load_adapters(const EngineOptions& options, Parts& parts) {
  if (options.model.adapters.empty()) return {};
  modelfile::OpenOptions no_words;
  no_words.skip_vocabulary = true;
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, open_file(options, no_words));
  parts.adapters = std::make_unique<exec::Adapters>();
  for (const AdapterState& state : parts.adapter_states) {
    MR_ASSIGN_OR_RETURN(const model::AdapterFile opened, model::AdapterFile::open(state.path));
    auto adapter = opened.load(file, *parts.model, *parts.budget);
    if (!adapter.ok()) return adapter.status().with_context(given_as(state));
    if (opened.most_rank() > parts.limits.adapter_rank)
      return error(Code::io_error, "{}: the file changed while it was read; try again", given_as(state));
    adapter->name = state.name;
    log::info("adapter {}: {} matrices, {}", state.name, opened.tensors().size(), format_bytes(opened.memory_bytes()));
    parts.adapters->push_back(std::move(*adapter));
  }
  return {};
}

Expected<kv::AdapterMix> resolve_mix(const std::optional<kv::AdapterMix>& asked, std::span<const AdapterState> states) {
  kv::AdapterMix mix;
  if (asked) {
    mix = *asked;
  } else {
    for (std::size_t i = 0; i < states.size(); ++i) mix.push_back({static_cast<std::int32_t>(i), states[i].scale});
  }
  std::sort(mix.begin(), mix.end(), [](const auto& one, const auto& other) { return one.adapter < other.adapter; });
  for (std::size_t i = 0; i < mix.size(); ++i) {
    if (mix[i].adapter < 0 || mix[i].adapter >= std::ssize(states))
      return error(Code::invalid_argument, "there is no adapter {}: the model has {}{}", mix[i].adapter, states.size(),
                   states.empty() ? "; load some with --lora" : ", counted from 0");
    if (i > 0 && mix[i].adapter == mix[i - 1].adapter)
      return error(Code::invalid_argument, "adapter {} is asked for twice; name it once", mix[i].adapter);
    if (!std::isfinite(mix[i].scale)) return no_number(mix[i].scale);
  }
  std::erase_if(mix, [](const kv::AdapterScale& one) { return one.scale == 0; });
  return mix;
}

std::uint64_t mix_key(const kv::AdapterMix& mix, const exec::Adapters* adapters) {
  std::uint64_t key = 0;
  for (const kv::AdapterScale& one : mix) {
    const exec::Adapter& adapter = (*adapters)[static_cast<std::size_t>(one.adapter)];
    key = XXH3_64bits_withSeed(&adapter.digest, sizeof adapter.digest, key + 1);
    key = XXH3_64bits_withSeed(&one.scale, sizeof one.scale, key);
  }
  return key;
}

std::span<const text::TokenId> KvKeys::of(std::span<const text::TokenId> tokens) {
  if (key_ == 0) return tokens;
  const std::size_t known = std::min(keys_.size(), tokens.size());
  keys_.resize(known);
  keys_.insert(keys_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(known), tokens.end());
  for (std::size_t i = known; i < std::min(keys_.size(), kKeyedTokens); ++i) {
    const std::uint64_t hash = XXH3_64bits_withSeed(&tokens[i], sizeof tokens[i], key_ + i);
    keys_[i] = static_cast<text::TokenId>(static_cast<std::uint32_t>(hash) | 0x80000000u);
  }
  return keys_;
}

}  // namespace millrace::engine
