#include "convert/pooling.h"

#include <algorithm>
#include <filesystem>

#include "convert/config.h"
#include "convert/json_members.h"
#include "model/model.h"
#include "modelfile/escape.h"

namespace millrace::convert {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

struct Mode {
  const char* key;
  model::Pooling pooling;
};
constexpr Mode kModes[] = {{"pooling_mode_mean_tokens", model::Pooling::mean},
                           {"pooling_mode_cls_token", model::Pooling::first},
                           {"pooling_mode_lasttoken", model::Pooling::last}};

/// Modules one behind the other: the model, its pooling, and what GGUF can do without.
Status check_modules(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "modules.json", ignored)) return {};
  MR_ASSIGN_OR_RETURN(const json modules, read_json((folder / "modules.json").string(), JsonKind::list));
  for (const json& module : modules) {
    const std::string type = text_of(module, "type");
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Transformer" || name == "Pooling" || name == "Normalize") continue;
    return error(Code::unsupported, "modules.json: a module '{}' changes this model's vectors, and GGUF has none such",
                 modelfile::escape(type, 80));
  }
  return {};
}

/// How many tokens sentence-transformers gives its model at most: what is longer it cuts.
Status read_length(const fs::path& folder, Header& header) {
  const fs::path path = folder / "sentence_bert_config.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  MR_ASSIGN_OR_RETURN(const json config, read_json(path.string()));
  if (flag_of(config, "do_lower_case"))
    return error(Code::unsupported,
                 "sentence_bert_config.json: do_lower_case brings texts into lower case before they become tokens, "
                 "which GGUF has no key for");
  const json& most = member(config, "max_seq_length");
  if (!most.is_number_integer() || most.get<std::int64_t>() < 1) return {};
  header.set_integer("context_length", std::min(header.integer("context_length"), most.get<std::int64_t>()));
  return {};
}

}  // namespace

Status read_pooling(const std::string& folder, Header& header) {
  MR_RETURN_IF_ERROR(check_modules(folder));
  MR_RETURN_IF_ERROR(read_length(folder, header));
  const fs::path path = fs::path(folder) / "1_Pooling" / "config.json";
  std::error_code ignored;
  if (header.has("pooling_type") || !fs::exists(path, ignored)) return {};  // a classifier's head pools by itself
  MR_ASSIGN_OR_RETURN(const json config, read_json(path.string()));
  for (const auto& [key, value] : config.items()) {
    if (!key.starts_with("pooling_mode_") || value != true) continue;
    const Mode* known = nullptr;
    for (const Mode& mode : kModes)
      if (key == mode.key) known = &mode;
    if (known == nullptr || header.has("pooling_type"))
      return error(Code::unsupported,
                   "1_Pooling/config.json: {}{}; this version knows the mean, the first token and the last one, one of "
                   "them alone",
                   key, known == nullptr ? "" : " beside another");
    header.set_integer("pooling_type", static_cast<std::int64_t>(known->pooling));
  }
  return {};
}

}  // namespace millrace::convert
