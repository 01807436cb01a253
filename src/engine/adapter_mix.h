// The engine's adapters: files that are read with the model, what a request goes through, and the keys by which the KV
// of such requests is found. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/options.h"
#include "engine/setup.h"
#include "kv/sequence.h"
#include "text/tokenizer.h"

namespace millrace::engine {

/// Whether adapters may be where the options want to compute. Errors: unsupported (several processes, several GPUs).
Status check_adapter_device(const EngineOptions& options);

/// Reads the headers of the options' adapters, holds them to the model's file, and says in the parts what they are to
/// take. Errors: invalid_argument (two of one name; an adapter of another model), those of model::AdapterFile.
Status read_adapters(const EngineOptions& options, const modelfile::Model& file, Parts& parts);
/// Loads them under the parts' budget. Errors: out_of_budget, those of model::AdapterFile.
Status load_adapters(const EngineOptions& options, Parts& parts);

/// `asked` in order of the adapters, without those of scale 0; nullopt: as the states say. Errors: invalid_argument (an
/// adapter that is not there or twice, a scale that is no number).
Expected<kv::AdapterMix> resolve_mix(const std::optional<kv::AdapterMix>& asked, std::span<const AdapterState> states);

/// What KV depends on beside its tokens: 0 where the mix is empty, and only there may `adapters` be null.
std::uint64_t mix_key(const kv::AdapterMix& mix, const exec::Adapters* adapters);

/// A request's tokens as the tree of beginnings and the prompt cache are to compare them. With adapters the first ones
/// are hashes with the mix's key, as pictures' tokens are hashes, so that nothing is shared with other mixes.
class KvKeys {
 public:
  explicit KvKeys(std::uint64_t key = 0) : key_(key) {}
  /// Valid until the next call. REQUIRES: what the last call was given is the beginning of `tokens`.
  std::span<const text::TokenId> of(std::span<const text::TokenId> tokens);
  std::uint64_t key() const { return key_; }

 private:
  std::uint64_t key_ = 0;
  std::vector<text::TokenId> keys_;
};

}  // namespace millrace::engine
