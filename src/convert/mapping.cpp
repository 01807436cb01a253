#include "convert/mapping.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "modelfile/escape.h"

namespace millrace::convert {
namespace {

constexpr std::int64_t kMostLayers = 10'000, kMostExperts = 1 << 14;

/// The number at the beginning, before a dot or the end; -1: none.
std::int64_t number_of(std::string_view word) {
  std::int64_t number = -1;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), number);
  const bool whole = failure == std::errc() && end == word.data() + word.size();
  return whole && number >= 0 && number < kMostExperts ? number : -1;
}

/// Replaces the number behind `stem` by `mark`; -1: there is none.
std::int64_t take_number(std::string& name, std::string_view stem, char mark) {
  const std::size_t at = name.find(stem);
  if (at == std::string::npos) return -1;
  const std::size_t begin = at + stem.size(), end = std::min(name.find('.', begin), name.size());
  const std::int64_t number = number_of(std::string_view(name).substr(begin, end - begin));
  if (number >= 0) name.replace(begin, end - begin, 1, mark);
  return number;
}

void replace_front(std::string& name, std::string_view from, std::string_view to) {
  if (name.starts_with(from)) name.replace(0, from.size(), to);
}

std::string with_number(std::string name, char mark, std::int64_t number) {
  if (const std::size_t at = name.find(mark); at != std::string::npos) name.replace(at, 1, std::to_string(number));
  return name;
}

constexpr std::string_view kDraftRule = "model.layers.#.mtp.", kLayerRule = "model.layers.#.";

/// Whether several of the checkpoint's tensors make one.
bool joins(Form form) { return form == Form::experts || form == Form::pieces; }

using RuleTable = std::unordered_map<std::string_view, std::vector<std::pair<std::size_t, const NameRule*>>>;

/// Rules by pattern, each with its index in the tables.
RuleTable table_of(const Family& family) {
  RuleTable table;
  std::size_t place = 0;
  for (const Names& names : family.names)
    for (const NameRule& rule : names) table[rule.theirs].emplace_back(place++, &rule);
  return table;
}

/// A tensor's position in the file: the embedding, the layers, the rest.
std::int64_t rank_of(const NameRule& rule, std::int64_t layer) {
  if (rule.ours == "token_embd.weight") return -1;
  return layer >= 0 ? layer : kMostLayers;
}

}  // namespace

ParsedName parse_name(std::string_view given, const Family& family, std::int64_t layers) {
  std::string name(given);
  replace_front(name, "model.language_model.", "model.");
  replace_front(name, "model.text_model.", "model.");
  replace_front(name, "language_model.model.", "model.");
  replace_front(name, "language_model.lm_head.", "lm_head.");
  if (!family.prefix.empty() && !name.starts_with(family.prefix) && !name.starts_with("lm_head."))
    name.insert(0, family.prefix);
  if (!family.wrapper.empty()) replace_front(name, family.wrapper, "");
  ParsedName parsed;
  if (family.draft_apart && name.starts_with("mtp.")) {
    const bool of_layer = name.starts_with("mtp.layers.0.");
    replace_front(name, of_layer ? "mtp.layers.0." : "mtp.", of_layer ? kLayerRule : kDraftRule);
    parsed.layer = layers;
  } else {
    for (const std::string_view stem : {"layers.", ".h.", ".blocks.", "encoder.layer."})
      if (parsed.layer = take_number(name, stem, '#'); parsed.layer >= 0) break;
  }
  for (const std::string_view stem : {"experts.", ".altup_projections.", ".altup_unembed_projections.", ".shard_"})
    if (parsed.expert = take_number(name, stem, '*'); parsed.expert >= 0) break;
  parsed.pattern = std::move(name);
  return parsed;
}

std::string their_name(const NameRule& rule, const Family& family, std::int64_t layers, std::int64_t layer,
                       std::int64_t expert) {
  std::string name(rule.theirs);
  if (family.draft_apart && layer >= layers) {
    const bool own = name.starts_with(kDraftRule);
    replace_front(name, own ? kDraftRule : kLayerRule, own ? "mtp." : "mtp.layers.0.");
  }
  return with_number(with_number(std::move(name), '#', layer), '*', expert);
}

std::string our_name(const NameRule& rule, std::int64_t layer) {
  return with_number(std::string(rule.ours), '#', layer);
}

