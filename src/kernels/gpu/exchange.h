// How the GPU and the processor work on one product at once: the GPU hands out activations and takes in the rows that
// the processor computed, through page-locked memory and a flag each way, while both keep running. Nobody waits for the
// device as a whole.
//
// A flag holds the number of the last exchange that is done. Numbers grow by one and may wrap.
// Thread-safety and errors: as ops.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/device.h"

namespace millrace::kernels::gpu {

/// Copies floats [count] to `to` and then sets *flag to `number`; both lie in page-locked memory, as the device sees
/// it. `from` and `to` on 16-byte edges. `arrived`: a word in device memory, 0 before and after.
Status hand_out(const float* from, std::int64_t count, float* to, std::uint32_t* flag, std::uint32_t number,
                std::uint32_t* arrived, device::StreamRef stream);

/// Likewise floats [count], and then numbers [numbers]: rows and the experts that their router chose.
struct HandOutExpertsCall {
  const float* from = nullptr;
  std::int64_t count = 0;
  const std::int32_t* chosen = nullptr;
  std::int32_t entries = 0;
  float* to = nullptr;
  std::int32_t* to_chosen = nullptr;
  std::uint32_t* flag = nullptr;
  std::uint32_t number = 0;
  std::uint32_t* arrived = nullptr;
};
Status hand_out_experts(const HandOutExpertsCall& call, device::StreamRef stream);

/// Rows that the processor computed: to[r * to_stride + i] = (or +=) from[r * cols + i].
struct TakenIn {
  const float* from = nullptr;  // [rows, cols], dense, in page-locked memory as the device sees it
  float* to = nullptr;          // to_stride floats apart
  std::int64_t to_stride = 0;
  std::int32_t cols = 0;
};
struct TakeInCall {
  TakenIn parts[3];
  int count = 0;
  std::int32_t rows = 0;
  bool add = false;                     // to the residual stream
  const std::uint32_t* flag = nullptr;  // in page-locked memory, as the device sees it
  std::uint32_t number = 0;
  std::uint32_t* seen = nullptr;  // in device memory: the last number that was found in *flag; of one stream
};
/// Waits on the device until *flag has reached `number`, then copies. The processor MUST set the flag, come what may:
/// whatever follows on the stream waits with it.
Status take_in(const TakeInCall& call, device::StreamRef stream);

/// Who computes with which of a mixture's experts, those of some rows: the GPU with those that have slots in its
/// memory, and with some of the others, which it reads across the link where they lie; the processor with the rest. Of
/// the experts that were chosen and have no slot, `missed` of them, the first claimed_of(missed) (kernels/claimed.h)
/// that have an address in RAM are the GPU's, in order of their numbers. The processor decides by the same rule.
struct ClaimExpertsCall {
  const std::int32_t* chosen = nullptr;  // [entries]
  std::int32_t entries = 0, experts = 0, parts = 0;
  const std::byte* const* here = nullptr;    // [experts, parts]: addresses of slots, or of zeros
  const std::byte* absent = nullptr;         // part 0 of those zeros
  const std::byte* const* in_ram = nullptr;  // [experts, parts], as the device sees it; null: not there
  std::int32_t permille = 0;
  const std::byte** table = nullptr;  // out: [experts, parts] where the GPU reads
};
constexpr std::int32_t kMostClaimedExperts = 1024;
/// REQUIRES: experts <= kMostClaimedExperts.
Status claim_experts(const ClaimExpertsCall& call, device::StreamRef stream);

/// Results of experts that the processor computed.
struct TakeInExpertsCall {
  const std::int32_t* place =
      nullptr;                  // [entries], page-locked: where in `from` the entry's result is; -1: the GPU's own
  const float* from = nullptr;  // [*, from_stride], page-locked: the first `cols` of each
  std::int64_t from_stride = 0;
  float* to = nullptr;                 // [entries, cols]
  std::int32_t entries = 0, cols = 0;  // cols, from_stride: multiples of 4
  const std::uint32_t* flag = nullptr;
  std::uint32_t number = 0;
  std::uint32_t* seen = nullptr;
};
/// As take_in: waits for the flag, then overwrites the entries that are the processor's.
Status take_in_experts(const TakeInExpertsCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu
