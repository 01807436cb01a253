// Converts a LoRA adapter that PEFT saved (adapter_config.json, adapter_model.safetensors) to a GGUF adapter
// (model/adapter.h). The base model's family gives tensor names and row order, as for the model's own weights.
// Thread-safety: functions without shared state.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/work_grant.h"

namespace millrace::convert {

struct AdapterReport {
  std::string architecture;
  std::uint64_t matrices = 0, bytes = 0;
  std::int64_t most_rank = 0;
};

/// True if `path` is a PEFT adapter: its folder, or the safetensors file in it.
bool is_peft_adapter(const std::string& path);

/// `in`: a path for which is_peft_adapter() is true. `base`: the model's GGUF file. `out`: the file to write, which
/// appears only when it is complete. Errors: not_found (adapter_config.json, the weights); unsupported (an adapter
/// other than LoRA; DoRA, whole modules or biases beside it; a tensor that the family's table lacks, or whose form
/// cannot be written as two factors; each named); corrupt (a factor without the other, a wrong shape); invalid_argument
/// (an adapter for another model); io_error; out_of_budget (`memory`, if not null, is charged for the bytes read, and
/// refuses).
Expected<AdapterReport> convert_adapter(const std::string& in, const std::string& base, const std::string& out,
                                        WorkGrant* memory = nullptr);

}  // namespace millrace::convert
