// Products of the CPU executor: pieces of weights become jobs, which are divided into tasks of a few rows for the
// threads.
#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "exec/cpu_executor.h"
#include "exec/host_rows.h"

namespace millrace::exec {
namespace {

constexpr std::int64_t kRowStep = 16;        // tasks are whole groups of rows, as kernels like them
constexpr std::int64_t kTasksPerThread = 4;  // so that a slow core takes fewer
// A few microseconds of reading if many cores share the memory, which is how long the others wait for the last thread.
constexpr std::int64_t kDecodeTaskBytes = 16 * 1024;
constexpr std::int64_t kDecodeRows = 16;

/// The number of weight rows of a task, of `all` rows that the threads share.
std::int64_t rows_of_task(const kernels::MatmulArgs& args, std::int64_t all, int threads) {
  std::int64_t rows = CpuLayout::kTaskRows;
  if (args.x_rows <= kDecodeRows) rows = std::min(rows, kDecodeTaskBytes / row_bytes(args.dtype, args.cols));
  rows = std::min(rows, all / (threads * kTasksPerThread));
  return std::max(kRowStep, rows / kRowStep * kRowStep);
}

}  // namespace

CpuExecutor::Input CpuExecutor::prepare_input(Act x, bool quantized) {
  Input input;
  input.x = data(x);
  input.cols = cols_of(x);
  input.rows = rows_of(x);
  if (quantized) {
    input.q8 = kernels::q8_rows_at(at<std::byte>(layout_.input_q8), input.rows, input.cols);
    input.name = ++inputs_;
    quantize_rows(table_, pool_, input.x, input.rows, input.cols, input.q8);
  }
  return input;
}

/// Passes the input of products with these weights to the observer.
void CpuExecutor::show(std::span<const WeightRef> weights, const Input& input) const {
  if (options_.observer == nullptr || failed()) return;
  options_.observer->saw(weights, {input.x, input.rows, input.cols, input.index});
}

CpuExecutor::Job CpuExecutor::make_job(WeightRef ref, const std::byte* bytes, std::int64_t row_begin,
                                       std::int64_t row_end, const Target& target, const Input& input,
                                       Effect effect) const {
  Job job;
  job.effect = effect;
  job.gate = target.gate;
  for (const float** bias : {&job.gate.bias, &job.gate.up_bias})
    if (*bias != nullptr) *bias += row_begin;
  kernels::MatmulArgs& args = job.args;
  args.dtype = part(ref).dtype;
  args.weight = bytes;
  args.weight_rows = row_end - row_begin;
  args.cols = part(ref).cols;
  args.x = input.x;
  args.x_stride = input.cols;
  args.x_q8 = input.q8;
  args.x_name = input.name;
  args.x_rows = input.rows;
  args.x_index = input.index;
  args.y = target.y + row_begin;
  args.y_stride = target.y_stride;
  return job;
}

/// Jobs that run together are divided like a single one: each of many small experts becomes few tasks, so that a thread
/// reads long runs.
std::int64_t CpuExecutor::cut_jobs() {
  std::int64_t all = 0;
  for (const Job& job : jobs_) all += job.args.weight_rows;
  std::int64_t tasks = 0;
  for (Job& job : jobs_) {
    job.task_rows = rows_of_task(job.args, all, pool_.threads());
    job.first_task = tasks;
    tasks += (job.args.weight_rows + job.task_rows - 1) / job.task_rows;
  }
  return tasks;
}

/// Weight rows [begin, end) of the job.
void CpuExecutor::run_task(const Job& job, std::int64_t begin, std::int64_t end, int thread) const {
  kernels::MatmulArgs args = job.args;
  args.workspace = thread_memory(thread);
  args.weight_rows = end - begin;
  args.weight += begin * row_bytes(args.dtype, args.cols);
  args.y += begin;
  if (job.effect != Effect::gate) table_.matmul(args);
  Gate gate = job.gate;
  for (const float** bias : {&gate.bias, &gate.up_bias})
    if (*bias != nullptr) *bias += begin;
  if (job.effect == Effect::store || job.effect == Effect::activate) {
    end_rows(table_, gate, args);
    for (std::int64_t r = 0; job.effect == Effect::activate && r < args.x_rows; ++r)
      table_.gate_mul(gate.activation, gate.limit, args.y + r * args.y_stride, ones_.data(), args.weight_rows);
    return;
  }
  if (job.effect == Effect::gated) {
    args.dtype = job.up_dtype;
    args.weight = job.up + begin * row_bytes(job.up_dtype, args.cols);
  }
  gate_rows(table_, table_.matmul, gate, args, reinterpret_cast<float*>(thread_memory(thread) + layout_.thread_up));
}

void CpuExecutor::run_jobs() {
  const std::int64_t tasks = cut_jobs();
  const auto work = [&](std::size_t, std::int64_t first, std::int64_t last, int thread) {
    while (first < last) {
      const auto after = std::upper_bound(jobs_.begin(), jobs_.end(), first,
                                          [](std::int64_t t, const Job& job) { return t < job.first_task; });
      const Job& job = *(after - 1);
      const std::int64_t begin = (first - job.first_task) * job.task_rows;
      const std::int64_t end =
          std::min({begin + (last - first) * job.task_rows,
                    begin + CpuLayout::kTaskRows / job.task_rows * job.task_rows, job.args.weight_rows});
      run_task(job, begin, end, thread);
      first += (end - begin + job.task_rows - 1) / job.task_rows;
    }
  };
  pool_.parallel_runs(std::span(&tasks, 1), kTasksAtOnce, work);
  keep_last_lease();
}

/// Computes all targets from one input, piece by piece in the given order, in waves.
void CpuExecutor::run_products(std::span<const Target> targets, const Input& input, Effect effect) {
  std::size_t target = 0, next = 0;
  while (target < targets.size()) {
    if (!ready()) return;
    jobs_.clear();
    while (target < targets.size() && jobs_.size() < jobs_.capacity()) {
      const std::span<const Piece> pieces = pieces_.pieces(targets[target].weight);
      if (next == pieces.size()) {
        ++target;
        next = 0;
        continue;
      }
      const Piece& piece = pieces[next];
      const std::byte* bytes = jobs_.empty() ? lease_now(piece) : lease_if_ready(piece);
      if (bytes == nullptr) break;
      jobs_.push_back(
          make_job(targets[target].weight, bytes, piece.row_begin, piece.row_end, targets[target], input, effect));
      ++next;
    }
    if (failed()) return;
    run_jobs();
  }
}

void CpuExecutor::matmul(std::span<const Product> products, Act x) {
  if (!ready() || rows_of(x) == 0) return;
  bool quantized = false, biased = false;
  for (const Product& product : products) {
    quantized = quantized || kernels::uses_q8(part(product.weight).dtype);
    biased = biased || !product.bias.none();
  }
  const Input input = prepare_input(x, quantized);
  std::array<WeightRef, std::tuple_size_v<decltype(Step::products)>> weights;
  std::transform(products.begin(), products.end(), weights.begin(), [](const Product& p) { return p.weight; });
  show(std::span(weights).first(products.size()), input);
  constexpr std::size_t kTogether = 8;
  std::array<Target, kTogether> targets;
  // A bias follows its matrix in the file, and tiles are used in file order, so compute one product after another.
  const std::size_t step = biased ? 1 : kTogether;
  for (std::size_t first = 0; first < products.size(); first += step) {
    const std::size_t count = std::min(step, products.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const Product& product = products[first + i];
      targets[i] = {product.weight, data(product.out), cols_of(product.out), {}};
    }
    run_products(std::span(targets).first(count), input, Effect::store);
    adapt(std::span(targets).first(count), input, nullptr);
    if (biased) add_bias(products[first].out, products[first].bias);
  }
}

/// Adds the bias to each row; none(): adds nothing.
void CpuExecutor::add_bias(Act x, WeightRef bias) {
  if (failed() || bias.none()) return;
  const std::int64_t cols = cols_of(x);
  const float* from = vector_of(bias, cols, 0);
  if (from == nullptr) return;
  float* to = data(x);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) table_.add(to + r * cols, from, cols);
  });
}

