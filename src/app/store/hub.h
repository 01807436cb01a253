// What a Hugging Face-compatible hub offers: the GGUF files of a repository, grouped into variants, or its checkpoint.
// Source: the hub's HTTP API (GET /api/models/REPO/tree/REVISION). Thread-safety: pure functions, but for list_files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/store/download.h"
#include "app/store/name.h"
#include "base/status.h"

namespace millrace::store {

struct HubFile {
  std::string path;  // in the repository
  std::uint64_t bytes = 0;
  std::string sha256;         // empty: the hub tells none
  std::string git_sha1 = {};  // of git's blob, for small files; empty: the hub tells none
};

/// One model of a repository: a file, or all the splits of one, in order.
struct Variant {
  std::string quant;  // "Q4_K_M" as the file's name says it; empty: it says none
  std::vector<HubFile> files;
  std::string stem;  // the file's name without .gguf and split
  std::uint64_t bytes() const;
};

/// The files of one page of the list that a model can be made of. `memory`, where given, is charged for each. Errors:
/// corrupt, out_of_budget.
Expected<std::vector<HubFile>> parse_tree(std::string_view json, WorkGrant* memory = nullptr);

/// GGUF models among the files; projectors and importance matrices are none. Splits with a hole are left out.
std::vector<Variant> variants_of(const std::vector<HubFile>& files);

/// The mmproj file (a vision tower) that goes with a variant: one whose name fits the model's before others, then one
/// in its folder, then by type: F16, BF16, F32, one that names no type, Q8_0. nullptr: the repository has none.
const HubFile* mmproj_of(const std::vector<HubFile>& files, const Variant& variant);

/// Whether `millrace convert` could make a GGUF file of the repository.
bool is_checkpoint(const std::vector<HubFile>& files);

/// What describes a checkpoint: its config, tokenizer and chat template, and the index of its shards. Errors: not_found
/// (a file without which there is no conversion).
Expected<std::vector<HubFile>> checkpoint_texts(const std::vector<HubFile>& files, const Name& name);
/// Its weights. `index`: the text of the index; empty: it has none. Errors: not_found (named), corrupt,
/// invalid_argument (several files of which none is the usual).
Expected<std::vector<HubFile>> checkpoint_weights(const std::vector<HubFile>& files, std::string_view index,
                                                  const Name& name);
constexpr std::string_view kCheckpointIndex = "model.safetensors.index.json";

/// The variant that the tag names (a quantization, or a file's name), or the usual choice where it names none.
/// Errors: not_found, invalid_argument (several); both list what there is.
Expected<Variant> choose_variant(const std::vector<Variant>& variants, const Name& name);

/// All pages. Errors: those of get_patiently; corrupt.
Expected<std::vector<HubFile>> list_files(const std::string& endpoint, const std::string& repository,
                                          const std::string& revision, const DownloadOptions& options);

/// A repository that a search found.
struct HubModel {
  std::string repository;  // "user/repo"
  std::uint64_t downloads = 0;
};
/// Repositories with GGUF files whose names have these words, the most downloaded first, `most` of them. Errors: those
/// of get_patiently; corrupt.
Expected<std::vector<HubModel>> search_models(const std::string& endpoint, const std::string& words, int most,
                                              const DownloadOptions& options);

}  // namespace millrace::store
