#include "app/store/hub.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>

#include "app/store/digest.h"
#include "base/bytes.h"
#include "base/words.h"
#include "modelfile/escape.h"
#include "modelfile/safetensors.h"

namespace millrace::store {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostListBytes = 32 * kMiB;
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 46;
constexpr int kMostPages = 100;
// The best trade people have found between size and loss comes first.
constexpr std::array<std::string_view, 13> kUsualChoices = {"Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "MXFP4", "NVFP4",
                                                            "Q4_0",   "IQ4_XS",     "Q5_K_M", "Q6_K",  "Q8_0",
                                                            "F16",    "BF16",       "Q3_K_M"};

/// The last word of a stem that reads like a quantization.
std::string quant_of(const std::string& stem) {
  static const std::regex word("(UD-)?(IQ|TQ|Q|BF|F|FP|MXFP|NVFP)[0-9]+(_[A-Z0-9]+)*", std::regex::icase);
  std::string found;
  std::size_t begin = 0;
  while (begin <= stem.size()) {
    const std::size_t end = std::min(stem.find_first_of("-.", begin), stem.size());
    std::string candidate = stem.substr(begin, end - begin);
    const bool dynamic =
        begin >= 3 && lower(stem.substr(begin - 3, 3)) == "ud-" && (begin == 3 || stem[begin - 4] == '-');
    if (std::regex_match(candidate, word)) found = (dynamic ? "UD-" : "") + candidate;
    begin = end + 1;
  }
  for (char& c : found)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return found;
}

/// "size" of an entry; UINT64_MAX if it is none.
std::uint64_t size_in(const json& entry) {
  const json& size = entry.at("size");
  return size.is_number_unsigned() ? size.get<std::uint64_t>() : UINT64_MAX;
}

struct Split {
  std::string stem;
  int index = 1, count = 1;
};

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// nullopt: no GGUF model.
std::optional<Split> split_of(const std::string& path) {
  static const std::regex numbered("(.*)-([0-9]{5})-of-([0-9]{5})");
  std::string name = base_name(path);
  if (!lower(name).ends_with(".gguf")) return std::nullopt;
  name.resize(name.size() - 5);
  const std::string small = lower(name);
  if (small.find("mmproj") != std::string::npos || small.find("imatrix") != std::string::npos) return std::nullopt;
  std::smatch match;
  if (!std::regex_match(name, match, numbered)) return Split{name, 1, 1};
  return Split{match[1], std::stoi(match[2]), std::stoi(match[3])};
}

/// What names are matched with below takes stack for each character, and what prints them takes them as they are.
bool is_sane(const std::string& path) {
  constexpr std::size_t kMostNameBytes = 1024;
  return !path.empty() && path.size() <= kMostNameBytes && std::none_of(path.begin(), path.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

std::string choices(const std::vector<Variant>& variants) {
  std::string text;
  for (const Variant& variant : variants)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", variant.quant.empty() ? variant.stem : variant.quant,
                        format_bytes(variant.bytes()));
  return text;
}

Expected<Variant> usual_choice(const std::vector<Variant>& variants, const Name& name) {
  if (variants.size() == 1) return variants.front();
  for (const std::string_view quant : kUsualChoices)
    for (const Variant& variant : variants)
      if (variant.quant == quant) return variant;
  return error(Code::invalid_argument, "{} has several variants; write {}:QUANT with one of {}", name.repository(),
               name.repository(), choices(variants));
}

}  // namespace

std::uint64_t Variant::bytes() const {
  std::uint64_t total = 0;
  for (const HubFile& file : files) total += file.bytes;
  return total;
}

Expected<std::vector<HubFile>> parse_tree(std::string_view text) {
  try {
    const json list = json::parse(text);
    if (!list.is_array()) return error(Code::corrupt, "the hub's list of files is no list; check HF_ENDPOINT");
    std::vector<HubFile> files;
    for (const json& entry : list) {
      if (entry.at("type") != "file") continue;
      HubFile file;
      file.path = entry.at("path").get<std::string>();
      if (!is_sane(file.path))
        return error(Code::corrupt, "the hub's list has a file name that cannot be ({} bytes); check HF_ENDPOINT",
                     file.path.size());
      file.bytes = size_in(entry);
      if (entry.contains("lfs") && entry["lfs"].is_object()) {
        const json& lfs = entry["lfs"];
        file.sha256 = lfs.at("oid").get<std::string>();
        if (lfs.contains("size")) file.bytes = size_in(lfs);
        if (file.sha256.starts_with("sha256:")) file.sha256.erase(0, 7);
        if (!is_sha256(file.sha256)) return error(Code::corrupt, "the hub's list has a hash that is no SHA-256");
      }
      const json oid = entry.value("oid", json());
      if (file.sha256.empty() && oid.is_string() && is_sha1(oid.get<std::string>()))
        file.git_sha1 = oid.get<std::string>();
      if (file.bytes > kMostFileBytes) return error(Code::corrupt, "the hub's list has a size that cannot be");
      files.push_back(std::move(file));
    }
    return files;
  } catch (const json::exception&) {
    return error(Code::corrupt, "the hub's list of files cannot be read; check HF_ENDPOINT");
  }
}

std::vector<Variant> variants_of(const std::vector<HubFile>& files) {
  std::map<std::pair<std::string, int>, std::map<int, HubFile>> groups;  // by path without split, count
  for (const HubFile& file : files) {
    const auto split = split_of(file.path);
    if (!split || file.bytes == 0) continue;
    const std::string folder = file.path.substr(0, file.path.size() - base_name(file.path).size());
    groups[{folder + split->stem, split->count}].emplace(split->index, file);
  }
  std::vector<Variant> variants;
  for (auto& [key, parts] : groups) {
    const bool whole = static_cast<int>(parts.size()) == key.second && parts.begin()->first == 1 &&
                       parts.rbegin()->first == key.second;
    if (!whole) continue;
    Variant variant;
    variant.stem = base_name(key.first);
    variant.quant = quant_of(variant.stem);
    for (auto& [index, file] : parts) variant.files.push_back(std::move(file));
    variants.push_back(std::move(variant));
  }
  return variants;
}

bool has_projector(const std::vector<HubFile>& files) {
  return std::any_of(files.begin(), files.end(), [](const HubFile& file) {
    const std::string name = lower(base_name(file.path));
    return name.ends_with(".gguf") && name.find("mmproj") != std::string::npos;
  });
}

bool is_checkpoint(const std::vector<HubFile>& files) {
  return std::any_of(files.begin(), files.end(),
                     [](const HubFile& file) { return file.path.ends_with(".safetensors"); });
}

Expected<std::vector<HubFile>> checkpoint_texts(const std::vector<HubFile>& files, const Name& name) {
  std::vector<HubFile> texts;
  for (const std::string_view path : {"config.json", "tokenizer.json", "tokenizer_config.json",
                                      "generation_config.json", "chat_template.jinja", kCheckpointIndex.data()}) {
    const auto found = std::find_if(files.begin(), files.end(),
                                    [&](const HubFile& file) { return file.path == path && file.bytes > 0; });
    if (found != files.end()) texts.push_back(*found);
    if (found == files.end() && (path == "config.json" || path == "tokenizer.json"))
      return error(Code::not_found,
                   "{} has no GGUF file, and no {}, without which its safetensors are not converted; look for a "
                   "repository whose name ends with -GGUF",
                   name.repository(), path);
  }
  return texts;
}

Expected<std::vector<HubFile>> checkpoint_weights(const std::vector<HubFile>& files, std::string_view index,
                                                  const Name& name) {
  std::map<std::string, HubFile> here;  // beside config.json
  for (const HubFile& file : files)
    if (file.path.find('/') == std::string::npos && file.path.ends_with(".safetensors")) here.emplace(file.path, file);
  std::set<std::string> wanted;
  if (!index.empty()) {
    const auto shards = modelfile::Checkpoint::parse_index(index);
    if (!shards.ok()) return shards.status().with_context(std::string(kCheckpointIndex));
    for (const auto& [tensor, file] : *shards) wanted.insert(file);
  } else if (here.contains("model.safetensors")) {
    wanted.insert("model.safetensors");
  } else if (here.size() == 1) {
    wanted.insert(here.begin()->first);
  } else {
    return error(Code::invalid_argument, "{} has {} safetensors files beside its config.json, and no {}",
                 name.repository(), here.size(), kCheckpointIndex);
  }
  std::vector<HubFile> weights;
  for (const std::string& path : wanted) {
    const auto found = here.find(path);
    if (found == here.end())
      return error(Code::not_found, "{} lacks {}, which its {} names", name.repository(), modelfile::escape(path, 80),
                   kCheckpointIndex);
    weights.push_back(found->second);
  }
  return weights;
}

Expected<Variant> choose_variant(const std::vector<Variant>& variants, const Name& name) {
  if (variants.empty())
    return error(Code::not_found, "{} has no GGUF files; look for a repository whose name ends with -GGUF",
                 name.repository());
  if (!name.tag_given || same_word(name.tag, "latest")) return usual_choice(variants, name);
  std::vector<Variant> matches;
  for (const Variant& variant : variants) {
    const bool named = same_word(variant.quant, name.tag) || same_word(variant.stem, name.tag) ||
                       same_word(variant.stem + ".gguf", name.tag);
    if (named) matches.push_back(variant);
  }
  if (matches.size() == 1) return matches.front();
  if (matches.empty())
    return error(Code::not_found, "{} has no {}; it has {}", name.repository(), name.tag, choices(variants));
  std::string stems;
  for (const Variant& variant : matches) stems += (stems.empty() ? "" : ", ") + variant.stem;
  return error(Code::invalid_argument, "{} has several models of {}; name one after the colon: {}", name.repository(),
               name.tag, stems);
}

Expected<std::vector<HubFile>> list_files(const std::string& endpoint, const std::string& repository,
                                          const std::string& revision, const DownloadOptions& options) {
  std::string url =
      fmt::format("{}/api/models/{}/tree/{}?recursive=true", endpoint, escape_path(repository), escape_path(revision));
  std::vector<HubFile> all;
  for (int page = 0; page < kMostPages && !url.empty(); ++page) {
    MR_ASSIGN_OR_RETURN(const Reply reply, get_patiently(url, kMostListBytes, options));
    MR_ASSIGN_OR_RETURN(std::vector<HubFile> files, parse_tree(reply.body));
    std::move(files.begin(), files.end(), std::back_inserter(all));
    url = reply.next_link.starts_with(endpoint + "/") ? reply.next_link : "";
  }
  return all;
}

}  // namespace millrace::store
