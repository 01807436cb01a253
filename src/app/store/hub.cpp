#include "app/store/hub.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <span>
#include <tuple>

#include "app/store/digest.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/json_nesting.h"
#include "base/words.h"
#include "modelfile/escape.h"
#include "modelfile/safetensors.h"
#include "vision/beside.h"

namespace millrace::store {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostListBytes = 32 * kMiB;
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 46;
constexpr std::uint64_t kMostSearchBytes = 2 * kMiB;
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

struct Split {
  std::string stem;
  int index = 1, count = 1;
};

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string folder_of(const std::string& path) { return path.substr(0, path.size() - base_name(path).size()); }

/// nullopt: no GGUF model.
std::optional<Split> split_of(const std::string& path) {
  static const std::regex numbered("(.*)-([0-9]{5})-of-([0-9]{5})");
  std::string name = base_name(path);
  if (!lower(name).ends_with(".gguf")) return std::nullopt;
  name.resize(name.size() - 5);
  const std::string small = lower(name);
  if (vision::is_mmproj_name(small) || small.find("imatrix") != std::string::npos) return std::nullopt;
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
  constexpr std::size_t kMostNamed = 32;
  std::string text;
  for (const Variant& variant : std::span(variants).first(std::min(variants.size(), kMostNamed)))
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", variant.quant.empty() ? variant.stem : variant.quant,
                        format_bytes(variant.bytes()));
  if (variants.size() > kMostNamed) text += fmt::format(" and {} others", variants.size() - kMostNamed);
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

namespace {

constexpr std::uint64_t kBytesAFile = 2048;  // of a list, with the copies that are made on the way to a variant

/// Whether a file of this name may be fetched at all; others are not kept.
bool is_wanted(const std::string& path) {
  const std::string name = lower(path);
  return name.ends_with(".gguf") || name.ends_with(".safetensors") || name.ends_with(".json") ||
         name.ends_with(".jinja");
}

/// Hears a list of files and keeps those that are wanted.
class TreeReader final : public nlohmann::json_sax<json> {
 public:
  TreeReader(std::vector<HubFile>& files, WorkGrant* memory) : files_(files), memory_(memory) {}

  /// Why reading ended early, where that was no fault of the JSON.
  const Status& status() const { return status_; }
  bool is_list() const { return is_list_; }

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t value) override {
    if (key_ == "size" && depth_ == 2) entry_.bytes = value;
    if (key_ == "size" && depth_ == 3 && in_lfs_) entry_.lfs_bytes = value;
    return scalar();
  }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool string(string_t& value) override {
    if (depth_ == 2 && key_ == "type") entry_.is_file = value == "file";
    if (depth_ == 2 && key_ == "type") entry_.has_type = true;
    if (depth_ == 2 && key_ == "path") entry_.path = value;
    if (depth_ == 2 && key_ == "oid" && is_sha1(value)) entry_.git_sha1 = value;
    if (depth_ == 3 && in_lfs_ && key_ == "oid") entry_.lfs_oid = value;
    return scalar();
  }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override {
    key_ = name.substr(0, 16);
    if (depth_ == 2) in_lfs_ = false;
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ == 0) return false;
    if (depth_ == 1) entry_ = {};
    if (depth_ == 2 && key_ == "lfs") in_lfs_ = entry_.has_lfs = true;
    return deeper();
  }
  bool end_object() override { return --depth_ != 1 || end_entry(); }
  bool start_array(std::size_t) override {
    is_list_ = true;
    return depth_ != 1 && deeper();
  }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  struct Entry {
    bool has_type = false, is_file = false, has_lfs = false;
    std::optional<std::string> path, lfs_oid;
    std::optional<std::uint64_t> bytes, lfs_bytes;
    std::string git_sha1;
  };

  bool scalar() const { return depth_ > 1; }
  bool deeper() { return ++depth_ <= kMostNesting; }
  bool fail(Status status) {
    status_ = std::move(status);
    return false;
  }

  bool end_entry() {
    if (!entry_.has_type) return false;
    if (!entry_.is_file) return true;
    if (!entry_.path) return false;
    if (!is_sane(*entry_.path))
      return fail(error(Code::corrupt, "the hub's list has a file name that cannot be ({} bytes); check HF_ENDPOINT",
                        entry_.path->size()));
    HubFile file;
    file.path = std::move(*entry_.path);
    file.bytes = entry_.lfs_bytes.value_or(entry_.bytes.value_or(UINT64_MAX));
    if (entry_.has_lfs) {
      if (!entry_.lfs_oid) return false;
      file.sha256 = std::move(*entry_.lfs_oid);
      if (file.sha256.starts_with("sha256:")) file.sha256.erase(0, 7);
      if (!is_sha256(file.sha256)) return fail(error(Code::corrupt, "the hub's list has a hash that is no SHA-256"));
    }
    if (file.sha256.empty()) file.git_sha1 = std::move(entry_.git_sha1);
    if (file.bytes > kMostFileBytes) return fail(error(Code::corrupt, "the hub's list has a size that cannot be"));
    if (!is_wanted(file.path)) return true;
    if (memory_ != nullptr && !memory_->take(kBytesAFile))
      return fail(error(Code::out_of_budget, "the hub's list of files takes more memory than requests may hold"));
    files_.push_back(std::move(file));
    return true;
  }

