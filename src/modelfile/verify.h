// Whether a model's file holds weights that can be computed with: every number finite, every block's scales, too; and a
// hash of each tensor, which tells two files apart, or two readings of one.
// Thread-safety: functions without shared state; one call uses its own threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::modelfile {

struct VerifyOptions {
  int threads = 0;                                                             // 0: the processors this process may use
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};  // bytes of tensors
  const std::atomic<bool>* cancel = nullptr;
};

/// What was found of a tensor.
struct VerifiedTensor {
  std::string name;
  std::string hash;     // XXH3 of 128 bits over the tensor's bytes, as 32 hexadecimal digits
  std::string trouble;  // empty: none
};

/// A pass over all tensors of the file, in its order. Errors: io_error, cancelled; what is wrong with a tensor is no
/// error but its `trouble`. Tensors of integers have nothing to be held to but their hash.
Expected<std::vector<VerifiedTensor>> verify(const Model& model, const VerifyOptions& options = {});

/// A line for each tensor that is not in both or differs in type, shape or hash; empty: the same weights.
std::vector<std::string> differences(const Model& a, const std::vector<VerifiedTensor>& of_a, const Model& b,
                                     const std::vector<VerifiedTensor>& of_b);

}  // namespace millrace::modelfile
