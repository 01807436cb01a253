// The pass of the CUDA executor: recording, upload, graph, read-back.
#include "exec/cuda_ops.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "exec/cuda_ops_impl.h"

namespace millrace::exec {
namespace {

namespace cuda = kernels::cuda;

constexpr std::int64_t kPositionStep = 512;  // graphs are captured for a bound on positions that grows by this
constexpr std::size_t kMostGraphs = 64;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace

std::uint64_t cuda_activation_bytes(const PassShape& shape) { return make_cuda_layout(shape).bytes; }

Expected<std::unique_ptr<Ops>> make_cuda_ops(const residency::UnitTable& units, residency::DeviceWeights& weights,
                                             residency::Budget& vram, const CudaOptions& options) {
  MR_ASSIGN_OR_RETURN(device::Stream stream, device::Stream::create());
  cudaDeviceProp properties{};
  MR_CUDA(cudaGetDeviceProperties(&properties, options.device));
  return std::unique_ptr<Ops>(
      std::make_unique<CudaOps>(units, weights, vram, options, std::move(stream), properties.name));
}

CudaOps::CudaOps(const residency::UnitTable& units, residency::DeviceWeights& weights, residency::Budget& vram,
                 const CudaOptions& options, device::Stream stream, std::string name)
    : units_(units),
      weights_(weights),
      vram_(vram),
      options_(options),
      stream_(std::move(stream)),
      name_(std::move(name)),
      prompt_products_(options.prompt_products && cuda::has_prompt_products()),
      // Who computes a row, and how, decides its bits.
      numerics_(fmt::format("cuda 3{}{}{}", prompt_products_ ? ", prompts bf16" : "", weights.splits() ? ", " : "",
                            weights.split_name())) {}

CudaOps::~CudaOps() {
  (void)stream_.synchronise();  // nothing may still use the memory
}

std::string CudaOps::describe() const { return fmt::format("cuda:{} {}", options_.device, name_); }

Status CudaOps::prepare(const PassShape& shape) {
  shape_ = shape;
  layout_ = make_cuda_layout(shape);
  MR_ASSIGN_OR_RETURN(reservation_, vram_.reserve("activations", layout_.bytes));
  MR_ASSIGN_OR_RETURN(memory_, device::DeviceBuffer::allocate(layout_.bytes));
  MR_RETURN_IF_ERROR(device::clear_device(memory_));
  const PassRows rows = make_pass_rows(shape, shape.max_rows, shape.max_logit_rows, shape.max_sequences, true);
  MR_ASSIGN_OR_RETURN(rows_host_, device::PinnedBuffer::allocate(rows.bytes));
  results_bytes_ = static_cast<std::uint64_t>(shape.max_logit_rows) *
                   std::max<std::uint64_t>(sizeof(cuda::Candidates), static_cast<std::uint64_t>(shape.vocab) * 4);
  MR_ASSIGN_OR_RETURN(results_host_, device::PinnedBuffer::allocate(results_bytes_));
  return prepare_share();
}

Status CudaOps::prepare_share() {
  if (!weights_.splits() || options_.pool == nullptr) return {};
  std::int64_t most_rows = 0, widest_hidden = 0;
  for (std::size_t u = 0; u < units_.units().size(); ++u) {
    const auto& parts = units_.units()[u].parts;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const WeightRef ref{static_cast<std::int32_t>(u), static_cast<std::int32_t>(p)};
      most_rows = std::max(most_rows, parts[p].rows - weights_.device_rows(ref));
      if (weights_.device_rows(ref) == 0) widest_hidden = std::max(widest_hidden, parts[p].rows);
    }
  }
  const auto products = static_cast<std::int64_t>(Step().products.size());
  const HostShare::Sizes sizes{std::min(kSplitRows, shape_.max_rows), shape_.widest_input, products * most_rows,
                               widest_hidden};
  MR_ASSIGN_OR_RETURN(share_,
                      HostShare::create(sizes, *options_.pool, *options_.kernels, *options_.ram, options_.trace));
  return {};
}

// --- The rows of a pass ---

void CudaOps::begin_pass(const kv::Batch& batch, std::function<bool()> cancelled) {
  pass_begin_ns_ = now_ns();
  batch_ = &batch;
  cancelled_ = std::move(cancelled);
  status_ = {};
  step_count_ = 0;
  hidden_ = {};
  rows_ = static_cast<std::int64_t>(batch.rows.size());
  logit_rows_ =
      std::count_if(batch.rows.begin(), batch.rows.end(), [](const kv::BatchRow& r) { return r.wants_logits; });
  brought_top_only_ = top_only_;
  const auto sequences = static_cast<std::int64_t>(batch.sequences.size());
  if (rows_ > shape_.max_rows || logit_rows_ > shape_.max_logit_rows || sequences > shape_.max_sequences)
    fail(error(Code::internal, "a pass of {} rows of {} sequences was not prepared", rows_, sequences));
}

void CudaOps::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

/// Angles of every row's position, in double so that far positions stay exact; the same bits as the CPU executor's.
void CudaOps::fill_rope(const Rope& rope) {
  const std::int64_t half = rope.rotary / 2;
  if (rope_key_ != rope.inv_freq.data()) cos_sin_.clear();
  rope_key_ = rope.inv_freq.data();
  rotary_ = rope.rotary;
  std::int64_t furthest = 0;
  for (const kv::BatchRow& row : batch_->rows) furthest = std::max<std::int64_t>(furthest, row.position);
  auto made = static_cast<std::int64_t>(cos_sin_.size()) / rope.rotary;
  if (furthest >= made) cos_sin_.resize(static_cast<std::size_t>((furthest + 1) * rope.rotary));
  for (; made <= furthest; ++made) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(made) * rope.inv_freq[static_cast<std::size_t>(i)];
      float* pair = cos_sin_.data() + made * rope.rotary + i * 2;
      pair[0] = static_cast<float>(std::cos(angle) * rope.magnitude);
      pair[1] = static_cast<float>(std::sin(angle) * rope.magnitude);
    }
  }
  auto* out = reinterpret_cast<float*>(rows_host_.data() + pass_rows_.cos_sin);
  for (std::int64_t r = 0; r < rows_; ++r)
    std::memcpy(out + r * rope.rotary,
                cos_sin_.data() + batch_->rows[static_cast<std::size_t>(r)].position * rope.rotary,
                static_cast<std::size_t>(rope.rotary) * sizeof(float));
}

