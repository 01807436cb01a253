#include "app/store/adapters.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>

#include "app/store/digest.h"
#include "app/store/files.h"
#include "base/bytes.h"
#include "base/os/folder.h"
#include "base/os/process.h"
#include "convert/adapter.h"
#include "model/adapter.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"

namespace millrace::store {
namespace {

constexpr std::uint64_t kDiskReserve = 64 * kMiB;  // left free
constexpr std::uint64_t kCopyBytes = 256 << 10;

/// A place in the store's folder of unfinished files, removed with this object.
class Aside {
 public:
  explicit Aside(const Store& store) {
    static std::atomic<int> made{0};
    path_ = fmt::format("{}/partial/adapter-{}-{}", store.root(), os::process_id(), made++);
  }
  ~Aside() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Holds the adapter to the model. Errors: those of model::AdapterFile.
Status check_fits(const std::string& adapter_path, const std::string& model_path, WorkGrant* memory) {
  GrantedBytes own(kMostAdapterHeaderBytes, memory), of_model(UINT64_MAX, memory);
  modelfile::OpenOptions options;
  options.memory = &own;
  MR_ASSIGN_OR_RETURN(modelfile::Model file, modelfile::Model::open(adapter_path, options));
  if (file.paths().size() > 1)
    return error(Code::unsupported, "the adapter is split; 'millrace merge' makes one file of the parts");
  MR_ASSIGN_OR_RETURN(const model::AdapterFile adapter, model::AdapterFile::from(std::move(file)));
  options.memory = &of_model;
  options.skip_vocabulary = true;
  MR_ASSIGN_OR_RETURN(const modelfile::Model model, modelfile::Model::open(model_path, options));
  return adapter.check(model);
}

/// A copy of the file as a blob; its name is left to the caller. Errors: io_error, out_of_budget (the disk).
Expected<ModelFile> copy_to_blobs(const Store& store, const std::string& path) {
  ModelFile kept;
  MR_ASSIGN_OR_RETURN(const modelfile::File source, modelfile::File::open_read(path));
  MR_ASSIGN_OR_RETURN(kept.bytes, source.size());
  MR_ASSIGN_OR_RETURN(const std::uint64_t free, free_bytes(store.root()));
  if (kept.bytes + kDiskReserve > free)
    return error(Code::out_of_budget, "the adapter's {} do not fit onto the store's disk, of which {} are free",
                 format_bytes(kept.bytes), format_bytes(free));
  const Aside aside(store);
  Sha256 hash;
  {
    MR_ASSIGN_OR_RETURN(const modelfile::File copy, modelfile::File::create(aside.path()));
    std::vector<std::byte> buffer(std::min(kept.bytes, kCopyBytes));
    for (std::uint64_t at = 0; at < kept.bytes; at += buffer.size()) {
      const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), kept.bytes - at));
      MR_RETURN_IF_ERROR(source.read_at(at, piece));
      hash.add(piece);
      MR_RETURN_IF_ERROR(copy.write_at(at, piece));
    }
    MR_RETURN_IF_ERROR(copy.sync());
  }
  kept.sha256 = hash.hex();
  MR_RETURN_IF_ERROR(make_folders(store.root() + "/blobs"));
  MR_RETURN_IF_ERROR(move_file(aside.path(), store.blob_path(kept.sha256)));
  return kept;
}

/// Of a folder all of its name, of PEFT's file that of its folder.
std::string name_of(const std::filesystem::path& path) {
  const std::filesystem::path whole = path.lexically_normal();
  const std::filesystem::path named =
      whole.has_filename() && whole.extension() != ".safetensors" ? whole : whole.parent_path();
  const std::string name = named.extension() == ".gguf" ? named.stem().string() : named.filename().string();
  return is_safe_file_name(name) ? name : "adapter";
}

/// What PEFT saved at `path`, converted. Errors: those of convert::convert_adapter.
Expected<ModelFile> keep_converted(const Store& store, const std::string& path, const std::string& model_path,
                                   WorkGrant* memory) {
  const Aside made(store);
  MR_RETURN_IF_ERROR(convert::convert_adapter(path, model_path, made.path(), memory).status());
  return copy_to_blobs(store, made.path());
}

