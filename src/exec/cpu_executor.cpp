// The CPU executor's pass and simple ops; products, attention and mixtures are in other files.
#include "exec/cpu_executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/bytes.h"
#include "exec/routing.h"
#include "tensor/codec.h"

namespace millrace::exec {
namespace {

constexpr std::size_t kWavePieces = 64;
constexpr std::int64_t kFewFloatsOfRows = 32 * 1024;  // up to this many, the calling thread works alone
constexpr std::uint64_t kHugePagesFrom = 8u << 20;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace

CpuExecutor::CpuExecutor(residency::WeightStore& store, ThreadPool& pool, residency::Budget& budget,
                         const CpuOptions& options)
    : store_(store),
      pool_(pool),
      budget_(budget),
      options_(options),
      table_(kernels::table(options.isa)),
      pieces_(store.units()) {
  leases_.reserve(kWavePieces);
  jobs_.reserve(kWavePieces);
}

std::unique_ptr<Executor> make_cpu_executor(residency::WeightStore& store, ThreadPool& pool, residency::Budget& budget,
                                            const CpuOptions& options) {
  return std::make_unique<CpuExecutor>(store, pool, budget, options);
}

std::string CpuExecutor::describe() const {
  return fmt::format("cpu {}, {} thread{}", device::isa_name(options_.isa), pool_.threads(),
                     pool_.threads() == 1 ? "" : "s");
}

Status CpuExecutor::prepare(const Program& program, const PassLimits& limits) {
  if (program.is_shard()) return error(Code::internal, "the program is one GPU's of several, not the CPU's");
  const PassShape shape = pass_shape(program, store_.units(), limits);
  memory_ = {};  // before the reservation ends, so that all bytes are counted at any time
  reservation_ = {};
  const CpuLayout layout = make_cpu_layout(shape, pool_.threads(), options_.isa);
  const std::uint64_t bytes = cpu_activation_bytes(shape, pool_.threads(), options_);
  MR_ASSIGN_OR_RETURN(reservation_, budget_.reserve("activations", bytes));
  const auto pages = bytes >= kHugePagesFrom ? device::Pages::huge : device::Pages::normal;
  MR_ASSIGN_OR_RETURN(memory_, device::HostBuffer::reserve(bytes, pages));
  program_ = program;
  shape_ = shape;
  layout_ = layout;
  std::int64_t ones = std::max(shape.head_dim, CpuLayout::kTaskRows);
  for (const Step& step : program.steps)
    if (step.kind == Step::Kind::rms_norm_heads && step.weight.none()) ones = std::max(ones, step.head_dim);
  ones = std::max(ones, shape.index_heads);  // heads of an indexer that have no weights
  ones_.assign(static_cast<std::size_t>(ones), 1.0f);
  waiting_.reserve(static_cast<std::size_t>(shape.experts));
  leased_.reserve(static_cast<std::size_t>(shape.experts));
  prepare_guesses();
  return {};
}

// --- The pass ---

Status CpuExecutor::run(const kv::Batch& batch, const std::function<bool()>& cancelled) {
  cancelled_ = cancelled ? &cancelled : nullptr;
  begin_pass(batch);
  for (const Step& step : program_.steps) {
    if (failed()) break;
    if (!batch.wants_hidden && step.for_hidden) continue;
    const TraceZone zone(options_.trace, name(step.kind).data());
    do_step(step);
    if (step.kind == Step::Kind::embed && !failed()) guess_by_embedding(step.out);
    if (!ahead_.empty()) read_ahead();
  }
  end_pass();
  return status_;
}

void CpuExecutor::do_step(const Step& step) {
  using Kind = Step::Kind;
  switch (step.kind) {
    case Kind::embed:
      return embed(step);
    case Kind::rms_norm:
      return rms_norm(step.out, step.a, step.weight, step.eps);
    case Kind::layer_norm:
      return layer_norm(step.out, step.a, step.weight, step.weight2, step.eps);
    case Kind::rms_norm_heads:
      return rms_norm_heads(step.out, step.weight, step.head_dim, step.eps);
    case Kind::add:
      return add(step.out, step.b, step.factor);
    case Kind::scale:
      return scale(step.out, step.weight, step.factor, step.weight2);
    case Kind::copy:
      return copy(step.out, step.a);
    case Kind::matmul:
      return matmul(step.all_products(), step.a);
    case Kind::matmul_heads:
      return matmul_heads(step.out, step.weight, step.a, step.heads, step.head_weights);
    case Kind::gated:
      return matmul_gated(step.out, step.weight, step.weight2, step.a, step.activation, step.limit);
    case Kind::gate:
      return gate(step.out, step.b, step.layer, step.activation, step.limit);
    case Kind::temper:
      return temper(step.out, step.temperature);
    case Kind::rope:
      return rope(step.out, step.heads, step.head_dim, step.rope, step.back);
    case Kind::store_kv:
      return store_kv(step.layer, step.a, step.b);
    case Kind::store_latent:
      return store_latent(step.layer, step.a, step.b);
    case Kind::store_index:
      return store_index(step.layer, step.a);
    case Kind::select:
      return select(step.out, step.a, step.b, step.layer, step.indexer);
    case Kind::attention:
      return attention(step.out, step.a, step.layer, step.attention, step.b);
    case Kind::moe:
      return moe(step.out, step.a, step.b, step.weight, step.layer, step.experts);
    case Kind::pick_heads:
      return pick_heads(step.out, step.a, step.heads, step.head_dim, step.first);
    case Kind::multiply:
      return multiply(step.out, step.b);
    case Kind::sigmoid_gate:
      return sigmoid_gate(step.out, step.b);
    case Kind::softplus_gate:
      return softplus_gate(step.out, step.b);
    case Kind::l2_norm_heads:
      return l2_norm_heads(step.out, step.heads, step.head_dim, step.eps);
    case Kind::decay:
      return time_step(step.out, step.a, step.weight, step.weight2, step.least);
    case Kind::convolve:
      return convolve(step.out, step.a, step.weight, step.layer, step.convolution);
    case Kind::time_step:
      return time_step(step.out, step.a, step.weight, step.weight2, 0);
    case Kind::scan:
      if (step.scan.selective) return selective_scan(step);
      return scan(step.out, step.a, step.b, step.c, step.layer, step.weight, step.scan);
    case Kind::activate:
      return activate(step.out, step.activation, step.xielu);
    case Kind::delta_rule:
      return delta_rule(step.out, step.a, step.b, step.c, step.layer, step.delta_rule);
    case Kind::select_rows:
      return select_logit_rows(step.out, step.a);
    case Kind::logits:
      return logits(step.weight, step.weight2, step.a, step.factor, step.cap);
    case Kind::hidden:
      handed_.resize(std::max(handed_.size(), static_cast<std::size_t>(step.first + 1)));
      handed_[static_cast<std::size_t>(step.first)] = step.a;
      return;
    case Kind::given:
      return take_given(step.out);
    case Kind::join:
      return join(step.out, step.a, step.b);
    case Kind::add_picture:
      return add_picture(step.out, step.first);
    case Kind::merge_rows:
      return merge_rows(step.out, step.a, step.by_channel);
    case Kind::mean_rows:
      return mean_rows(step.out, step.a);
    case Kind::clamp:
      return clamp(step.out, step.least, step.most);
    case Kind::standardize:
      return standardize(step.out, step.weight, step.weight2);
    case Kind::largest:
      return largest(step.out, step.a);
    case Kind::cap:
      return cap(step.out, step.cap);
    case Kind::statistical_top_k:
      return statistical_top_k(step.out, step.factor);
    case Kind::match_rms:
      return match_rms(step.out, step.b, step.least);
    case Kind::add_streams:
      return add_streams(step);
    case Kind::weigh_streams:
      return weigh_streams(step);
    case Kind::compress:
      return compress(step);
    case Kind::embed_ngrams:
      return embed_ngrams(step);
    case Kind::gate_streams:
      return gate_streams(step);
    case Kind::gather:  // prepare() has refused it
      return fail(error(Code::internal, "the CPU executor has no other device to gather from"));
  }
}

void CpuExecutor::begin_pass(const kv::Batch& batch) {
  batch_ = &batch;
  status_ = {};
  rope_made_.assign(program_.ropes.size(), false);
  rows_ = static_cast<std::int64_t>(batch.rows.size());
  logit_rows_ = 0;
  logits_vocab_ = 0;
  reading_ngrams_ = false;
  handed_.clear();
  pass_begin_ns_ = now_ns();
  if (!options_.aside) store_.begin_pass();
  if (memory_.data() == nullptr || rows_ > shape_.max_rows) {
    fail(error(Code::internal, "a pass of {} rows where {} were prepared", rows_, shape_.max_rows));
    return;
  }
  for (const kv::SequenceState* const sequence : batch.sequences) {
    for (const kv::Group& group : sequence->layout().groups()) {
      if (group.device == kv::kOnHost) continue;
      fail(error(Code::internal, "a sequence of the pass is on device {}", group.device));
      return;
    }
  }
  if ((!batch.pictures.empty() && std::ssize(batch.pictures) != rows_) || rows_ % program_.merge != 0) {
    fail(error(Code::internal, "a pass of {} rows has pictures in {}, and merges {} rows", rows_, batch.pictures.size(),
               program_.merge));
    return;
  }
  if (Status mixes = begin_mixes(batch); !mixes.ok()) return fail(std::move(mixes));
  begin_guesses();
  if (options_.record != nullptr) options_.record->begin_pass(batch.rows);
  auto* positions = at<std::int32_t>(layout_.positions);
  // Rows whose angles are of the next position read what that one sees, and store nothing: of a window, keys that the
  // row's own position would see may be gone.
  std::int64_t ahead = 0;
  for (const Rope& rope : program_.ropes) ahead = std::max(ahead, rope.offset);
  for (std::int64_t r = 0; r < rows_; ++r) {
    const kv::BatchRow& row = batch.rows[static_cast<std::size_t>(r)];
    positions[r] = row.position;
    logit_rows_ += row.wants_logits ? 1 : 0;
    const bool known = row.sequence >= 0 && static_cast<std::size_t>(row.sequence) < batch.sequences.size();
    if (!known || row.position < 0 || row.position >= shape_.max_positions ||
        !batch.sequences[static_cast<std::size_t>(row.sequence)]->holds(row.position + ahead)) {
      fail(error(Code::internal, "row {} of the pass has no room at position {}", r, row.position));
      return;
    }
  }
  if (logit_rows_ > shape_.max_logit_rows) {
    fail(error(Code::internal, "{} rows want logits where {} were prepared", logit_rows_, shape_.max_logit_rows));
  }
  begin_ngrams();
}

void CpuExecutor::end_pass() {
  end_ngrams();
  drop_leases();
  leased_.clear();
  if (!options_.aside) store_.end_pass();
  if (options_.record != nullptr && !failed()) status_ = options_.record->end_pass();
  cancelled_ = nullptr;
  batch_ = nullptr;
  ++counters_.passes;
  counters_.rows += static_cast<std::uint64_t>(rows_);
  const std::uint64_t pass_ns = now_ns() - pass_begin_ns_;
  counters_.pass_ns += pass_ns;
  end_guesses(pass_ns);
}

bool CpuExecutor::ready() {
  if (failed()) return false;
  if (cancelled_ != nullptr && (*cancelled_)()) fail(error(Code::cancelled, "cancelled"));
  return !failed();
}

void CpuExecutor::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

std::int64_t CpuExecutor::rows_of(Act act) const {
  switch (program_.buffer(act).rows) {
    case Rows::logits:
      return logit_rows_;
    case Rows::merged:
      return rows_ / program_.merge;
    default:
      return rows_;
  }
}

void CpuExecutor::for_rows(std::int64_t rows, std::int64_t floats_a_row,
                           FunctionRef<void(std::int64_t begin, std::int64_t end)> work) {
  if (rows * floats_a_row <= kFewFloatsOfRows) {
    work(0, rows);
    return;
  }
  pool_.parallel_for(rows, std::max<std::int64_t>(1, kFewFloatsOfRows / 4 / floats_a_row),
                     [&](std::int64_t begin, std::int64_t end, int) { work(begin, end); });
}

/// A norm's weight or a bias as float32, valid until the next lease; nullptr if the pass has failed.
const float* CpuExecutor::vector_of(WeightRef ref, std::int64_t cols, int scratch) {
  const residency::Part& vector = part(ref);
  if (vector.rows != 1 || vector.cols != cols) {
    fail(error(Code::internal, "{} is [{}, {}] where a vector of {} is needed", vector.name, vector.rows, vector.cols,
               cols));
    return nullptr;
  }
  const std::byte* bytes = lease_now(pieces_.pieces(ref)[0]);
  if (bytes == nullptr) return nullptr;
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes) % alignof(float) == 0;
  if (vector.dtype == DType::f32 && aligned) return reinterpret_cast<const float*>(bytes);
  auto* decoded = at<float>(layout_.vectors[scratch]);
  decode_row(vector.dtype, bytes, cols, decoded);
  return decoded;
}

// --- Plain ops ---

/// The row of a table that a token reads. For a picture's row, if one is needed, this is token 0's.
static std::int64_t row_of(const kv::BatchRow& row, RowOf of) {
  return of == RowOf::token ? std::max(row.token, 0) : of == RowOf::position ? row.position : row.type;
}

/// Checks that the table has all rows that the pass reads.
Status CpuExecutor::check_tokens(const residency::Part& table, const Step& step) const {
  for (std::size_t r = 0; r < batch_->rows.size(); ++r) {
    const kv::BatchRow& row = batch_->rows[r];
    const bool of_picture = !batch_->pictures.empty() && batch_->pictures[r].embedding != nullptr;
    if (step.row_of == RowOf::type && (row.type < 0 || row.type >= table.rows))
      return error(Code::invalid_argument, "the model has {} types of tokens, none of {}", table.rows, row.type);
    if (step.row_of == RowOf::position && row.position >= table.rows)
      return error(Code::invalid_argument, "the model has embeddings of {} positions, none of {}", table.rows,
                   row.position);
    if (step.row_of == RowOf::token && (row.token >= table.rows || (row.token < 0 && !of_picture)))
      return error(Code::invalid_argument, "token {} is not in the vocabulary of {}", row.token, table.rows);
  }
  return {};
}

void CpuExecutor::embed(const Step& step) {
  if (!ready()) return;
  const Act out = step.out;
  const residency::Part& weight = part(step.weight);
  if (weight.cols != cols_of(out)) {
    fail(error(Code::internal, "{} has rows of {} where {} are needed", weight.name, weight.cols, cols_of(out)));
    return;
  }
  if (Status known = check_tokens(weight, step); !known.ok()) return fail(std::move(known));
  if (options_.embedding_rows_from_disk) {
    embed_from_file(data(out), step.weight, weight, step.row_of);
  } else {
    embed_from_memory(data(out), step.weight, weight, step.row_of);
  }
  if (!failed() && step.row_of == RowOf::token && !mixed_.empty() && weight.name == "token_embd.weight")
    adapt_embedding(data(out), cols_of(out));
  if (failed()) return;
  scale(data(out), rows_, cols_of(out), step.factor);
  if (step.by_picture) embed_pictures(out);
}

void CpuExecutor::embed_pictures(Act out) {
  const std::int64_t cols = cols_of(out);
  for (std::size_t r = 0; r < batch_->pictures.size(); ++r)
    if (const float* const own = batch_->pictures[r].embedding; own != nullptr)
      std::copy_n(own, cols, data(out) + static_cast<std::int64_t>(r) * cols);
}

void CpuExecutor::add_picture(Act x, std::int64_t first) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  for (std::size_t r = 0; r < batch_->pictures.size(); ++r)
    if (const float* const own = batch_->pictures[r].embedding; own != nullptr)
      table_.add(data(x) + static_cast<std::int64_t>(r) * cols, own + first, cols);
}

