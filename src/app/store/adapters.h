// LoRA adapters that are part of a stored model (ADAPTER of a Modelfile, `adapters` of /api/create): each is a blob, a
// GGUF file that was held to the model, and an entry of the manifest.
// Thread- and process-safety: as Store.
#pragma once

#include <string>
#include <vector>

#include "app/store/manifest.h"
#include "app/store/recipe.h"
#include "app/store/store.h"
#include "base/status.h"
#include "base/work_grant.h"
#include "engine/options.h"

namespace millrace::store {

/// What an adapter's header takes of memory at most.
constexpr std::uint64_t kMostAdapterHeaderBytes = 8u << 20;

/// Copies the adapter to the store's blobs; what PEFT saved is converted for the model. `model_path`: of the model's
/// GGUF file. `memory`, where given, is charged while files are read. Errors: not_found (no such file or blob),
/// invalid_argument (another model's; not one GGUF file or PEFT's two), io_error, out_of_budget (memory, the disk), and
/// those of model::AdapterFile and convert::convert_adapter.
Expected<ModelFile> keep_adapter(const Store& store, const AdapterSource& source, const std::string& model_path,
                                 WorkGrant* memory);

/// Renames the adapter's entry if a file of the model has its name: requests ask for adapters by name.
void give_free_name(ModelFile& adapter, const std::vector<ModelFile>& files);

/// The adapters that a model is loaded with, in the order of its files.
std::vector<engine::AdapterOptions> adapters_of(const Store& store, const Name& name,
                                                const std::vector<ModelFile>& files);

}  // namespace millrace::store
