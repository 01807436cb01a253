// Whether a GPU computes what a model asks of it: its products and its attention on small random inputs, beside the
// processor's. No machine of ours has every card, and a kernel that is wrong on one would be wrong tokens.
//
// A family of kernels that differs is replaced by a plainer one for the life of the process (kernels/gpu/plainer.h),
// and the user is told. Takes about a tenth of a second and some tens of megabytes of VRAM, which it gives back; what
// has passed on a device is not tried again in the process.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "device/gpu.h"
#include "residency/unit.h"
#include "tensor/dtype.h"

namespace millrace::exec {

/// Heads of attention, as the device keeps them.
struct SelfTestHeads {
  std::int64_t head_dim = 0, group = 1;  // heads for each KV head
};

/// What a model has of what is tried. Pure.
struct SelfTestOf {
  std::vector<DType> weights;  // of its matrices, each once
  std::vector<SelfTestHeads> heads;
  DType kv_dtype = DType::f16;
  // Whose kernels have nothing plainer: experts' products, and rows that see keys behind them, which the caller says.
  bool experts = false, pictures = false;
};
struct Program;
SelfTestOf self_test_of(const Program& program, const residency::UnitTable& units, DType kv_dtype);

/// What was replaced, a sentence each, for the user. The device is the current one. Errors: unsupported, where nothing
/// plainer is right; out_of_budget; io_error, where the device fails.
Expected<std::vector<std::string>> self_test(const SelfTestOf& of, const device::Gpu& gpu);
/// For tests: all is tried again, and nothing is replaced.
void forget_self_tests();

}  // namespace millrace::exec
