#include "exec/adapters.h"

namespace millrace::exec {

float scale_in(const kv::AdapterMix& mix, std::size_t adapter) {
  for (const kv::AdapterScale& one : mix)
    if (static_cast<std::size_t>(one.adapter) == adapter) return one.scale;
  return 0;
}

Expected<std::vector<bool>> mixed_in(const kv::Batch& batch, const Adapters* adapters) {
  std::vector<bool> mixed;
  const std::size_t count = adapters == nullptr ? 0 : adapters->size();
  for (const kv::BatchRow& row : batch.rows) {
    if (row.mix < 0) continue;
    if (static_cast<std::size_t>(row.mix) >= batch.mixes.size())
      return error(Code::internal, "a row of the pass goes through mix {} of {}", row.mix, batch.mixes.size());
    for (const kv::AdapterScale& one : batch.mixes[static_cast<std::size_t>(row.mix)]) {
      if (one.adapter < 0 || static_cast<std::size_t>(one.adapter) >= count)
        return error(Code::internal, "a row of the pass goes through adapter {} of {}", one.adapter, count);
      mixed.resize(count);
      mixed[static_cast<std::size_t>(one.adapter)] = true;
    }
  }
  return mixed;
}

}  // namespace millrace::exec