Duty duty_of(std::string_view name) {
  constexpr std::array<std::string_view, 18> kBeside = {"mlp1.",
                                                        "connector.",
                                                        "model.connector.",
                                                        "model.embed_vision.",
                                                        "vision_embedder.",
                                                        "model.vision_embedder.",
                                                        "model.embed_audio.",
                                                        "visual.",
                                                        "model.visual.",
                                                        "vision_tower.",
                                                        "model.vision_tower.",
                                                        "multi_modal_projector.",
                                                        "patch_merge_mlp.",
                                                        "model.multi_modal_projector.",
                                                        "vision_model.",
                                                        "model.vision_model.",
                                                        "audio_tower.",
                                                        "model.audio_tower."};
  constexpr std::array<std::string_view, 12> kNothing = {
      "rotary_emb.inv_freq",    ".input_global_scale", ".input_scale", ".k_scale",   ".v_scale",
      ".activation_scale",      ".attn.masked_bias",   ".q_scale",     ".attn.bias", ".attention.bias",
      ".attention.masked_bias", ".position_ids"};
  if (std::any_of(kBeside.begin(), kBeside.end(), [&](std::string_view part) { return name.starts_with(part); }))
    return Duty::beside;
  if (std::any_of(kNothing.begin(), kNothing.end(), [&](std::string_view part) { return name.ends_with(part); }))
    return Duty::nothing;
  return Duty::unknown;
}

Expected<Mapping> map_names(const std::vector<std::string>& names, const Family& family, std::int64_t layers,
                            std::int64_t most_draft_blocks) {
  const RuleTable table = table_of(family);
  std::map<std::tuple<std::int64_t, std::size_t>, Group> groups;
  std::map<std::tuple<std::int64_t, std::size_t>, std::map<std::int64_t, std::size_t>> experts;
  Mapping mapping;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const ParsedName parsed = parse_name(names[i], family, layers);
    const auto rules = table.find(parsed.pattern);
    const std::string shown = modelfile::escape(names[i], 120);
    const bool skipped = std::any_of(family.unused.begin(), family.unused.end(),
                                     [&](std::string_view front) { return parsed.pattern.starts_with(front); });
    if (skipped || (family.skips_extra && parsed.layer >= layers)) {
      ++mapping.unused;
      continue;
    }
    if (rules == table.end()) {
      const Duty duty = duty_of(names[i]);
      if (duty == Duty::unknown)
        return error(Code::unsupported, "tensor '{}' is unknown for models of type {}", shown, family.model_type);
      if (duty == Duty::beside && names[i].find("audio") != std::string::npos) ++mapping.hears;
      continue;
    }
    if (parsed.layer >= layers + most_draft_blocks) {
      return error(Code::corrupt, "tensor '{}' belongs to a layer after the last one: config.json has {} layers", shown,
                   layers);
    }
    if (parsed.layer >= layers) mapping.draft_blocks = std::max(mapping.draft_blocks, parsed.layer - layers + 1);
    for (const auto& [place, rule] : rules->second) {
      const std::tuple key(rank_of(*rule, parsed.layer), place);
      Group& group = groups[key];
      group.rule = rule;
      group.layer = parsed.layer;
      if (joins(rule->form) ? !experts[key].emplace(parsed.expert, i).second : !group.parts.empty())
        return error(Code::corrupt, "tensor '{}' appears twice, by two names", shown);
      if (!joins(rule->form)) group.parts.push_back(i);
    }
  }
  for (auto& [key, of_each] : experts) {
    Group& group = groups[key];
    for (const auto& [expert, place] : of_each) {
      if (expert != static_cast<std::int64_t>(group.parts.size()))
        return error(
            Code::corrupt, "tensor '{}' is missing",
            their_name(*group.rule, family, layers, group.layer, static_cast<std::int64_t>(group.parts.size())));
      group.parts.push_back(place);
    }
  }
  for (auto& [key, group] : groups) mapping.groups.push_back(std::move(group));
  return mapping;
}

std::vector<OurName> rules_of(std::string_view given, const Family& family) {
  std::string name(given);
  const std::int64_t layer = name.starts_with("blk.") ? take_number(name, "blk.", '#') : -1;
  std::vector<OurName> found;
  for (const Names& names : family.names)
    for (const NameRule& rule : names)
      if (rule.ours == name) found.push_back({&rule, layer});
  return found;
}

}  // namespace millrace::convert