/// Gives blobs the names that PEFT gives its files, in a folder beside theirs. Errors: invalid_argument, io_error.
Status lay_out(const std::vector<ModelFile>& uploaded, const std::string& folder) {
  MR_RETURN_IF_ERROR(make_folders(folder));
  for (const ModelFile& file : uploaded)
    MR_RETURN_IF_ERROR(named(folder, "link a file in it",
                             os::link_file("../../blobs/sha256-" + file.sha256, folder + "/" + file.name)));
  if (convert::is_peft_adapter(folder)) return {};
  return error(
      Code::invalid_argument,
      "adapters: wants one GGUF file, or adapter_config.json and adapter_model.safetensors as PEFT saves them");
}

Expected<ModelFile> keep_uploaded(const Store& store, const std::vector<ModelFile>& uploaded,
                                  const std::string& model_path, WorkGrant* memory) {
  std::error_code ignored;
  for (const ModelFile& file : uploaded)
    if (!std::filesystem::is_regular_file(store.blob_path(file.sha256), ignored))
      return error(Code::not_found, "adapters: there is no blob sha256:{}; upload it first", file.sha256);
  if (uploaded.size() > 1) {
    const Aside folder(store);
    MR_RETURN_IF_ERROR(lay_out(uploaded, folder.path()));
    MR_ASSIGN_OR_RETURN(ModelFile kept, keep_converted(store, folder.path(), model_path, memory));
    kept.name = "adapter.gguf";
    return kept;
  }
  ModelFile kept = uploaded.front();
  const std::string path = store.blob_path(kept.sha256);
  MR_RETURN_IF_ERROR(
      check_fits(path, model_path, memory).with_context("adapters: " + modelfile::escape(kept.name, 100)));
  kept.bytes = std::filesystem::file_size(path, ignored);
  if (!kept.name.ends_with(".gguf")) kept.name += ".gguf";
  return kept;
}

Expected<ModelFile> keep_file(const Store& store, const std::string& path, const std::string& model_path,
                              WorkGrant* memory) {
  std::error_code failure;
  if (!std::filesystem::exists(path, failure)) return error(Code::not_found, "there is no such file");
  const bool peft = convert::is_peft_adapter(path);
  if (!peft && std::filesystem::is_directory(path, failure))
    return error(Code::invalid_argument, "there is no adapter_config.json in this folder; name an adapter's");
  if (!peft) MR_RETURN_IF_ERROR(check_fits(path, model_path, memory));
  MR_ASSIGN_OR_RETURN(ModelFile kept,
                      peft ? keep_converted(store, path, model_path, memory) : copy_to_blobs(store, path));
  kept.name = name_of(path) + ".gguf";
  return kept;
}

}  // namespace

Expected<ModelFile> keep_adapter(const Store& store, const AdapterSource& source, const std::string& model_path,
                                 WorkGrant* memory) {
  MR_RETURN_IF_ERROR(make_folders(store.root() + "/partial"));
  Expected<ModelFile> kept = source.uploaded.empty() ? keep_file(store, source.path, model_path, memory)
                                                     : keep_uploaded(store, source.uploaded, model_path, memory);
  if (!kept.ok() && source.uploaded.empty())
    return kept.status().with_context("ADAPTER " + modelfile::escape(source.path, 200));
  // What was uploaded is the request's fault, not damage of what the store has.
  if (kept.status().code() == Code::corrupt) return error(Code::invalid_argument, "{}", kept.status().message());
  if (kept.ok()) kept->adapter = true;
  return kept;
}

void give_free_name(ModelFile& adapter, const std::vector<ModelFile>& files) {
  const std::string stem = adapter.name.substr(0, adapter.name.size() - std::string_view(".gguf").size());
  const auto is_taken = [&](const ModelFile& file) { return file.name == adapter.name; };
  for (int i = 2; std::any_of(files.begin(), files.end(), is_taken); ++i)
    adapter.name = fmt::format("{}-{}.gguf", stem, i);
}

std::vector<engine::AdapterOptions> adapters_of(const Store& store, const Name& name,
                                                const std::vector<ModelFile>& files) {
  std::vector<engine::AdapterOptions> adapters;
  for (const ModelFile& file : files) {
    if (!file.adapter) continue;
    engine::AdapterOptions one;
    one.path = store.file_path(name, file);
    one.name = std::filesystem::path(file.name).stem().string();
    one.of_model = true;
    adapters.push_back(std::move(one));
  }
  return adapters;
}

}  // namespace millrace::store