/// Whether a row goes through the products of prompts. Where the processor computes a share, none does.
bool CudaOps::is_prompt(std::int64_t row) const {
  return prompt_products_ && !split() && batch_->rows[static_cast<std::size_t>(row)].prompt;
}

/// Cuts the pass into windows, of rows of prompts or of others, of about the same size.
void CudaOps::make_windows() {
  constexpr std::int64_t kStep = 128;  // rows of a product's tile
  const std::int64_t most = work_rows(shape_);
  windows_.clear();
  for (std::int64_t first = 0, end = 0; first < rows_; first = end) {
    const bool prompt = is_prompt(first);
    for (end = first + 1; end < rows_ && is_prompt(end) == prompt;) ++end;
    const std::int64_t rows = end - first, count = (rows + most - 1) / most, even = (rows + count - 1) / count;
    const std::int64_t each = count == 1 ? rows : std::min(most, (even + kStep - 1) / kStep * kStep);
    for (std::int64_t at = first; at < end; at += each)
      windows_.push_back({at, std::min(each, end - at), 0, 0, prompt});
  }
}

/// Cuts a window's rows into tiles of one sequence for attention, behind those of the windows before it.
void CudaOps::make_tiles(Window& window) {
  auto* tiles = reinterpret_cast<int4*>(rows_host_.data() + pass_rows_.tiles) + window.first_tile;
  const auto group = static_cast<std::int32_t>(shape_.heads / shape_.kv_heads);
  const std::int32_t most = cuda::attention_tile_rows(group);
  std::int64_t& count = window.tiles;
  for (std::int64_t r = 0; r < window.rows; ++r) {
    const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(window.first + r)];
    if (count == 0 || tiles[count - 1].z != row.sequence || tiles[count - 1].y >= most)
      tiles[count++] = {static_cast<int>(r), 0, row.sequence, 0};
    ++tiles[count - 1].y;
    tiles[count - 1].w = std::max(tiles[count - 1].w, row.position);
  }
}