  std::vector<HubFile>& files_;
  WorkGrant* const memory_;
  Entry entry_;
  std::string key_;
  Status status_;
  int depth_ = 0;  // 1: in the list, 2: in an entry
  bool in_lfs_ = false, is_list_ = false;
};

}  // namespace

Expected<std::vector<HubFile>> parse_tree(std::string_view text, WorkGrant* memory) {
  std::vector<HubFile> files;
  TreeReader reader(files, memory);
  if (json::sax_parse(text.begin(), text.end(), &reader)) return files;
  if (!reader.status().ok()) return reader.status();
  return error(Code::corrupt, "the hub's list of files {}; check HF_ENDPOINT",
               reader.is_list() ? "cannot be read" : "is no list");
}

std::vector<Variant> variants_of(const std::vector<HubFile>& files) {
  std::map<std::pair<std::string, int>, std::map<int, HubFile>> groups;  // by path without split, count
  for (const HubFile& file : files) {
    const auto split = split_of(file.path);
    if (!split || file.bytes == 0) continue;
    groups[{folder_of(file.path) + split->stem, split->count}].emplace(split->index, file);
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

namespace {

/// Whether all words of an mmproj file's name stand in the model's: its type, "mmproj" and "model" aside.
bool names_same_model(const std::string& mmproj_stem, const std::string& model_stem) {
  const std::string stem = lower(mmproj_stem), quant = lower(quant_of(mmproj_stem)), model = lower(model_stem);
  for (std::size_t begin = 0; begin <= stem.size();) {
    const std::size_t end = std::min(stem.find_first_of("-._", begin), stem.size());
    const std::string word = stem.substr(begin, end - begin);
    const bool says_nothing = word == "mmproj" || word == "model" || quant.find(word) != std::string::npos;
    if (!says_nothing && model.find(word) == std::string::npos) return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

const HubFile* mmproj_of(const std::vector<HubFile>& files, const Variant& variant) {
  constexpr std::array<std::string_view, 5> kBestFirst = {"F16", "BF16", "F32", "", "Q8_0"};
  const std::string folder = folder_of(variant.files.front().path);
  const HubFile* best = nullptr;
  std::tuple<bool, bool, std::ptrdiff_t, std::string_view> best_rank;
  for (const HubFile& file : files) {
    std::string stem = base_name(file.path);
    if (!lower(stem).ends_with(".gguf") || file.bytes == 0 || !vision::is_mmproj_name(stem)) continue;
    stem.resize(stem.size() - 5);
    const auto type = std::find(kBestFirst.begin(), kBestFirst.end(), quant_of(stem)) - kBestFirst.begin();
    const std::tuple rank(!names_same_model(stem, variant.stem), folder_of(file.path) != folder, type,
                          std::string_view(file.path));
    if (best == nullptr || rank < best_rank) best = &file, best_rank = rank;
  }
  return best;
}

bool is_checkpoint(const std::vector<HubFile>& files) {
  return std::any_of(files.begin(), files.end(),
                     [](const HubFile& file) { return file.path.ends_with(".safetensors"); });
}

Expected<std::vector<HubFile>> checkpoint_texts(const std::vector<HubFile>& files, const Name& name) {
  std::vector<HubFile> texts;
  for (const std::string_view path :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
        "chat_template.json", "preprocessor_config.json", "processor_config.json", kCheckpointIndex.data()}) {
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
    MR_ASSIGN_OR_RETURN(std::vector<HubFile> files, parse_tree(reply.body, options.http.memory));
    if (options.http.memory != nullptr) options.http.memory->give_back(2 * reply.body.size());
    std::move(files.begin(), files.end(), std::back_inserter(all));
    url = reply.next_link.starts_with(endpoint + "/") ? reply.next_link : "";
  }
  return all;
}

Expected<std::vector<HubModel>> search_models(const std::string& endpoint, const std::string& words, int most,
                                              const DownloadOptions& options) {
  const std::string url = fmt::format("{}/api/models?search={}&filter=gguf&sort=downloads&direction=-1&limit={}",
                                      endpoint, percent_encode(words, ""), most);
  MR_ASSIGN_OR_RETURN(const Reply reply, get_patiently(url, kMostSearchBytes, options));
  const json list = json::parse(reply.body, nullptr, false);
  if (!list.is_array()) return error(Code::corrupt, "the hub's answer to a search is no list; check HF_ENDPOINT");
  std::vector<HubModel> found;
  for (const json& one : list) {
    if (!one.is_object() || static_cast<int>(found.size()) == most) continue;
    const auto id = one.find("id"), downloads = one.find("downloads");
    if (id == one.end() || !id->is_string() || !parse_name(id->get<std::string>()).ok()) continue;
    const bool counted = downloads != one.end() && downloads->is_number_unsigned();
    found.push_back({id->get<std::string>(), counted ? downloads->get<std::uint64_t>() : 0});
  }
  if (options.http.memory != nullptr) options.http.memory->give_back(2 * reply.body.size());
  return found;
}

}  // namespace millrace::store