void CpuExecutor::matmul_gated(Act out, WeightRef gate, WeightRef up, Act x, kernels::Activation activation,
                               float limit) {
  if (!ready() || rows_of(x) == 0) return;
  const bool quantized = kernels::uses_q8(part(gate).dtype) || kernels::uses_q8(part(up).dtype);
  const Input input = prepare_input(x, quantized);
  show(std::array{gate, up}, input);
  const Target target{gate, data(out), cols_of(out), {.activation = activation, .limit = limit}};
  if (adapts(gate) || adapts(up)) return adapt_gated(target, up, input, nullptr);
  gated(target, up, input);
}

void CpuExecutor::gated(const Target& gate, WeightRef up, const Input& input) {
  if (try_gated(gate, up, input)) return;
  Target first = gate, second = gate;
  first.gate = {};
  second.weight = up;
  run_products(std::span(&first, 1), input, Effect::store);
  run_products(std::span(&second, 1), input, Effect::gate);
}

/// Computes gate and up together, each range of rows on one thread, if all their pieces are in memory and fit into a
/// wave.
bool CpuExecutor::try_gated(const Target& gate, WeightRef up, const Input& input) {
  const std::span<const Piece> gates = pieces_.pieces(gate.weight), ups = pieces_.pieces(up);
  if (gates.size() + ups.size() > jobs_.capacity()) return false;
  if (lease_now(gates[0]) == nullptr) return true;  // failed: nothing is left to do
  jobs_.clear();
  std::size_t g = 0, u = 0;
  for (std::int64_t row = 0; g < gates.size() && u < ups.size();) {
    const std::byte* gate_bytes = lease_if_ready(gates[g]);
    const std::byte* up_bytes = gate_bytes == nullptr ? nullptr : lease_if_ready(ups[u]);
    if (up_bytes == nullptr) return failed();
    const std::int64_t end = std::min(gates[g].row_end, ups[u].row_end);
    gate_bytes += (row - gates[g].row_begin) * row_bytes(part(gate.weight).dtype, input.cols);
    Job job = make_job(gate.weight, gate_bytes, row, end, gate, input, Effect::gated);
    job.up_dtype = part(up).dtype;
    job.up = up_bytes + (row - ups[u].row_begin) * row_bytes(job.up_dtype, input.cols);
    jobs_.push_back(job);
    row = end;
    if (gates[g].row_end == end) ++g;
    if (ups[u].row_end == end) ++u;
  }
  run_jobs();
  return true;
}

}  // namespace millrace::exec
