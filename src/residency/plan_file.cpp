#include "residency/plan_file.h"

#include <charconv>
#include <optional>

#include "base/json.h"
#include "base/json_nesting.h"
#include "residency/small_file.h"

namespace millrace::residency {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 2;
constexpr std::uint64_t kMostPlanBytes = 4 << 20;
constexpr std::int64_t kMostIndices = 1 << 24;  // units or tiles a file may claim to have

/// "0-12,15": the indices that are set.
std::string ranges_text(const std::vector<bool>& set) {
  std::string text;
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (!set[i]) continue;
    const std::size_t first = i;
    while (i + 1 < set.size() && set[i + 1]) ++i;
    if (!text.empty()) text += ',';
    text += first == i ? fmt::format("{}", first) : fmt::format("{}-{}", first, i);
  }
  return text;
}

/// The opposite; nothing where the text is off or an index is `count` or more.
std::optional<std::vector<bool>> parse_ranges(std::string_view text, std::int64_t count) {
  std::vector<bool> set(static_cast<std::size_t>(count));
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    std::int64_t first = 0;
    auto number = std::from_chars(at, end, first);
    if (number.ec != std::errc()) return std::nullopt;
    std::int64_t last = first;
    at = number.ptr;
    if (at != end && *at == '-') {
      number = std::from_chars(at + 1, end, last);
      if (number.ec != std::errc()) return std::nullopt;
      at = number.ptr;
    }
    if (first < 0 || first > last || last >= count) return std::nullopt;
    for (std::int64_t i = first; i <= last; ++i) set[static_cast<std::size_t>(i)] = true;
    if (at == end) break;
    if (*at != ',' || ++at == end) return std::nullopt;
  }
  return set;
}

/// Members of one object, the first one that is off remembered.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  template <typename Int>
  void integer(const char* key, std::int64_t least, std::int64_t most, Int& out) {
    const auto it = json_.find(key);
    if (it == json_.end() || !it->is_number_integer()) return fail(key, "a whole number");
    const bool huge = it->is_number_unsigned() && it->template get<std::uint64_t>() > static_cast<std::uint64_t>(most);
    const std::int64_t value = huge ? most : it->template get<std::int64_t>();
    if (huge || value < least) return fail(key, fmt::format("from {} to {}", least, most).c_str());
    out = static_cast<Int>(value);
  }
  void text(const char* key, std::string& out) {
    const auto it = json_.find(key);
    if (it == json_.end() || !it->is_string()) return fail(key, "a text");
    out = it->get<std::string>();
  }
  void ranges(const char* key, std::int64_t count, std::vector<bool>& out) {
    std::string written;
    text(key, written);
    auto set = parse_ranges(written, count);
    if (!set) return fail(key, fmt::format("indices below {}, like \"0-12,15\"", count).c_str());
    out = std::move(*set);
  }
  void fail(const char* key, const char* wanted) {
    if (status_.ok()) status_ = error(Code::invalid_argument, "'{}' must be {}", key, wanted);
  }
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  const Json& json_;
  Status status_;
};

Expected<std::vector<Tier>> read_homes(const Json& json, std::int64_t units) {
  std::vector<Tier> homes(static_cast<std::size_t>(units));
  std::vector<int> given(static_cast<std::size_t>(units));
  Reader reader(json);
  for (const Tier tier : {Tier::vram, Tier::ram, Tier::disk}) {
    const std::string key(tier_name(tier));
    std::vector<bool> set;
    reader.ranges(key.c_str(), units, set);
    if (!reader.ok()) return reader.status().with_context("homes");
    for (std::size_t u = 0; u < set.size(); ++u) {
      if (!set[u]) continue;
      homes[u] = tier;
      ++given[u];
    }
  }
  for (std::size_t u = 0; u < given.size(); ++u)
    if (given[u] != 1)
      return error(Code::invalid_argument, "homes: unit {} is listed in {} tiers; it needs one", u, given[u]);
  return homes;
}

Json homes_json(const std::vector<Tier>& homes) {
  Json json;
  for (const Tier tier : {Tier::vram, Tier::ram, Tier::disk}) {
    std::vector<bool> set;
    set.reserve(homes.size());
    for (const Tier home : homes) set.push_back(home == tier);
    json[std::string(tier_name(tier))] = ranges_text(set);
  }
  return json;
}

}  // namespace

