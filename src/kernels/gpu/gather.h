// What several GPUs made of the same rows, brought together on each of them. Every one stores its columns into the
// memory of all, says so, and goes on when all others have said so: two to three microseconds for a row over NVLink,
// where a collective of a library takes eighteen. No value is summed or changed on the way. REQUIRES: each device may
// write to the others' memory (peer access), or the call goes through the host's; all launch the same gathers in one
// order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/ops.h"

namespace millrace::kernels::gpu {

/// Few values go in words that say themselves when they have come: two floats, each beside the number of its gather. No
/// fence is waited for then, and no flag behind them.
constexpr int kGatherThreads = 256, kFewGatherBlocks = 256, kGatherQuad = 4;

/// Of each device, in its memory. Zero at first, as its words, and again on all devices after a gather that failed.
struct GatherState {
  std::uint32_t told[kMostGpus] =
      {};                     // by device: the number of the last gather of many values that it has stored here
  std::uint32_t number = 0;   // of this device's last one
  std::uint32_t arrived = 0;  // blocks of the present launch
  std::uint32_t failed = 0;
  std::uint32_t turns[kFewGatherBlocks] = {};  // by block: of the last gather of few values
};

constexpr std::size_t kGatherStateBytes = (sizeof(GatherState) + 255) / 256 * 256;

/// Words that others send: twice, because a device may be one gather ahead.
constexpr std::size_t gather_word_bytes(int devices) {
  constexpr std::size_t kWord = 2 * sizeof(float);
  return std::size_t{2} * static_cast<std::size_t>(devices) * kFewGatherBlocks * kGatherThreads * kGatherQuad * kWord;
}

struct GatherCall {
  const float* own = nullptr;  // [rows, own_cols of this device]
  std::int32_t rows = 0;
  std::int32_t cols = 0;  // of all devices together
  std::int32_t devices = 0, index = 0;
  /// In device memory: of rows, some[i] for i from *begin to before *end alone; null: all. The same on all devices.
  const std::int32_t *some = nullptr, *begin = nullptr, *end = nullptr;
  /// `own` is added to what `out` of this device has there, and the sums go to all.
  bool add = false;
  /// Some of the devices are one, as in tests: the next launch takes no room there before this one has ended, or what
  /// it waits for might find none.
  bool one_device = false;
  /// Others may still touch what values are stored straight into: all devices meet before. (Words are taken in by each
  /// device itself.)
  bool meets_first = false;
  /// No device writes to another's memory: all goes in words, of which there are `words` in the host's.
  bool through_host = false;
  /// Of each device, this one among them: which columns it has made, and where all of them go there: [rows, cols], any
  /// of three forms. Int8 takes borders at multiples of 32 columns.
  struct Target {
    std::int32_t first = 0, own_cols = 0;
    float* out = nullptr;
    Q8 q8 = {};
    Bf16* bf16 = nullptr;
    GatherState* state = nullptr;  // in its memory
    std::byte* words = nullptr;    // gather_word_bytes(): in its memory too, or in the host's, page-locked for all
  };
  Target targets[kMostGpus];
  /// In host memory, for all devices: other than 0 when one of them has given up, which ends all waits.
  std::uint32_t* failed = nullptr;
};

/// A wait of more than five minutes sets `failed`.
Status gather(const GatherCall& call, device::StreamRef stream);
/// The same behind a kernel that has stored what the device made in all devices' memory itself (ProductCopies): nothing
/// is left to do but to say so, and to wait for the others. Not through the host.
Status meet(const GatherCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu
