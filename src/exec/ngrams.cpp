#include "exec/ngrams.h"

namespace millrace::exec {

void Ngrams::rows_of(std::span<const std::int32_t> tokens, std::int64_t* rows) const {
  const auto orders = static_cast<std::size_t>(order()), heads = static_cast<std::size_t>(rows_of_order());
  std::uint64_t hash = static_cast<std::uint64_t>(tokens[0]) * multipliers[0];
  bool ended = false;
  for (std::size_t back = 1; back < orders; ++back) {
    ended = ended || tokens[back] == end;
    hash ^= static_cast<std::uint64_t>(ended ? end : tokens[back]) * multipliers[back];
    for (std::size_t head = (back - 1) * heads; head < back * heads; ++head)
      rows[head] = static_cast<std::int64_t>(offsets[head] + hash % sizes[head]);
  }
}

}  // namespace millrace::exec
