// How many requests share a pass where nobody said (DemandOptions::max_sequences 0). Pure.
#pragma once

#include <cstdint>
#include <functional>

namespace millrace::engine {

/// The memory that KV lies in.
struct SharedMemory {
  std::uint64_t cap_bytes = 0;
  std::uint64_t taken_bytes = 0;  // of it by weights, activations and the program
  bool weights_give_way = false;  // what does not fit streams
  /// Of KV of so many tokens in so many sequences: grows with both, layers with a window with the sequences alone.
  std::function<std::uint64_t(std::int64_t tokens, std::int64_t sequences)> kv_bytes;

  /// Half of what is not taken.
  std::uint64_t half_of_rest() const { return cap_bytes > taken_bytes ? (cap_bytes - taken_bytes) / 2 : 0; }
};

struct SharingInput : SharedMemory {
  std::int64_t vocab = 0;
  std::int64_t context_tokens = 0;  // of one request at most
  std::int64_t most_sequences = 0;  // 0: 64, beyond which more gains little
  std::int64_t most_kv_tokens = 0;  // 0: 2048 a sequence
};
struct Sharing {
  std::int64_t sequences = 1;
  std::int64_t kv_tokens = 0;  // of all of them together
};

/// KV takes what the weights leave; where they leave less than a quarter and can stream, a quarter: a pass reads them
/// once however many requests share it, so that further rows cost little.
Sharing choose_sharing(const SharingInput& input);

}  // namespace millrace::engine