void CpuExecutor::merge_rows(Act out, Act x, bool by_channel) {
  if (!ready()) return;
  if (!by_channel) return void(std::copy_n(data(x), rows_of(out) * cols_of(out), data(out)));
  const std::int64_t cols = cols_of(x), merge = program_.merge;
  for_rows(rows_of(out), merge * cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < merge; ++i) {
        const float* const from = data(x) + (r * merge + i) * cols;
        float* const to = data(out) + r * merge * cols + i;
        for (std::int64_t c = 0; c < cols; ++c) to[c * merge] = from[c];
      }
  });
}

void CpuExecutor::mean_rows(Act out, Act x) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x), merge = program_.merge;
  const float each = 1.0f / static_cast<float>(merge);
  for_rows(rows_of(out), merge * cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* const sum = data(out) + r * cols;
      std::copy_n(data(x) + r * merge * cols, cols, sum);
      for (std::int64_t i = 1; i < merge; ++i) table_.add(sum, data(x) + (r * merge + i) * cols, cols);
      for (std::int64_t c = 0; c < cols; ++c) sum[c] *= each;
    }
  });
}

void CpuExecutor::clamp(Act x, float least, float most) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    for (float* at = data(x) + begin * cols; at != data(x) + end * cols; ++at)
      *at = std::min(std::max(*at, least), most);
  });
}

