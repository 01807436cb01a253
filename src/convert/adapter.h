// A LoRA adapter as PEFT saves it (adapter_config.json, adapter_model.safetensors) as an adapter's GGUF file
// (model/adapter.h): names and the order of rows follow from the model that it is for, as those of its weights do.
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

/// Whether this is an adapter of PEFT's: its folder, or the safetensors file in it.
bool is_peft_adapter(const std::string& path);

/// `in`: as above. `base`: the GGUF file of the model. `out`: the file, which appears when it is whole. Errors:
/// not_found (adapter_config.json, the weights); unsupported (a kind of adapter other than LoRA, DoRA, whole modules or
/// biases beside it, a tensor that the family's table lacks, or one whose form no two products give: each named);
/// corrupt (a half without the other, a wrong shape); invalid_argument (an adapter of another model); io_error;
/// out_of_budget (`memory`, where given, is charged for what is read of the files, and refuses).
Expected<AdapterReport> convert_adapter(const std::string& in, const std::string& base, const std::string& out,
                                        WorkGrant* memory = nullptr);

}  // namespace millrace::convert
