#include "residency/expert_usage.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/json.h"
#include "base/json_nesting.h"
#include "residency/small_file.h"

namespace millrace::residency {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 1;
// 1,024 experts in each of 100 layers, six digits each, are 0.7 MB.
constexpr std::uint64_t kMostUsageBytes = 4 << 20;
constexpr std::int64_t kLeastPasses = 16;  // fewer are chance

/// Of the members that count; 16 digits.
std::string checksum(std::string_view model, std::int64_t passes, const Json& uses) {
  const std::string text = fmt::format("{} {} {}", model, passes, uses.dump());
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

/// Layers and experts as in `like`, no expert in more passes than there were.
bool has_shape(const ExpertUsage& usage, const ExpertUsage& like) {
  if (usage.uses.size() != like.uses.size()) return false;
  for (std::size_t layer = 0; layer < like.uses.size(); ++layer) {
    if (usage.uses[layer].size() != like.uses[layer].size()) return false;
    for (const std::int64_t uses : usage.uses[layer])
      if (uses < 0 || uses > usage.passes) return false;
  }
  return true;
}

bool read_uses(const Json& json, std::vector<std::vector<std::int64_t>>& uses) {
  if (!json.is_array()) return false;
  for (const Json& layer : json) {
    if (!layer.is_array()) return false;
    std::vector<std::int64_t>& experts = uses.emplace_back();
    for (const Json& expert : layer) {
      if (!expert.is_number_integer()) return false;
      experts.push_back(expert.get<std::int64_t>());
    }
  }
  return true;
}

}  // namespace

ExpertUsage no_usage(const UnitTable& units) {
  ExpertUsage usage;
  for (const Unit& unit : units.units()) {
    if (unit.kind != UnitKind::expert || unit.aside) continue;
    const auto layer = static_cast<std::size_t>(unit.layer), expert = static_cast<std::size_t>(unit.expert);
    if (usage.uses.size() <= layer) usage.uses.resize(layer + 1);
    if (usage.uses[layer].size() <= expert) usage.uses[layer].resize(expert + 1);
  }
  return usage;
}

ExpertUsage usage_since(const ExpertUsage& before, const ExpertUsage& now) {
  ExpertUsage since = now;
  since.passes -= before.passes;
  for (std::size_t layer = 0; layer < before.uses.size(); ++layer)
    for (std::size_t expert = 0; expert < before.uses[layer].size(); ++expert)
      since.uses[layer][expert] -= before.uses[layer][expert];
  return since;
}

void add_usage(const ExpertUsage& more, ExpertUsage& usage) {
  usage.passes += more.passes;
  const std::int64_t all = usage.passes;
  usage.passes = std::min(all, ExpertUsage::kMostPasses);
  for (std::size_t layer = 0; layer < usage.uses.size(); ++layer) {
    for (std::size_t expert = 0; expert < usage.uses[layer].size(); ++expert) {
      std::int64_t& uses = usage.uses[layer][expert];
      uses += more.uses[layer][expert];
      if (all > usage.passes)
        uses = static_cast<std::int64_t>(static_cast<double>(uses) * static_cast<double>(usage.passes) /
                                         static_cast<double>(all));
    }
  }
}

std::vector<float> usage_by_unit(const UnitTable& units, const ExpertUsage& usage) {
  if (usage.passes < kLeastPasses) return {};
  std::vector<float> rates(units.units().size(), 0.0f);
  for (std::size_t u = 0; u < rates.size(); ++u) {
    const Unit& unit = units.units()[u];
    if (unit.kind != UnitKind::expert || unit.aside) continue;
    const std::int64_t uses = usage.uses[static_cast<std::size_t>(unit.layer)][static_cast<std::size_t>(unit.expert)];
    rates[u] = static_cast<float>(uses) / static_cast<float>(usage.passes);
  }
  return rates;
}

Expected<ExpertUsage> read_usage(const std::string& path, std::string_view model, const ExpertUsage& like) {
  MR_ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMostUsageBytes));
  return parse_usage(text, path, model, like);
}

Expected<ExpertUsage> parse_usage(std::string_view text, const std::string& path, std::string_view model,
                                  const ExpertUsage& like) {
  const auto damaged = [&](std::string_view what) { return error(Code::corrupt, "{}: it is damaged: {}", path, what); };
  if (nests_too_deep(text)) return damaged("it nests too deep");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return damaged("not an object of JSON");
  const auto member = [&](const char* key) {
    const auto it = json.find(key);
    return it == json.end() ? Json() : *it;
  };
  const Json version = member("version"), passes = member("passes"), uses = member("uses"), name = member("model");
  if (!version.is_number_integer()) return damaged("it has no version");
  if (version.get<std::int64_t>() != kVersion)
    return error(Code::unsupported, "{}: version {} of such a file is not known here", path,
                 version.get<std::int64_t>());
  if (!name.is_string() || !passes.is_number_integer()) return damaged("a member is missing");
  if (name.get<std::string>() != model) return error(Code::invalid_argument, "{}: it is another model's", path);
  ExpertUsage usage;
  usage.passes = passes.get<std::int64_t>();
  if (usage.passes < 0 || usage.passes > ExpertUsage::kMostPasses || !read_uses(uses, usage.uses) ||
      !has_shape(usage, like))
    return damaged("its counts are none of this model's experts");
  const Json sum = member("checksum");
  if (!sum.is_string() || sum.get<std::string>() != checksum(model, usage.passes, uses)) return damaged("its checksum");
  return usage;
}

Status write_usage(const std::string& path, std::string_view model, const ExpertUsage& usage) {
  const Json uses = usage.uses;
  Json json;
  json["version"] = kVersion;
  json["model"] = model;
  json["passes"] = usage.passes;
  json["uses"] = uses;
  json["checksum"] = checksum(model, usage.passes, uses);
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (std::filesystem::create_directories(folder, failure))
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, failure);
  return write_small_file(path, json.dump() + "\n").with_context("cannot keep which experts are used");
}

}  // namespace millrace::residency