void CpuExecutor::standardize(Act x, WeightRef bias, WeightRef scale) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  float* const less = at<float>(layout_.vectors[0]);  // a copy, because leasing the scale ends the bias's lease
  if (bias.none()) {
    std::fill_n(less, cols, 0.0f);
  } else {
    const float* const shift = vector_of(bias, cols, 0);
    if (shift == nullptr) return;
    if (shift != less) std::copy_n(shift, cols, less);
  }
  const float* const times = vector_of(scale, cols, 1);
  if (times == nullptr) return;
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        float& value = data(x)[r * cols + c];
        value = (value - less[c]) * times[c];
      }
  });
}

void CpuExecutor::largest(Act out, Act x) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      data(out)[r] = *std::max_element(data(x) + r * cols, data(x) + (r + 1) * cols);
  });
}

void CpuExecutor::scale(float* x, std::int64_t rows, std::int64_t cols, float factor) {
  if (factor == 1) return;
  for_rows(rows, cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * cols; i < end * cols; ++i) x[i] *= factor;
  });
}

void CpuExecutor::embed_from_file(float* out, WeightRef table, const residency::Part& weight, RowOf of) {
  const std::int64_t bytes = row_bytes(weight.dtype, weight.cols);
  const std::int64_t together = static_cast<std::int64_t>(layout_.input_q8_bytes) / bytes;
  auto* raw = at<std::byte>(layout_.input_q8);
  auto* ids = at<std::int64_t>(layout_.row_ids);
  for (std::int64_t first = 0; first < rows_; first += together) {
    const std::int64_t count = std::min(together, rows_ - first);
    for (std::int64_t i = 0; i < count; ++i) ids[i] = row_of(batch_->rows[static_cast<std::size_t>(first + i)], of);
    Status status = store_.read_rows(table, std::span(ids, static_cast<std::size_t>(count)), raw);
    if (!status.ok()) return fail(std::move(status));
    for_rows(count, weight.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        decode_row(weight.dtype, raw + i * bytes, weight.cols, out + (first + i) * weight.cols);
      }
    });
  }
}