/// Gate and up of different dtypes are two launches with a buffer between them, made by the first pass that needs it.
Status CudaOps::make_room_for_mixed_swiglu() {
  std::int64_t widest = 0;
  for (std::size_t i = 0; i < step_count_; ++i) {
    const Step& step = steps_[i];
    if (step.kind == Step::Kind::swiglu && (part(step.weight).dtype != part(step.weight2).dtype || !options_.fuse))
      widest = std::max(widest, part(step.weight).rows);
  }
  const std::uint64_t bytes = static_cast<std::uint64_t>(work_rows(shape_) * widest) * sizeof(float);
  if (bytes <= up_scratch_.bytes()) return {};
  MR_ASSIGN_OR_RETURN(extra_reservation_, vram_.reserve("activations", bytes));
  MR_ASSIGN_OR_RETURN(up_scratch_, device::DeviceBuffer::allocate(bytes));
  return {};
}

Status CudaOps::upload_rows() {
  const auto sequences = static_cast<std::int64_t>(batch_->sequences.size());
  pass_rows_ = make_pass_rows(shape_, rows_, logit_rows_, sequences, !few_rows());
  std::byte* const host = rows_host_.data();
  auto* token = reinterpret_cast<std::int32_t*>(host + pass_rows_.token);
  auto* sequence = reinterpret_cast<std::int32_t*>(host + pass_rows_.sequence);
  auto* position = reinterpret_cast<std::int32_t*>(host + pass_rows_.position);
  auto* logit_row = reinterpret_cast<std::int32_t*>(host + pass_rows_.logit_row);
  auto* blocks = reinterpret_cast<const std::byte**>(host + pass_rows_.blocks);
  std::int64_t furthest = 0;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
    token[r] = row.token;
    sequence[r] = row.sequence;
    position[r] = row.position;
    if (row.wants_logits) *logit_row++ = static_cast<std::int32_t>(r);
    furthest = std::max<std::int64_t>(furthest, row.position);
  }
  position_bound_ = static_cast<std::int64_t>(
      round_up(static_cast<std::uint64_t>(furthest + 1), static_cast<std::uint64_t>(kPositionStep)));
  const std::int64_t width = max_blocks(shape_);
  for (std::int64_t s = 0; s < sequences; ++s) {
    const kv::SequenceState& state = *batch_->sequences[static_cast<std::size_t>(s)];
    for (std::int64_t i = 0; i < width; ++i) blocks[s * width + i] = i < state.blocks() ? state.block(i) : nullptr;
  }
  for (std::size_t i = 0; i < step_count_; ++i)
    if (steps_[i].kind == Step::Kind::rope) {
      fill_rope(steps_[i].rope);
      break;
    }
  make_windows();
  for (std::size_t w = 0; w < windows_.size() && !few_rows(); ++w) {
    if (w > 0) windows_[w].first_tile = windows_[w - 1].first_tile + windows_[w - 1].tiles;
    make_tiles(windows_[w]);
  }
  return {};
}

// --- Launch ---

Status CudaOps::end_pass() {
  const device::ProfilerRange range(few_rows() ? "decode pass" : "prompt pass");
  if (status_.ok() && cancelled_ && cancelled_()) fail(error(Code::cancelled, "stopped"));
  if (status_.ok() && rows_ > 0) {
    status_ = make_room_for_mixed_swiglu();
    if (status_.ok()) status_ = upload_rows();
    if (status_.ok()) status_ = weights_.begin_pass(split(), cancelled_);
    if (status_.ok()) status_ = launch_pass();
    weights_.pass_launched();
    if (share_ != nullptr && !status_.ok()) share_->abandon();  // or the stream would wait for ever
    // The rows' buffer is written again by the next pass, so this one must have ended, also when it failed half-way.
    Status ended = stream_.synchronise();
    if (status_.ok()) status_ = std::move(ended);
    if (status_.ok()) status_ = tell_trace();
  }
  batch_ = nullptr;
  ++counters_.passes;
  counters_.rows += static_cast<std::uint64_t>(rows_);
  counters_.weight_bytes += pass_weight_bytes_;
  counters_.pass_ns += now_ns() - pass_begin_ns_;
  if (share_ != nullptr) {
    counters_.host_bytes = share_->weight_bytes();
    counters_.host_ns = share_->compute_ns();
  }
  return status_;
}

