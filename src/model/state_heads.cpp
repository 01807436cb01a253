#include "model/state_heads.h"

#include "kernels/recurrent.h"
#include "model/keys.h"

namespace millrace::model {

Expected<StateHeads> read_state_heads(const modelfile::Model& file, std::int64_t lanes) {
  constexpr std::int64_t kMostHeads = 1 << 12, kMostKeys = 1 << 10, kMostInner = 1 << 20;
  Keys keys(file);
  StateHeads read;
  read.taps = keys.required("ssm.conv_kernel", 2, kernels::kMostTaps);
  read.keys = keys.required("ssm.state_size", 2, kMostKeys);
  read.groups = keys.required("ssm.group_count", 1, kMostHeads);
  read.heads = keys.required("ssm.time_step_rank", 1, kMostHeads);
  const std::int64_t inner = keys.required("ssm.inner_size", 1, kMostInner);
  MR_RETURN_IF_ERROR(keys.status());
  if (read.heads % read.groups != 0)
    return error(Code::corrupt, "{}: {} heads cannot share {} groups evenly", arch_key(file, "ssm.group_count"),
                 read.heads, read.groups);
  if (inner % read.heads != 0)
    return error(Code::corrupt, "{}: {} channels are not {} heads", arch_key(file, "ssm.inner_size"), inner,
                 read.heads);
  read.values = inner / read.heads;
  if (read.values % lanes != 0 || read.keys % 2 != 0)
    return error(Code::unsupported, "{}: states of {} x {} (this version wants a multiple of 2 x {})",
                 arch_key(file, "ssm.state_size"), read.keys, read.values, lanes);
  return read;
}

}  // namespace millrace::model