void CpuExecutor::embed_from_memory(float* out, WeightRef table, const residency::Part& weight, RowOf of) {
  const std::int64_t bytes = row_bytes(weight.dtype, weight.cols);
  for (const Piece& piece : pieces_.pieces(table)) {
    const auto inside = [&](const kv::BatchRow& row) {
      return row_of(row, of) >= piece.row_begin && row_of(row, of) < piece.row_end;
    };
    if (std::none_of(batch_->rows.begin(), batch_->rows.end(), inside)) continue;
    const std::byte* base = lease_now(piece);
    if (base == nullptr) return;
    for_rows(rows_, weight.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
        if (!inside(row)) continue;
        const std::int64_t own = row_of(row, of) - piece.row_begin;
        decode_row(weight.dtype, base + own * bytes, weight.cols, out + r * weight.cols);
      }
    });
  }
}

void CpuExecutor::rms_norm(Act out, Act x, WeightRef weight, float eps) {
  if (!ready() || rows_of(x) == 0) return;
  const std::int64_t cols = cols_of(x);
  const float* scale = vector_of(weight, cols, 0);
  if (scale == nullptr) return;
  const float* from = data(x);
  float* to = data(out);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    table_.rms_norm(from + begin * cols, scale, end - begin, cols, eps, to + begin * cols);
  });
}

