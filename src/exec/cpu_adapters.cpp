// Adapters of the CPU executor: two small products beside one, over the rows that go through them. Each adapter adds by
// itself, in ascending order, so that no row's bits depend on what the others go through.
#include <algorithm>
#include <array>
#include <tuple>

#include "exec/cpu_executor.h"
#include "exec/host_rows.h"
#include "tensor/codec.h"

namespace millrace::exec {
namespace {

constexpr std::int64_t kLowRows = 8;  // of A that a thread takes at once: it has few, and each is long
// Multiplications that are worth a thread's taking them.
constexpr std::int64_t kTaskProducts = 32 * 1024;

}  // namespace

/// Errors: those of mixed_in().
Status CpuExecutor::begin_mixes(const kv::Batch& batch) {
  MR_ASSIGN_OR_RETURN(mixed_, mixed_in(batch, options_.adapters));
  if (mixed_.empty()) return {};
  auto* const sources = at<std::int32_t>(layout_.logit_sources);
  std::int64_t logit_row = 0;
  for (std::size_t r = 0; r < batch.rows.size(); ++r)
    if (batch.rows[r].wants_logits && logit_row < shape_.max_logit_rows)
      sources[logit_row++] = static_cast<std::int32_t>(r);
  return {};
}

/// Whether products with this weight are added to in this pass.
bool CpuExecutor::adapts(WeightRef weight) const {
  for (std::size_t a = 0; a < mixed_.size(); ++a)
    if (mixed_[a] && (*options_.adapters)[a].find(weight) != nullptr) return true;
  return false;
}

bool CpuExecutor::adapts_experts(const Experts& experts) const {
  for (std::size_t a = 0; a < mixed_.size(); ++a) {
    if (!mixed_[a]) continue;
    const auto& matrices = (*options_.adapters)[a].matrices;
    const auto first = matrices.lower_bound({experts.first_unit, 0});
    if (first != matrices.end() && first->first.first < experts.first_unit + experts.count) return true;
  }
  return false;
}

/// The product's rows that go through the adapter, into the layout's tables. pass_rows: which row of the pass each of
/// the product's is; null: they are the same.
std::int64_t CpuExecutor::gather_adapted(std::size_t adapter, const Input& input, const std::int32_t* pass_rows) {
  auto *const rows = at<std::int32_t>(layout_.adapted_rows), *const inputs = at<std::int32_t>(layout_.adapted_inputs);
  auto* const scales = at<float>(layout_.adapted_scales);
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < input.rows; ++r) {
    const std::int32_t mix = batch_->rows[static_cast<std::size_t>(pass_rows == nullptr ? r : pass_rows[r])].mix;
    const float scale = mix < 0 ? 0 : scale_in(batch_->mixes[static_cast<std::size_t>(mix)], adapter);
    if (scale == 0) continue;
    rows[count] = static_cast<std::int32_t>(r);
    inputs[count] = input.index == nullptr ? static_cast<std::int32_t>(r) : input.index[r];
    scales[count++] = scale;
  }
  return count;
}

/// Adds to what products with the targets' weights gave, up to three of them of one input.
void CpuExecutor::adapt(std::span<const Target> targets, const Input& input, const std::int32_t* pass_rows) {
  for (std::size_t a = 0; a < mixed_.size() && !failed(); ++a) {
    const Adapter& adapter = (*options_.adapters)[a];
    const auto has = [&](const Target& target) { return adapter.find(target.weight) != nullptr; };
    if (!mixed_[a] || std::none_of(targets.begin(), targets.end(), has)) continue;
    if (const std::int64_t rows = gather_adapted(a, input, pass_rows); rows > 0)
      add_low_rank(targets, input, adapter, rows);
  }
}

/// Over the rows that gather_adapted() found: all A x, then all B of them.
void CpuExecutor::add_low_rank(std::span<const Target> targets, const Input& input, const Adapter& adapter,
                               std::int64_t rows) {
  const auto* const inputs = at<std::int32_t>(layout_.adapted_inputs);
  const auto* const scales = at<float>(layout_.adapted_scales);
  /// A piece of work: weight rows from `first` on.
  struct Piece {
    const LowRank* low = nullptr;
    const Target* target = nullptr;
    float* small = nullptr;  // [rows, rank]
    std::int64_t pieces = 0;
  };
  std::array<Piece, std::tuple_size_v<decltype(Step::products)>> all;
  std::size_t count = 0;
  float* small = at<float>(layout_.adapted_low);
  for (const Target& target : targets) {
    const LowRank* const low = adapter.find(target.weight);
    if (low == nullptr) continue;
    all[count++] = {low, &target, small, (low->rank + kLowRows - 1) / kLowRows};
    small += rows * low->rank;
  }
  const auto run = [&](std::int64_t grain, auto&& work) {
    std::int64_t pieces = 0;
    for (std::size_t i = 0; i < count; ++i) pieces += all[i].pieces;
    pool_.parallel_for(pieces, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t at = begin; at < end; ++at) {
        std::int64_t own = at;
        std::size_t i = 0;
        for (; own >= all[i].pieces; ++i) own -= all[i].pieces;
        work(all[i], own, thread);
      }
    });
  };
  run(1, [&](const Piece& piece, std::int64_t own, int thread) {
    const LowRank& low = *piece.low;
    const std::int64_t first = own * kLowRows, end = std::min(low.rank, first + kLowRows);
    kernels::MatmulArgs args = exec::rows_of(low.a_dtype, low.a, input.cols, first, end);
    args.x = input.x;
    args.x_stride = input.cols;
    args.x_rows = rows;
    args.x_index = inputs;
    args.y = piece.small + first;
    args.y_stride = low.rank;
    args.workspace = thread_memory(thread);
    table_.matmul(args);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* const row = piece.small + r * low.rank;
      for (std::int64_t i = first; i < end; ++i) row[i] *= low.factor * scales[r];
    }
  });
  std::int64_t widest = 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t weight_rows = part(all[i].target->weight).rows;
    all[i].pieces = (weight_rows + CpuLayout::kTaskRows - 1) / CpuLayout::kTaskRows;
    widest = std::max(widest, all[i].low->rank);
  }
  run(std::max<std::int64_t>(1, kTaskProducts / (CpuLayout::kTaskRows * widest * rows)),
      [&](const Piece& piece, std::int64_t own, int /*thread*/) {
        const std::int64_t first = own * CpuLayout::kTaskRows;
        const std::int64_t end = std::min(part(piece.target->weight).rows, first + CpuLayout::kTaskRows);
        add_up(*piece.low, {piece.small, rows, first, end}, piece.target->y, piece.target->y_stride);
      });
}