Status CudaOps::mark(const char* row, const char* name) {
  if (options_.trace == nullptr) return {};
  if (mark_count_ == marks_.size()) {
    MR_ASSIGN_OR_RETURN(device::Event event, device::Event::create(true));
    marks_.push_back({std::move(event)});
  }
  Mark& mark = marks_[mark_count_++];
  mark.row = row;
  mark.name = name;
  MR_CUDA(cudaEventRecord(mark.end.get(), stream_.get()));
  return {};
}

/// The marks' times, on the host's clock: the last one ended when the pass did.
Status CudaOps::tell_trace() {
  if (options_.trace == nullptr || mark_count_ == 0) return {};
  const std::uint64_t end = Trace::now_ns();
  const auto before_end = [&](const Mark& mark, float& ms) {
    return cudaEventElapsedTime(&ms, mark.end.get(), marks_[mark_count_ - 1].end.get());
  };
  float previous = 0;
  MR_CUDA(before_end(marks_[0], previous));
  for (std::size_t i = 1; i < mark_count_; ++i) {
    float ms = 0;
    MR_CUDA(before_end(marks_[i], ms));
    options_.trace->add(marks_[i].row, marks_[i].name,
                        end - static_cast<std::uint64_t>(static_cast<double>(previous) * 1e6),
                        end - static_cast<std::uint64_t>(static_cast<double>(ms) * 1e6));
    previous = ms;
  }
  mark_count_ = 0;
  return {};
}

Status CudaOps::launch_pass() {
  // Generated rows come first; where they do not, the pass is none that comes again.
  const bool in_order = windows_.size() == 1 || (windows_.size() == 2 && windows_.back().prompt);
  const bool graph = options_.graphs && few_rows() && options_.trace == nullptr && !weights_.streams() && in_order;
  if (!graph) {
    MR_RETURN_IF_ERROR(mark("copy", "begin"));
    MR_RETURN_IF_ERROR(device::copy_to_device(at(layout_.rows), rows_host_.data(), pass_rows_.bytes, stream_));
    MR_RETURN_IF_ERROR(mark("copy", "rows to the GPU"));
    MR_RETURN_IF_ERROR(emit());
    MR_RETURN_IF_ERROR(bring_results());
    return mark("copy", "results to the host");
  }
  const std::int64_t generated = windows_.front().prompt ? 0 : windows_.front().rows;
  const GraphKey key{rows_,           generated, logit_rows_,         batch_->sequences.size(),
                     position_bound_, top_only_, batch_->wants_hidden};
  auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    if (graphs_.size() >= kMostGraphs) graphs_.clear();
    MR_CUDA(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    Status status = device::copy_to_device(at(layout_.rows), rows_host_.data(), pass_rows_.bytes, stream_);
    if (status.ok()) status = emit();
    if (status.ok()) status = bring_results();
    Expected<device::Graph> captured = device::Graph::end_capture(stream_);
    MR_RETURN_IF_ERROR(status);
    if (!captured.ok()) return captured.status();
    found = graphs_.emplace(key, Captured{std::move(*captured), pass_weight_bytes_}).first;
  }
  pass_weight_bytes_ = found->second.weight_bytes;
  return found->second.graph.launch(stream_);
}

Status CudaOps::bring_results() {
  if (logit_rows_ == 0) return {};
  const auto rows = static_cast<std::uint64_t>(logit_rows_);
  if (!top_only_)
    return device::copy_to_host(results_host_.data(), at(layout_.logits),
                                rows * static_cast<std::uint64_t>(shape_.vocab) * sizeof(float), stream_);
  return device::copy_to_host(results_host_.data(), at(layout_.candidates), rows * sizeof(cuda::Candidates), stream_);
}

Logits CudaOps::last_logits() const {
  const auto* data = brought_top_only_ ? nullptr : reinterpret_cast<const float*>(results_host_.data());
  return {data, logit_rows_, shape_.vocab};
}

TopLogits CudaOps::last_top_logits(std::int64_t row) const {
  const auto& found = reinterpret_cast<const cuda::Candidates*>(results_host_.data())[row];
  const auto count = static_cast<std::size_t>(found.count);
  return {{found.logit, count}, {found.id, count}, found.finite != 0};
}