void CpuExecutor::rms_norm_heads(Act x, WeightRef weight, std::int64_t head_dim, float eps) {
  if (!ready() || rows_of(x) == 0) return;
  const std::int64_t cols = cols_of(x);
  const bool each_its_own = !weight.none() && part(weight).cols == cols;  // or there is one head
  const float* scale = weight.none() ? ones_.data() : vector_of(weight, each_its_own ? cols : head_dim, 0);
  if (scale == nullptr) return;
  float* heads = data(x);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    float* first = heads + begin * cols;
    if (!each_its_own) return table_.rms_norm(first, scale, (end - begin) * (cols / head_dim), head_dim, eps, first);
    for (std::int64_t at = 0; at < (end - begin) * cols; at += head_dim)
      table_.rms_norm(first + at, scale + at % cols, 1, head_dim, eps, first + at);
  });
}

void CpuExecutor::layer_norm(Act out, Act x, WeightRef weight, WeightRef bias, float eps) {
  if (!ready() || rows_of(x) == 0) return;
  const std::int64_t cols = cols_of(x);
  const float* const scale = vector_of(weight, cols, 0);
  if (scale == nullptr) return;
  float* const kept = at<float>(layout_.vectors[0]);  // a copy, because leasing the bias ends the weight's lease
  if (scale != kept) std::copy_n(scale, cols, kept);
  const float* const shift = bias.none() ? nullptr : vector_of(bias, cols, 1);
  if (failed()) return;
  const float* const from = data(x);
  float* const to = data(out);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    table_.layer_norm(from + begin * cols, kept, shift, end - begin, cols, eps, to + begin * cols);
  });
}