/// out's rows, which the tables name, += B's rows [begin, end) times `small`: of each element one fma a channel,
/// ascending.
void CpuExecutor::add_up(const LowRank& low, const LowRows& of, float* out, std::int64_t stride) const {
  const auto* const rows = at<std::int32_t>(layout_.adapted_rows);
  for (std::int64_t r = 0; r < of.rows; ++r)
    for (std::int64_t k = 0; k < low.rank; ++k)
      table_.add_scaled(out + rows[r] * stride + of.begin, low.b + k * low.b_stride + of.begin,
                        of.small[r * low.rank + k], of.end - of.begin);
}

/// The same of the tokens' embeddings [rows, cols].
void CpuExecutor::adapt_embedding(float* out, std::int64_t cols) {
  Input input;
  input.rows = rows_;
  for (std::size_t a = 0; a < mixed_.size() && !failed(); ++a) {
    const LowRank& low = (*options_.adapters)[a].embedding;
    if (!mixed_[a] || low.rank == 0) continue;
    const std::int64_t rows = gather_adapted(a, input, nullptr);
    const auto* const of_pass = at<std::int32_t>(layout_.adapted_rows);
    const auto* const scales = at<float>(layout_.adapted_scales);
    auto* const small = at<float>(layout_.adapted_low);
    for (std::int64_t r = 0; r < rows; ++r) {
      const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(of_pass[r])];
      float* const own = small + r * low.rank;
      decode_row(low.a_dtype, low.a + std::max(row.token, 0) * row_bytes(low.a_dtype, low.rank), low.rank, own);
      for (std::int64_t i = 0; i < low.rank; ++i) own[i] *= low.factor * scales[r];
    }
    if (rows == 0) continue;
    const std::int64_t pieces = (cols + CpuLayout::kTaskRows - 1) / CpuLayout::kTaskRows;
    pool_.parallel_for(pieces, 4, [&](std::int64_t begin, std::int64_t end, int /*thread*/) {
      for (std::int64_t first = begin * CpuLayout::kTaskRows; first < std::min(cols, end * CpuLayout::kTaskRows);
           first += CpuLayout::kTaskRows)
        add_up(low, {small, rows, first, std::min(cols, first + CpuLayout::kTaskRows)}, out, cols);
    });
  }
}

/// gate.y = activation(x gate^T * scale + bias) * (x up^T * scale + bias) where one of the two is added to, which has
/// to be done before they meet. Without an up (none()): activation(x gate^T * scale + bias).
void CpuExecutor::adapt_gated(const Target& gate, WeightRef up, const Input& input, const std::int32_t* pass_rows) {
  const std::int64_t cols = part(gate.weight).rows;
  std::array<Target, 2> targets{gate, Target{up, at<float>(layout_.adapted_up), cols, {}}};
  targets[0].gate = {};
  const std::span<const Target> made = std::span(targets).first(up.none() ? 1 : 2);
  run_products(made, input, Effect::store);
  adapt(made, input, pass_rows);
  if (failed()) return;
  const Gate& through = gate.gate;
  for_rows(input.rows, cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      kernels::MatmulArgs row;
      row.x_rows = 1;
      row.weight_rows = cols;
      row.y = gate.y + r * gate.y_stride;
      end_rows(table_, through, row);
      float* const factors = targets[1].y + r * cols;
      if (up.none()) {
        std::fill_n(factors, cols, 1.0f);
      } else {
        row.y = factors;
        end_rows(table_, {through.activation, through.up_bias, nullptr, through.up_scale}, row);
      }
      row.y = gate.y + r * gate.y_stride;
      table_.gate_mul(through.activation, through.limit, row.y, factors, cols);
    }
  });
}

}  // namespace millrace::exec