/// Once the pass has ended: the stream was waited for, and nothing writes the buffer before the next pass.
Status CudaOps::read_hidden(std::int64_t first, std::int64_t rows, float* out) const {
  if (failed() || hidden_.buffer < 0 || first < 0 || rows < 0 || first + rows > rows_)
    return error(Code::internal, "rows {} to {} of a pass of {} have no states", first, first + rows, rows_);
  const auto buffer = static_cast<std::size_t>(hidden_.buffer);
  const std::int64_t cols = shape_.buffers[buffer].cols;
  MR_CUDA(cudaMemcpy(out, at<float>(layout_.buffers[buffer]) + first * cols,
                     static_cast<std::size_t>(rows * cols) * sizeof(float), cudaMemcpyDeviceToHost));
  return {};
}

// --- Recording ---

bool Step::writes(Act act) const {
  if (act.buffer < 0) return false;
  for (int i = 0; i < product_count; ++i)
    if (products[static_cast<std::size_t>(i)].out.buffer == act.buffer) return true;
  return out.buffer == act.buffer;
}

Step& CudaOps::record(Step::Kind kind) {
  if (step_count_ == steps_.size()) steps_.emplace_back();
  Step& step = steps_[step_count_++];
  step = {};
  step.kind = kind;
  return step;
}

void CudaOps::embed(Act out, WeightRef table) {
  Step& step = record(Step::Kind::embed);
  step.out = out;
  step.weight = table;
}

void CudaOps::rms_norm(Act out, Act x, WeightRef weight, float eps) {
  Step& step = record(Step::Kind::rms_norm);
  step.out = out;
  step.a = x;
  step.weight = weight;
  step.eps = eps;
}

void CudaOps::rms_norm_heads(Act x, WeightRef weight, std::int64_t head_dim, float eps) {
  Step& step = record(Step::Kind::rms_norm_heads);
  step.out = step.a = x;
  step.weight = weight;
  step.head_dim = head_dim;
  step.eps = eps;
}

void CudaOps::add(Act x, Act y) {
  Step& step = record(Step::Kind::add);
  step.out = step.a = x;
  step.b = y;
}

void CudaOps::matmul(std::span<const Product> products, Act x) {
  Step& step = record(Step::Kind::matmul);
  step.a = x;
  if (products.size() > step.products.size())
    return fail(error(Code::internal, "{} products at once", products.size()));
  step.product_count = static_cast<int>(products.size());
  std::copy(products.begin(), products.end(), step.products.begin());
}

void CudaOps::matmul_swiglu(Act out, WeightRef gate, WeightRef up, Act x) {
  Step& step = record(Step::Kind::swiglu);
  step.out = out;
  step.a = x;
  step.weight = gate;
  step.weight2 = up;
}

void CudaOps::rope(Act x, std::int64_t heads, std::int64_t head_dim, const Rope& rope) {
  Step& step = record(Step::Kind::rope);
  step.out = step.a = x;
  step.heads = heads;
  step.head_dim = head_dim;
  step.rope = rope;
}

void CudaOps::store_kv(std::int64_t layer, Act k, Act v) {
  Step& step = record(Step::Kind::store_kv);
  step.a = k;
  step.b = v;
  step.layer = layer;
}

void CudaOps::attention(Act out, Act q, std::int64_t layer, const Attention& attention) {
  Step& step = record(Step::Kind::attention);
  step.out = out;
  step.a = q;
  step.layer = layer;
  step.attention = attention;
}

void CudaOps::moe(Act out, Act x, WeightRef router, std::int64_t layer, const Experts& experts) {
  Step& step = record(Step::Kind::moe);
  step.out = out;
  step.a = x;
  step.weight = router;
  step.layer = layer;
  step.experts = experts;
}

void CudaOps::select_logit_rows(Act out, Act x) {
  Step& step = record(Step::Kind::select_rows);
  step.out = out;
  step.a = x;
}

void CudaOps::logits(WeightRef head, Act x) {
  Step& step = record(Step::Kind::logits);
  step.a = x;
  step.weight = head;
}

/// The step does nothing by itself: that it reads x in floats makes the step that writes x leave them there.
void CudaOps::hidden(Act x) {
  hidden_ = x;
  record(Step::Kind::hidden).a = x;
}

}  // namespace millrace::exec