void CpuExecutor::add(Act x, Act y, float factor) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  float* to = data(x);
  const float* from = data(y);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * cols, count = (end - begin) * cols;
    if (factor == 1)
      table_.add(to + first, from + first, count);
    else
      table_.add_scaled(to + first, from + first, factor, count);
  });
}

void CpuExecutor::scale(Act x, WeightRef scalar, float factor, WeightRef bias) {
  if (!ready()) return;
  if (!scalar.none()) {
    const float* value = vector_of(scalar, 1, 0);
    if (value == nullptr) return;
    factor *= *value;
  }
  scale(data(x), rows_of(x), cols_of(x), factor);
  add_bias(x, bias);
}

void CpuExecutor::gate(Act x, Act all, std::int64_t layer, kernels::Activation activation, float limit) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x), stride = cols_of(all);
  float* to = data(x);
  const float* from = data(all) + layer * cols;
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      table_.gate_mul(activation, limit, to + r * cols, from + r * stride, cols);
  });
}

void CpuExecutor::activate(Act x, kernels::Activation activation, const std::optional<kernels::Xielu>& xielu) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x), most = std::ssize(ones_);
  float* const to = data(x);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    if (xielu) return table_.xielu(*xielu, to + begin * cols, (end - begin) * cols);
    for (std::int64_t i = begin * cols; i < end * cols; i += most)
      table_.gate_mul(activation, 0, to + i, ones_.data(), std::min(most, end * cols - i));
  });
}

