// Downloads a model from a Hugging Face-compatible hub into the store: the list of files, the fit, the bytes, their
// hashes, and at last the manifest. An interrupted pull resumes when it is repeated.
// Thread-safety: pull() may run in several threads and processes; two pulls of one model run one after the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "app/store/download.h"
#include "app/store/store.h"
#include "base/status.h"
#include "engine/engine.h"
#include "modelfile/mixtures.h"

namespace millrace::store {

/// In Ollama's words: "pulling manifest", "pulling 0123456789ab" (with digest, total, completed), "verifying sha256
/// digest", "writing manifest", "success"; beside them "fits: ..." with what the plan says of this machine, what
/// becomes of an mmproj file, and "converting" (with total and completed).
struct PullEvent {
  std::string status;
  std::string digest;                      // "sha256:..."; empty: none
  std::uint64_t total = 0, completed = 0;  // bytes of that file; 0: none
};

struct PullOptions {
  std::string endpoint = "https://huggingface.co";
  std::string revision = "main";
  DownloadOptions download;
  /// Of a repository that holds safetensors and no GGUF file: what its matrices become; nullopt: what the tag says, or
  /// what they are.
  std::optional<modelfile::QuantizeType> type = {};
  bool mmproj = true;  // with the repository's vision tower, where it has one that is computed here
  int threads = 0;     // of the conversion; 0: all
  std::function<void(const PullEvent&)> on_event;  // called in the pulling thread
  /// Asked with a file whose header alone is there, before the rest is fetched: one line that says how the model fits,
  /// or the error that says why it does not. Empty: not asked.
  std::function<Expected<std::string>(const std::string& gguf_path)> fit;
  bool fit_only = false;  // end after that, without a model: a pull that began before keeps its bytes
};

/// HF_ENDPOINT and HF_TOKEN.
PullOptions pull_options_from_environment();

/// How a model would run with these options, by engine::plan_only: "fits: ...". Errors: those of Engine::create.
Expected<std::string> describe_fit(const engine::EngineOptions& options);

/// `name`: user/repo or user/repo:QUANT, hf.co/ before it or not. A repository that holds safetensors alone is
/// converted as it comes. The files of the manifest are the model's, in order, and behind them the mmproj file. Errors:
/// those of convert() of it, invalid_argument, not_found, cancelled, io_error, corrupt (wrong hash or length, no GGUF
/// file), out_of_budget (the disk or this machine is too small).
Expected<Manifest> pull(Store& store, const std::string& name, const PullOptions& options);

}  // namespace millrace::store
