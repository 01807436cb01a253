// What layers with a state compute on the CPU. A sequence's rows are worked one after the other, the sequences, heads
// and channels beside each other. Nothing of a sequence changes before the pass is believed: what a row leaves goes to
// the sequence's next state, and to the checkpoints that the rows go by (kv/sequence.h).
#include "exec/cpu_states.h"

#include <algorithm>
#include <cmath>

namespace millrace::exec {

/// Each sequence's rows, cut where there is a checkpoint to write. The last run of a sequence may have no rows.
std::vector<CpuExecutor::StateRun> CpuExecutor::state_runs(std::int64_t layer) {
  std::vector<StateRun> runs;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
    const kv::SequenceState* const sequence = batch_->sequences[static_cast<std::size_t>(row.sequence)];
    const bool is_first = r == 0 || batch_->rows[static_cast<std::size_t>(r - 1)].sequence != row.sequence;
    if (is_first) {
      runs.push_back({r, 0, sequence});
      if (row.position != sequence->length())
        fail(error(Code::internal, "row {} goes on at {} from a state behind {} tokens", r, row.position,
                   sequence->length()));
    }
    ++runs.back().rows;
    const std::int64_t block = row.position / kv::kBlockTokens;
    if ((row.position + 1) % kv::kBlockTokens != 0 || sequence->checkpoint(block, layer) == nullptr) continue;
    runs.back().to = block;
    runs.push_back({r + 1, 0, sequence, block});
  }
  return runs;
}

/// As vector_of(), but valid until the scratch is used again.
const float* CpuExecutor::kept_vector_of(WeightRef ref, std::int64_t cols, int scratch) {
  const float* const vector = vector_of(ref, cols, scratch);
  auto* const kept = at<float>(layout_.vectors[scratch]);
  if (vector == nullptr || vector == kept) return vector;
  return std::copy_n(vector, cols, kept) - cols;
}

void CpuExecutor::pick_heads(Act out, Act x, std::int64_t heads, std::int64_t head_dim, std::int64_t first) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x), part = cols / heads;
  const float* const from = data(x);
  float* const to = data(out);
  for_rows(rows_of(x), heads * head_dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t h = 0; h < heads; ++h)
        std::copy_n(from + r * cols + h * part + first, head_dim, to + (r * heads + h) * head_dim);
  });
}

void CpuExecutor::multiply(Act x, Act y) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  float* const to = data(x);
  const float* const by = data(y);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * cols; i < end * cols; ++i) to[i] *= by[i];
  });
}

void CpuExecutor::sigmoid_gate(Act x, Act gate) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  const std::int64_t gates_of_row = cols_of(gate), together = cols / gates_of_row;
  float* const to = data(x);
  const float* const gates = data(gate);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    if (together == 1) return table_.sigmoid_mul(to + begin * cols, gates + begin * cols, (end - begin) * cols);
    for (std::int64_t g = begin * gates_of_row; g < end * gates_of_row; ++g) {
      const float factor = kernels::sigmoid_f32(gates[g]);
      for (std::int64_t i = g * together; i < (g + 1) * together; ++i) to[i] *= factor;
    }
  });
}

void CpuExecutor::softplus_gate(Act x, Act gate) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x), gates_of_row = cols_of(gate), together = cols / gates_of_row;
  float* const to = data(x);
  const float* const gates = data(gate);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t g = begin * gates_of_row; g < end * gates_of_row; ++g) {
      const float factor = kernels::softplus_f32(gates[g]);
      for (std::int64_t i = g * together; i < (g + 1) * together; ++i) to[i] *= factor;
    }
  });
}

void CpuExecutor::l2_norm_heads(Act x, std::int64_t heads, std::int64_t head_dim, float eps) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  float* const to = data(x);
  for_rows(rows_of(x), heads * head_dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) table_.l2_norm(to + r * cols, heads, head_dim, eps);
  });
}

