// Sensitivities in a file, as JSON made to be read by people, too.
#include <algorithm>
#include <cmath>
#include <set>

#include "app/measure/sensitivity.h"
#include "base/json.h"
#include "base/json_nesting.h"
#include "tensor/codec.h"

namespace millrace::measure {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 2;
constexpr std::string_view kFormat = "millrace sensitivity";

/// {"Q4_K": 0.1, ...}
Json by_type(const std::vector<DType>& types, const std::vector<double>& values) {
  Json json = Json::object();
  for (std::size_t t = 0; t < types.size(); ++t) json[std::string(info(types[t]).name)] = values[t];
  return json;
}

Status off(std::string_view key) {
  return error(Code::corrupt,
               "not a sensitivity file: '{}' is missing or invalid; measure it again with 'millrace sensitivity'", key);
}

/// A divergence: finite, not negative.
bool read_number(const Json& json, const char* key, double& out) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_number()) return false;
  out = it->get<double>();
  return std::isfinite(out) && out >= 0;
}

bool read_count(const Json& json, const char* key, std::int64_t& out) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_number_unsigned()) return false;
  out = static_cast<std::int64_t>(std::min<std::uint64_t>(it->get<std::uint64_t>(), INT64_MAX));
  return true;
}

bool read_member(const Json& json, const char* key, std::string& out) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_string()) return false;
  out = it->get<std::string>();
  return true;
}

bool read_by_type(const Json& json, const char* key, const std::vector<DType>& types, std::vector<double>& out) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_object() || it->size() != types.size()) return false;
  out.resize(types.size());
  for (std::size_t t = 0; t < types.size(); ++t)
    if (!read_number(*it, std::string(info(types[t]).name).c_str(), out[t])) return false;
  return true;
}

Status read_types(const Json& json, const char* key, std::vector<DType>& out) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_array() || it->empty()) return off(key);
  for (const Json& name : *it) {
    if (!name.is_string()) return off(key);
    MR_ASSIGN_OR_RETURN(const DType dtype, dtype_from_name(name.get<std::string>()));
    if (!can_encode(dtype) || std::find(out.begin(), out.end(), dtype) != out.end()) return off(key);
    out.push_back(dtype);
  }
  return {};
}

Status read_groups(const Json& json, Sensitivity& out) {
  const auto it = json.find("groups");
  if (it == json.end() || !it->is_array()) return off("groups");
  std::set<std::string> names;
  for (const Json& group : *it) {
    GroupSensitivity one;
    if (!group.is_object() || !read_member(group, "name", one.name) || !names.insert(one.name).second)
      return off("name");
    const auto tensors = group.find("tensors");
    if (tensors == group.end() || !tensors->is_array()) return off("tensors");
    for (const Json& tensor : *tensors) {
      if (!tensor.is_string()) return off("tensors");
      one.tensors.push_back(tensor.get<std::string>());
    }
    if (!read_by_type(group, "probed", out.probes, one.probed)) return off("probed");
    if (!read_by_type(group, "divergence", out.types, one.divergence)) return off("divergence");
    out.groups.push_back(std::move(one));
  }
  return {};
}

}  // namespace

std::string sensitivity_to_json(const Sensitivity& found) {
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["model"] = found.model;
  json["tokens"] = static_cast<std::uint64_t>(found.tokens);
  json["perplexity"] = found.perplexity;
  for (const DType dtype : found.types) json["types"].push_back(info(dtype).name);
  for (const DType dtype : found.probes) json["probes"].push_back(info(dtype).name);
  json["runs"] = static_cast<std::uint64_t>(found.runs);
  json["checks"] = static_cast<std::uint64_t>(found.checks);
  json["check_factor"] = found.check_factor;
  json["all"] = by_type(found.types, found.of_all);
  json["groups"] = Json::array();
  for (const GroupSensitivity& group : found.groups)
    json["groups"].push_back({{"name", group.name},
                              {"tensors", group.tensors},
                              {"probed", by_type(found.probes, group.probed)},
                              {"divergence", by_type(found.types, group.divergence)}});
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Expected<Sensitivity> parse_sensitivity(std::string_view text) {
  if (nests_too_deep(text))
    return error(Code::corrupt, "no file of sensitivities: it nests too deep; measure it again");
  // Not ordered_json's own parser: it looks each key of an object up among all before it.
  const Json json = Json(nlohmann::json::parse(text, nullptr, false));
  std::string format;
  if (!json.is_object() || !read_member(json, "format", format) || format != kFormat) return off("format");
  std::int64_t version = 0;
  if (!read_count(json, "version", version)) return off("version");
  if (version != kVersion)
    return error(Code::unsupported, "sensitivities of version {}, where {} is known; measure them again", version,
                 kVersion);
  Sensitivity found;
  MR_RETURN_IF_ERROR(read_types(json, "types", found.types));
  MR_RETURN_IF_ERROR(read_types(json, "probes", found.probes));
  if (!read_member(json, "model", found.model)) return off("model");
  if (!read_count(json, "tokens", found.tokens)) return off("tokens");
  if (!read_count(json, "runs", found.runs) || !read_count(json, "checks", found.checks)) return off("runs");
  if (!read_number(json, "perplexity", found.perplexity)) return off("perplexity");
  if (!read_number(json, "check_factor", found.check_factor)) return off("check_factor");
  if (!read_by_type(json, "all", found.types, found.of_all)) return off("all");
  MR_RETURN_IF_ERROR(read_groups(json, found));
  return found;
}

}  // namespace millrace::measure