void CpuExecutor::take_given(Act out) {
  if (!ready()) return;
  if (batch_->given == nullptr) return fail(error(Code::internal, "a pass was not handed what its program takes"));
  std::copy_n(batch_->given, rows_of(out) * cols_of(out), data(out));
}

void CpuExecutor::join(Act out, Act x, Act y) {
  if (!ready()) return;
  const std::int64_t first = cols_of(x), second = cols_of(y);
  float* to = data(out);
  for (std::int64_t r = 0; r < rows_of(out); ++r) {
    to = std::copy_n(data(x) + r * first, first, to);
    to = std::copy_n(data(y) + r * second, second, to);
  }
}

void CpuExecutor::copy(Act out, Act x) {
  if (!ready()) return;
  std::copy_n(data(x), rows_of(x) * cols_of(x), data(out));
}

void CpuExecutor::select_logit_rows(Act out, Act x) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  float* to = data(out);
  for (std::int64_t r = 0; r < rows_; ++r) {
    if (!batch_->rows[static_cast<std::size_t>(r)].wants_logits) continue;
    std::memcpy(to, data(x) + r * cols, static_cast<std::size_t>(cols) * sizeof(float));
    to += cols;
  }
}

void CpuExecutor::logits(WeightRef head, WeightRef bias, Act x, float factor, float cap) {
  if (!ready() || logit_rows_ == 0) return;
  const std::int64_t vocab = part(head).rows;
  if (vocab > shape_.vocab) {
    fail(
        error(Code::internal, "{} has {} rows where logits of {} were prepared", part(head).name, vocab, shape_.vocab));
    return;
  }
  const Target target{head, at<float>(layout_.logits), vocab, {}};
  const Input input = prepare_input(x, kernels::uses_q8(part(head).dtype));
  show(std::span(&head, 1), input);
  run_products(std::span(&target, 1), input, Effect::store);
  if (!mixed_.empty()) adapt(std::span(&target, 1), input, at<std::int32_t>(layout_.logit_sources));
  if (failed()) return;
  if (!bias.none()) {
    const float* numbers = vector_of(bias, vocab, 0);
    if (numbers == nullptr) return;
    for_rows(logit_rows_, vocab, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * vocab; i < end * vocab; ++i) target.y[i] += numbers[i % vocab];
    });
  }
  scale(target.y, logit_rows_, vocab, factor);
  if (cap != 0) {
    for_rows(logit_rows_, vocab, [&](std::int64_t begin, std::int64_t end) {
      table_.softcap(target.y + begin * vocab, cap, (end - begin) * vocab);
    });
  }
  logits_vocab_ = vocab;
}

Logits CpuExecutor::last_logits() const {
  if (failed() || logits_vocab_ == 0) return {};
  return {at<float>(layout_.logits), logit_rows_, logits_vocab_};
}

Status CpuExecutor::read_handed(std::int64_t number, std::int64_t first, std::int64_t rows, float* out) const {
  const Act from = number >= 0 && number < std::ssize(handed_) ? handed_[static_cast<std::size_t>(number)] : Act();
  if (failed() || from.buffer < 0 || first < 0 || rows < 0 || first + rows > rows_of(from))
    return error(Code::internal, "rows {} to {} of a pass of {} have no states", first, first + rows, rows_);
  const std::int64_t cols = cols_of(from);
  std::memcpy(out, data(from) + first * cols, static_cast<std::size_t>(rows * cols) * sizeof(float));
  return {};
}

}  // namespace millrace::exec