void CpuExecutor::convolve(Act out, Act x, WeightRef taps, std::int64_t layer, const Convolution& convolution) {
  if (!ready()) return;
  const std::vector<StateRun> runs = state_runs(layer);
  kernels::ConvolutionArgs args;
  args.channels = args.x_stride = cols_of(x);
  args.taps = convolution.taps;
  args.silu = convolution.silu;
  if (failed()) return;
  args.weight = kept_vector_of(taps, args.channels * args.taps, 0);
  if (args.weight == nullptr) return;
  if (convolution.dilation > 1) return convolve_dilated(out, x, runs, layer, convolution, args);
  if (!convolution.bias.none()) {
    args.bias = vector_of(convolution.bias, args.channels, 1);
    if (args.bias == nullptr) return;
  }
  const std::int64_t place = (args.taps - 1) * convolution.first;  // of the state
  const auto work = [&](std::int64_t first, std::int64_t last, int) {
    kernels::ConvolutionArgs own = args;
    own.first = first;
    own.last = last;
    for (const StateRun& run : runs) {
      own.x = data(x) + run.first_row * args.x_stride;
      own.rows = run.rows;
      if (out != x) {
        own.out_stride = cols_of(out);
        own.out = data(out) + run.first_row * own.out_stride + convolution.first;
      }
      const float* const before = run.before(layer);
      own.before = before == nullptr ? nullptr : before + place;
      own.after = run.after(layer) + place;
      table_.convolve(own);
    }
  };
  constexpr std::int64_t kChannels = 256;  // of a task
  pool_.parallel_for(args.channels, kChannels, work);
}

/// Rows that lie `dilation` apart are convolved with each other alone: as many sequences, whose rows and columns lie so
/// far apart.
void CpuExecutor::convolve_dilated(Act out, Act x, const std::vector<StateRun>& runs, std::int64_t layer,
                                   const Convolution& convolution, const kernels::ConvolutionArgs& args) {
  const std::int64_t apart = convolution.dilation, channels = args.channels;
  const auto work = [&](std::int64_t first, std::int64_t last, int) {
    kernels::ConvolutionArgs own = args;
    own.first = first;
    own.last = last;
    own.channels = apart * channels;
    own.x_stride = own.out_stride = apart * channels;
    for (const StateRun& run : runs) {
      const float* const before = run.before(layer);
      for (std::int64_t phase = 0; phase < apart; ++phase) {
        own.rows = (run.rows - phase + apart - 1) / apart;
        own.x = data(x) + (run.first_row + phase) * channels;
        own.out = out == x ? nullptr : data(out) + (run.first_row + phase) * channels;
        own.before = before == nullptr ? nullptr : before + phase * channels;
        // The phase of the row that comes behind the run is the first of the next one.
        own.after = run.after(layer) + (phase + own.rows * apart - run.rows) * channels;
        table_.convolve(own);
      }
    }
  };
  constexpr std::int64_t kChannels = 256;  // of a task
  pool_.parallel_for(channels, kChannels, work);
}

/// A bounded decay is no step's: it leaves that alone (Ops::decay()).
void CpuExecutor::time_step(Act decay, Act step, WeightRef a, WeightRef bias, float bound) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(step), together = cols / part(a).cols;  // neighbours that share a factor
  const float* const factors = kept_vector_of(a, cols / together, 0);
  if (factors == nullptr) return;
  const float* const added = vector_of(bias, cols, 1);
  if (added == nullptr) return;
  float *const steps = data(step), *const decays = data(decay);
  for_rows(rows_of(step), cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t c = 0, factor = 0; c < cols; ++factor)
        for (const std::int64_t end = c + together; c < end; ++c) {
          const float x = steps[r * cols + c] + added[c];
          if (bound != 0) {
            const float part = kernels::sigmoid_f32(std::abs(factors[factor]) * x);
            decays[r * cols + c] = kernels::exp_f32(bound * part);
            continue;
          }
          const float value = kernels::softplus_f32(x);
          steps[r * cols + c] = value;
          decays[r * cols + c] = kernels::exp_f32(factors[factor] * value);  // may lie where the step did
        }
  });
}

void CpuExecutor::scan(Act out, Act x, Act step, Act decay, std::int64_t layer, WeightRef skip, const Scan& scan) {
  if (!ready()) return;
  const std::vector<StateRun> runs = state_runs(layer);
  if (failed()) return;
  const float* const skips = vector_of(skip, scan.heads, 0);
  if (skips == nullptr) return;
  const kv::StateShape& shape = program_.layout.group_of(layer).state;
  const std::int64_t lanes = kernels::scan_lanes(scan.head_dim), parts = scan.head_dim / lanes;
  const auto work = [&](const StateRun& run, std::int64_t head, std::int64_t part) {
    kernels::ScanArgs args;
    args.x_stride = scan.channels();
    args.head_stride = scan.heads;
    args.out_stride = scan.inner();
    args.rows = run.rows;
    args.keys = scan.keys;
    args.lanes = lanes;
    args.skip = skips[head];
    const float* const rows = data(x) + run.first_row * args.x_stride;
    const std::int64_t value = head * scan.head_dim + part * lanes, group = head / (scan.heads / scan.groups);
    args.value = rows + value;
    args.b = rows + scan.inner() + group * scan.keys;
    args.c = args.b + scan.groups * scan.keys;
    args.step = data(step) + run.first_row * args.head_stride + head;
    args.decay = data(decay) + run.first_row * args.head_stride + head;
    args.out = data(out) + run.first_row * args.out_stride + value;
    const std::int64_t place = shape.convolution_floats() + head * shape.head_floats() + part * scan.keys * lanes;
    const float* const before = run.before(layer);
    args.before = before == nullptr ? nullptr : before + place;
    args.after = run.after(layer) + place;
    table_.scan(args);
  };
  pool_.parallel_for(scan.heads * parts, 1, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t task = first; task < last; ++task)
      for (const StateRun& run : runs) work(run, task / parts, task % parts);
  });
}