std::string plan_to_json(const SavedPlan& saved) {
  Json json;
  json["millrace_plan"] = kVersion;
  json["model"] = {{"architecture", saved.architecture},
                   {"name", saved.name},
                   {"units", saved.units},
                   {"tiles", saved.tiles},
                   {"bytes", saved.weight_bytes}};
  json["device"] = saved.gpu ? "cuda" : "cpu";
  json["ram_bytes"] = saved.ram_bytes;
  if (saved.gpu) json["vram_bytes"] = saved.vram_bytes;
  json["tile_bytes"] = saved.tile_bytes;
  json["context_tokens"] = saved.context_tokens;
  json["batch_tokens"] = saved.batch_tokens;
  json["sequences"] = saved.sequences;
  json["kv"] = saved.kv;
  json["ring_slots"] = saved.decisions.ring_slots;
  if (saved.gpu) {
    json["homes"] = homes_json(saved.homes);
    json["host_permille"] = saved.decisions.cpu_permille;
  } else {
    json["expert_slots"] = saved.decisions.expert_slots;
    json["tiles_in_ram"] = ranges_text(saved.decisions.resident_tiles);
  }
  json["predicted"] = {{"decode_tokens_per_second", saved.predicted_decode_tokens_per_second}, {"bound", saved.bound}};
  json["rates"] = Json::parse(rates_to_json(saved.rates));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Expected<SavedPlan> parse_plan_json(const std::string& text) {
  constexpr std::int64_t kMost = INT64_MAX;
  // Not ordered_json's own parser: it looks each key of an object up among all before it.
  const Json json = nests_too_deep(text) ? Json() : Json(nlohmann::json::parse(text, nullptr, false));
  if (json.is_discarded() || !json.is_object() || !json.contains("millrace_plan"))
    return error(Code::invalid_argument, "this is not a plan; let `millrace plan MODEL --plan FILE` write one");
  if (json["millrace_plan"] != kVersion)
    return error(Code::invalid_argument,
                 "this plan has version {} (\"millrace_plan\") and this Millrace reads version {}; let `millrace plan "
                 "MODEL --plan FILE` write it anew",
                 json["millrace_plan"].dump(-1, ' ', false, Json::error_handler_t::replace), kVersion);
  SavedPlan saved;
  Reader top(json);
  top.integer("ram_bytes", 1, kMost, saved.ram_bytes);
  top.integer("tile_bytes", 1, std::int64_t{1} << 32, saved.tile_bytes);
  top.integer("context_tokens", 1, std::int64_t{1} << 31, saved.context_tokens);
  top.integer("batch_tokens", 1, 1 << 20, saved.batch_tokens);
  top.integer("sequences", 1, 1 << 16, saved.sequences);
  top.integer("ring_slots", 0, 1 << 16, saved.decisions.ring_slots);
  top.text("kv", saved.kv);
  std::string device;
  top.text("device", device);
  saved.gpu = device == "cuda";
  if (device != "cuda" && device != "cpu") top.fail("device", "cpu or cuda");
  if (!json.contains("model") || !json["model"].is_object()) top.fail("model", "an object");
  if (!top.ok()) return top.status();

  Reader model(json["model"]);
  model.text("architecture", saved.architecture);
  model.text("name", saved.name);
  model.integer("units", 1, kMostIndices, saved.units);
  model.integer("tiles", 1, kMostIndices, saved.tiles);
  model.integer("bytes", 0, kMost, saved.weight_bytes);
  if (!model.ok()) return model.status().with_context("model");

  if (saved.gpu) {
    top.integer("vram_bytes", 1, kMost, saved.vram_bytes);
    if (json.contains("host_permille")) top.integer("host_permille", 0, 1000, saved.decisions.cpu_permille);
    if (!json.contains("homes") || !json["homes"].is_object()) top.fail("homes", "an object");
    if (!top.ok()) return top.status();
    MR_ASSIGN_OR_RETURN(saved.homes, read_homes(json["homes"], saved.units));
  } else {
    top.integer("expert_slots", 0, kMostIndices, saved.decisions.expert_slots);
    top.ranges("tiles_in_ram", saved.tiles, saved.decisions.resident_tiles);
    if (!top.ok()) return top.status();
  }
  if (json.contains("rates")) {
    MR_ASSIGN_OR_RETURN(saved.rates,
                        parse_rates_json(json["rates"].dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  return saved;
}

Status check_model(const SavedPlan& saved, const UnitTable& units) {
  const auto unit_count = static_cast<std::int64_t>(units.units().size());
  const auto tile_count = static_cast<std::int64_t>(units.tiles().size());
  if (saved.units != unit_count || saved.tiles != tile_count || saved.weight_bytes != units.total_bytes())
    return error(Code::invalid_argument,
                 "the plan is for another model: {} ({} units, {} tiles, {} bytes), not for {} units, {} tiles, {} "
                 "bytes; make one anew",
                 saved.name, saved.units, saved.tiles, saved.weight_bytes, unit_count, tile_count, units.total_bytes());
  return {};
}

Expected<SavedPlan> read_plan_file(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMostPlanBytes));
  auto saved = parse_plan_json(text);
  if (!saved.ok()) return saved.status().with_context(path);
  return saved;
}

Status write_plan_file(const std::string& path, const SavedPlan& saved) {
  return write_small_file(path, plan_to_json(saved));
}

}  // namespace millrace::residency