void CpuExecutor::selective_scan(const Step& step) {
  if (!ready()) return;
  const std::vector<StateRun> runs = state_runs(step.layer);
  if (failed()) return;
  const Scan& scan = step.scan;
  const std::int64_t inner = scan.inner(), lanes = kernels::scan_lanes(inner);
  const float* const skip = kept_vector_of(step.weight, inner, 0);
  if (skip == nullptr) return;
  const float* const a = vector_of(step.weight2, inner * scan.keys, 1);
  if (a == nullptr) return;
  const kv::StateShape& shape = program_.layout.group_of(step.layer).state;
  const auto work = [&](const StateRun& run, std::int64_t first) {
    kernels::SelectiveScanArgs args;
    args.stride = inner;
    args.key_stride = 2 * scan.keys;
    args.rows = run.rows;
    args.keys = scan.keys;
    args.lanes = lanes;
    args.value = data(step.a) + run.first_row * inner + first;
    args.step = data(step.b) + run.first_row * inner + first;
    args.b = data(step.c) + run.first_row * args.key_stride;
    args.c = args.b + scan.keys;
    args.a = a + first * scan.keys;
    args.skip = skip + first;
    args.out = data(step.out) + run.first_row * inner + first;
    const std::int64_t place = shape.convolution_floats() + first * scan.keys;
    const float* const before = run.before(step.layer);
    args.before = before == nullptr ? nullptr : before + place;
    args.after = run.after(step.layer) + place;
    table_.selective_scan(args);
  };
  pool_.parallel_for(inner / lanes, 4, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t part = begin; part < end; ++part)
      for (const StateRun& run : runs) work(run, part * lanes);
  });
}

void CpuExecutor::delta_rule(Act out, Act qkv, Act beta, Act decay, std::int64_t layer, const DeltaRule& rule) {
  if (!ready()) return;
  const std::vector<StateRun> runs = state_runs(layer);
  if (failed()) return;
  float* const betas = data(beta);
  for_rows(rows_, rule.value_heads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * rule.value_heads; i < end * rule.value_heads; ++i)
      betas[i] = kernels::sigmoid_f32(betas[i]);
  });
  const kv::StateShape& shape = program_.layout.group_of(layer).state;
  const std::int64_t parts = rule.value_dim / kernels::kStateLanes, tasks = rule.value_heads * parts;
  const std::int64_t queries = rule.key_heads * rule.key_dim;
  const auto work = [&](const StateRun& run, std::int64_t head, std::int64_t part) {
    kernels::DeltaRuleArgs args;
    args.qkv_stride = rule.channels();
    args.gate_stride = rule.value_heads;
    args.decay_stride = cols_of(decay);
    args.channel_decays = rule.has_channel_decays(args.decay_stride);
    args.out_stride = rule.value_heads * rule.value_dim;
    args.rows = run.rows;
    args.keys = rule.key_dim;
    args.scale = rule.scale;
    const float* const rows = data(qkv) + run.first_row * args.qkv_stride;
    const std::int64_t value = head * rule.value_dim + part * kernels::kStateLanes;
    args.query = rows + rule.key_head_of(head) * rule.key_dim;
    args.key = args.query + queries;
    args.value = rows + 2 * queries + value;
    args.beta = betas + run.first_row * args.gate_stride + head;
    args.decay = data(decay) + run.first_row * args.decay_stride + head * (args.decay_stride / rule.value_heads);
    args.out = data(out) + run.first_row * args.out_stride + value;
    const std::int64_t place =
        shape.convolution_floats() + head * shape.head_floats() + part * rule.key_dim * kernels::kStateLanes;
    const float* const before = run.before(layer);
    args.before = before == nullptr ? nullptr : before + place;
    args.after = run.after(layer) + place;
    table_.delta_rule(args);
  };
  // A sequence's runs follow each other, so a task takes one head's lanes through all of them.
  pool_.parallel_for(tasks, 1, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t task = first; task < last; ++task)
      for (const StateRun& run : runs) work(run, task / parts, task % parts);
  });
}

}  // namespace millrace::exec
