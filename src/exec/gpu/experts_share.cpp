#include "exec/gpu/experts_share.h"

#include <algorithm>
#include <array>
#include <optional>
#include <thread>

#include "base/bytes.h"
#include "base/spin.h"
#include "exec/host_rows.h"
#include "kernels/claimed.h"
#include "kernels/gpu/exchange.h"

namespace millrace::exec {

static constexpr int kMostSpins = 1 << 14;

ExpertShare::Places ExpertShare::lay_out(const Sizes& sizes, const kernels::Table& table, int threads) {
  Places places;
  const std::int64_t entries = sizes.rows * sizes.top_k;
  std::uint64_t at = kPayload;
  const auto place = [&at](std::int64_t bytes) {
    const std::uint64_t first = at;
    at = round_up(at + static_cast<std::uint64_t>(bytes), 256);
    return first;
  };
  constexpr std::int64_t kFloat = sizeof(float);
  places.input = place(sizes.rows * sizes.model_dim * kFloat);
  places.chosen = place(entries * static_cast<std::int64_t>(sizeof(std::int32_t)));
  places.place = place(entries * static_cast<std::int64_t>(sizeof(std::int32_t)));
  places.output = place(entries * sizes.model_dim * kFloat);
  const std::int64_t guesses = kGuessedRows * sizes.top_k;
  places.guess = place(guesses * static_cast<std::int64_t>(sizeof(std::int32_t)));
  places.guess_weights = place(guesses * kFloat);
  places.guess_flag = place(sizeof(std::uint32_t));
  places.shared_bytes = at;

  at = 0;
  (void)place(kernels::q8_bytes(sizes.rows, sizes.model_dim));
  places.hidden = place(entries * sizes.expert_ff * kFloat);
  places.hidden_q8 = place(kernels::q8_bytes(entries, sizes.expert_ff));
  places.threads = at;
  const std::int64_t widest = std::max(sizes.model_dim, sizes.expert_ff);
  places.workspace_bytes = round_up(static_cast<std::uint64_t>(table.matmul_segments_workspace_bytes(widest)), 64);
  places.thread_bytes =
      round_up(places.workspace_bytes + static_cast<std::uint64_t>(sizes.rows * kMostTaskRows * kFloat), 64);
  places.work_bytes = at + static_cast<std::uint64_t>(threads) * places.thread_bytes;
  return places;
}

std::uint64_t ExpertShare::bytes(const Sizes& sizes, const kernels::Table& table, int threads) {
  const Places places = lay_out(sizes, table, threads);
  return places.shared_bytes + places.work_bytes;
}

Expected<std::unique_ptr<ExpertShare>> ExpertShare::create(const Sizes& sizes, residency::DeviceExperts& experts,
                                                           ThreadPool& pool, const kernels::Table& table,
                                                           residency::Budget& ram, Trace* trace) {
  std::unique_ptr<ExpertShare> share(new ExpertShare(sizes, experts, pool, table, trace));
  const Places& at = share->at_;
  MR_ASSIGN_OR_RETURN(share->reservation_, ram.reserve("experts beside the GPU", at.shared_bytes + at.work_bytes));
  MR_ASSIGN_OR_RETURN(share->work_, device::HostBuffer::reserve(at.work_bytes, device::Pages::normal));
  share->row_of_.resize(static_cast<std::size_t>(sizes.rows * sizes.top_k));
  share->first_of_.resize(static_cast<std::size_t>(sizes.experts) + 1);
  share->progress_ = std::make_unique<Progress[]>(static_cast<std::size_t>(sizes.experts));
  MR_RETURN_IF_ERROR(share->start(at.shared_bytes - kPayload, experts.gpus() > 1));
  return share;
}

Status ExpertShare::compute(std::size_t place) {
  const Job& job = jobs_[place];
  const std::uint64_t begin_ns = Trace::now_ns();
  used_.clear();
  used_first_unit_ = job.experts->first_unit;
  begin_guess(job);
  choose(job);
  if (waiting_.empty()) {
    await_guess();
    return {};
  }
  const std::int64_t cols = sizes_.model_dim;
  if (kernels::uses_q8(part(job, job.experts->first_part()).dtype) ||
      kernels::uses_q8(part(job, job.experts->up_part).dtype))
    quantize_rows(table_, pool_, host_at<float>(at_.input), job.rows, cols,
                  kernels::q8_rows_at(work_.data(), job.rows, cols));
  leased_.clear();
  Status status;
  while (status.ok() && (!waiting_.empty() || !leased_.empty())) {
    status = take_leases(job);
    if (!status.ok()) break;
    std::size_t members = gather_ready();
    if (waiting_.empty() && members == leased_.size()) read_ahead();  // nothing more is needed of the disk
    if (members == 0) {
      status = leased_.front().lease.wait();
      if (!status.ok()) break;
      members = 1;
    }
    multiply(job, members);
    for (std::size_t m = 0; m < members; ++m) used_.push_back(leased_[m].expert);  // the lease ends: others wait for it
    leased_.erase(leased_.begin(), leased_.begin() + static_cast<std::ptrdiff_t>(members));
    if (abandoned()) break;
  }
  waiting_.clear();
  leased_.clear();
  if (status.ok()) await_guess();
  const std::uint64_t end_ns = Trace::now_ns();
  compute_ns_ += end_ns - begin_ns;
  if (trace_ != nullptr) trace_->add("CPU", "experts", begin_ns, end_ns);
  return status;
}

bool ExpertShare::guess_there() const {
  const std::atomic_ref<std::uint32_t> flag(*host_at<std::uint32_t>(at_.guess_flag));
  return static_cast<std::int32_t>(flag.load(std::memory_order_acquire) - guessed_.number) >= 0;
}

void ExpertShare::begin_guess(const Job& job) {
  const bool of_this = guessed_.taken && guessed_.of->first_unit == job.experts->first_unit;
  if (of_this) {
    const auto* chosen = host_at<std::int32_t>(at_.chosen);
    chosen_here_.assign(static_cast<std::size_t>(job.experts->count), false);
    for (std::int64_t e = 0; e < job.rows * job.experts->top_k; ++e)
      chosen_here_[static_cast<std::size_t>(chosen[e])] = true;
    residency::GuessCounters counted;
    counted.used = static_cast<std::uint64_t>(std::count(chosen_here_.begin(), chosen_here_.end(), true));
    counted.guessed = guessed_.experts.size();
    for (std::size_t i = 0; i < guessed_.experts.size(); ++i) {
      const bool right = chosen_here_[static_cast<std::size_t>(guessed_.experts[i])];
      counted.right += right ? 1 : 0;
      counted.absent += guessed_.absent[i] ? 1 : 0;
      counted.absent_right += guessed_.absent[i] && right ? 1 : 0;
    }
    trust_.count(counted);
    experts_.store().count_guess(residency::Guess::next_router, counted);
  }
  guessed_.of = job.ahead;
  guessed_.number = job.number;
  guessed_.rows = job.rows;
  guessed_.taken = false;
  guessed_.experts.clear();
  guessed_.absent.clear();
  guessed_.wanted.clear();  // what is not being read yet comes too late
}

/// Before the GPU may go on to the mixture that overwrites it. It keeps nobody waiting: the GPU has made the guess
/// before it comes to take in what was computed here.
void ExpertShare::await_guess() {
  while (guessed_.of != nullptr && !guess_there() && !abandoned()) relax();
  take_guess();
}

void ExpertShare::take_guess() {
  if (guessed_.of == nullptr || guessed_.taken || !guess_there()) return;
  guessed_.taken = true;
  residency::WeightStore& store = experts_.store();
  const auto* chosen = host_at<std::int32_t>(at_.guess);
  for (std::int64_t e = 0; e < guessed_.rows * guessed_.of->top_k; ++e) {
    const std::int32_t expert = chosen[e];
    if (std::find(guessed_.experts.begin(), guessed_.experts.end(), expert) != guessed_.experts.end()) continue;
    const std::int32_t unit = guessed_.of->first_unit + expert, tile = units_.tiles_of(unit).first;
    guessed_.experts.push_back(expert);
    guessed_.absent.push_back(!experts_.has_slot(unit) && !store.present(tile));
    if (guessed_.absent.back() && trust_.worth_reading()) guessed_.wanted.push_back(tile);
  }
}

void ExpertShare::read_ahead() {
  take_guess();
  std::vector<std::int32_t>& wanted = guessed_.wanted;
  while (!wanted.empty() && experts_.store().prefetch(wanted.front())) wanted.erase(wanted.begin());
}

/// What is guessed is read while the GPU goes on; what was computed with may be worth a slot, if it is still in RAM.
void ExpertShare::settle() {
  const std::uint64_t begin_ns = Trace::now_ns();
  read_ahead();
  residency::WeightStore& store = experts_.store();
  for (const std::int32_t expert : used_) {
    const std::int32_t unit = used_first_unit_ + expert, tile = units_.tiles_of(unit).first;
    if (!experts_.wants(unit) || !store.present(tile)) continue;
    std::optional<residency::Lease> lease = store.try_lease(tile);
    if (!lease) break;
    experts_.offer(unit, std::move(*lease));
  }
  used_.clear();
  if (trace_ != nullptr) trace_->add("CPU", "slots", begin_ns, Trace::now_ns());
}

/// The GPU's part of the missed experts: the rule of kernels::gpu::claim_experts(), claimed_of().
void ExpertShare::leave_claimed(const Job& job) {
  const std::int32_t most = kernels::claimed_of(static_cast<std::int32_t>(waiting_.size()),
                                                experts_.link().of(static_cast<double>(job.rows)));
  std::int32_t taken = 0;
  std::erase_if(waiting_, [&](Missed& missed) {
    if (taken >= most || !experts_.lies_in_ram(unit_of(job, missed.expert))) return false;
    ++taken;
    experts_.read_in_ram(unit_of(job, missed.expert));
    used_.push_back(missed.expert);
    return true;
  });
}

/// Which entries are the processor's, and in which places their results will lie: expert by expert, then by entry.
void ExpertShare::choose(const Job& job) {
  const std::int64_t entries = job.rows * job.experts->top_k;
  const auto* chosen = host_at<std::int32_t>(at_.chosen);
  auto* places = host_at<std::int32_t>(at_.place);
  const auto count = static_cast<std::size_t>(job.experts->count);
  std::fill_n(first_of_.begin(), count + 1, 0);
  for (std::int64_t e = 0; e < entries; ++e) ++first_of_[static_cast<std::size_t>(chosen[e])];
  waiting_.clear();
  for (std::size_t x = 0; x < count; ++x) {
    const std::int64_t rows = first_of_[x];
    first_of_[x] = -1;
    if (rows == 0 || experts_.use(unit_of(job, static_cast<std::int32_t>(x)))) continue;
    waiting_.emplace_back();
    waiting_.back().expert = static_cast<std::int32_t>(x);
    waiting_.back().rows = rows;
  }
  leave_claimed(job);
  std::int64_t at = 0;
  for (Missed& missed : waiting_) {
    missed.first = first_of_[static_cast<std::size_t>(missed.expert)] = at;
    at += missed.rows;
  }
  for (std::int64_t e = 0; e < entries; ++e) {
    std::int64_t& next = first_of_[static_cast<std::size_t>(chosen[e])];
    places[e] = static_cast<std::int32_t>(next);
    if (next < 0) continue;
    row_of_[static_cast<std::size_t>(next++)] = static_cast<std::int32_t>(e / job.experts->top_k);
  }
}

/// As far as RAM has slots: first those that are there, so that reads of the others cannot drive them out. At least one
/// is leased in the end.
Status ExpertShare::take_leases(const Job& job) {
  residency::WeightStore& store = experts_.store();
  const auto tile_of = [&](const Missed& missed) { return units_.tiles_of(unit_of(job, missed.expert)).first; };
  for (const bool present_only : {true, false}) {
    bool full = false;
    std::erase_if(waiting_, [&](Missed& missed) {
      if (full || (present_only && !store.present(tile_of(missed)))) return false;
      std::optional<residency::Lease> lease = store.try_lease(tile_of(missed));
      full = !lease;
      if (full) return false;
      missed.lease = std::move(*lease);
      leased_.push_back(std::move(missed));
      return true;
    });
  }
  if (!leased_.empty()) return {};
  MR_ASSIGN_OR_RETURN(waiting_.front().lease, store.lease(tile_of(waiting_.front())));
  leased_.push_back(std::move(waiting_.front()));
  waiting_.erase(waiting_.begin());
  return {};
}

/// Brings those whose bytes are there to the front, and says how many they are.
std::size_t ExpertShare::gather_ready() {
  std::size_t members = 0;
  for (std::size_t i = 0; i < leased_.size(); ++i) {
    if (!leased_[i].lease.ready() || !leased_[i].lease.wait().ok()) continue;
    if (i != members) std::swap(leased_[i], leased_[members]);
    ++members;
  }
  return members;
}

const std::byte* ExpertShare::bytes_of(const Job& job, const Missed& missed, std::int32_t part) const {
  const Piece& piece = pieces_.pieces({unit_of(job, missed.expert), part})[0];
  return missed.lease.segment(static_cast<std::size_t>(piece.segment));
}

void ExpertShare::multiply(const Job& job, std::size_t members) {
  for (std::size_t m = 0; m < members; ++m) {
    Missed& missed = leased_[m];
    missed.gate_or_up = bytes_of(job, missed, job.experts->first_part());
    missed.up = bytes_of(job, missed, job.experts->up_part);
    missed.down = bytes_of(job, missed, job.experts->down_part);
    for (const std::int32_t p : {job.experts->gate_part, job.experts->up_part, job.experts->down_part})
      if (p != kNoPart) weight_bytes_ += part(job, p).bytes();
  }
  // Whoever waits for a member's hidden rows knows that all tasks that make them are at work, and so the threads meet
  // once, at the end.
  const Cut first = cut(part(job, job.experts->first_part())), second = cut(part(job, job.experts->down_part));
  for (std::size_t m = 0; m < members; ++m) progress_[m].left.store(first.tasks, std::memory_order_relaxed);
  for (std::size_t m = 0; m < members; ++m) progress_[m].hidden_ready.store(false, std::memory_order_relaxed);
  const std::uint64_t x_name = ++names_, hidden_name = names_ + 1;  // the latter of the first member's hidden rows
  names_ += members;
  const auto count = static_cast<std::int64_t>(members);
  const std::array tasks{count * first.tasks, count * second.tasks};
  const auto work = [&](std::size_t stage, std::int64_t task, std::int64_t end, int thread) {
    const Cut& cut = stage == 0 ? first : second;
    while (task < end) {
      const auto member = static_cast<std::size_t>(task / cut.tasks);
      const std::int64_t here = std::min(end - task, cut.tasks - task % cut.tasks);  // of this member
      const std::int64_t row = task % cut.tasks * cut.rows_each, last = std::min(row + here * cut.rows_each, cut.rows);
      task += here;
      if (stage == 0) {
        gate_and_up(job, leased_[member], x_name, row, last, thread);
        if (progress_[member].left.fetch_sub(here, std::memory_order_acq_rel) == here) finish_hidden(job, member);
        continue;
      }
      // Whoever makes them may have lost its processor to others.
      for (int spins = 0; !progress_[member].hidden_ready.load(std::memory_order_acquire); ++spins)
        spins < kMostSpins ? relax() : std::this_thread::yield();
      down(job, leased_[member], hidden_name + member, row, last, thread);
    }
  };
  pool_.parallel_runs(tasks, kTasksAtOnce, work);
}

ExpertShare::Cut ExpertShare::cut(const residency::Part& matrix) {
  const std::int64_t rows = task_rows(matrix.dtype, matrix.cols);
  return {matrix.rows, rows, (matrix.rows + rows - 1) / rows};
}

kernels::MatmulArgs ExpertShare::product(const Missed& missed, const residency::Part& matrix, const std::byte* weight,
                                         std::int64_t begin, std::int64_t end, int thread) const {
  kernels::MatmulArgs args = rows_of(matrix.dtype, weight, matrix.cols, begin, end);
  args.x_stride = matrix.cols;
  args.x_rows = missed.rows;
  args.y_stride = matrix.rows;
  args.workspace = thread_memory(thread);
  return args;
}

/// hidden = activation(x gate^T * scale + bias) * (x up^T * scale + bias), in places' order; without a gate
/// activation(x up^T * scale + bias).
void ExpertShare::gate_and_up(const Job& job, const Missed& missed, std::uint64_t x_name, std::int64_t begin,
                              std::int64_t end, int thread) {
  const residency::Part &first = part(job, job.experts->first_part()), &up = part(job, job.experts->up_part);
  const std::int64_t ff = first.rows;
  kernels::MatmulArgs args = product(missed, first, missed.gate_or_up, begin, end, thread);
  args.x = host_at<float>(at_.input);
  args.x_q8 = kernels::q8_rows_at(work_.data(), job.rows, first.cols);
  args.x_index = row_of_.data() + missed.first;
  args.x_name = x_name;
  args.y = hidden() + missed.first * ff + begin;
  table_.matmul_segments(args);
  const auto of_expert = [&](const float* all) { return all == nullptr ? nullptr : all + missed.expert * ff + begin; };
  auto* const scratch = reinterpret_cast<float*>(thread_memory(thread) + at_.workspace_bytes);
  const float scale = scale_of(job.inner_scale, missed.expert), up_scale = scale_of(job.up_scale, missed.expert);
  if (!job.experts->gated())
    return activate_rows(table_, {job.experts->activation, of_expert(job.up_bias), nullptr, scale}, args, scratch);
  args.dtype = up.dtype;
  args.weight = missed.up + begin * row_bytes(up.dtype, up.cols);
  gate_rows(
      table_, table_.matmul_segments,
      {job.experts->activation, of_expert(job.gate_bias), of_expert(job.up_bias), scale, up_scale, job.experts->limit},
      args, scratch);
}

/// By whoever did the last of the tasks that make them.
void ExpertShare::finish_hidden(const Job& job, std::size_t member) {
  const residency::Part& down = part(job, job.experts->down_part);
  const Missed& missed = leased_[member];
  if (kernels::uses_q8(down.dtype))
    table_.quantize_q8(hidden() + missed.first * down.cols, down.cols, missed.rows, down.cols,
                       hidden_q8(missed.first, down.cols));
  progress_[member].hidden_ready.store(true, std::memory_order_release);
}

kernels::Q8Rows ExpertShare::hidden_q8(std::int64_t place, std::int64_t ff) const {
  const kernels::Q8Rows all = kernels::q8_rows_at(work_.data() + at_.hidden_q8, sizes_.rows * sizes_.top_k, ff);
  return {all.q + place * ff, all.d + place * (ff / 32), all.sum16 + place * (ff / 16)};
}

/// results = hidden down^T * scale + bias, in places' order.
void ExpertShare::down(const Job& job, const Missed& missed, std::uint64_t hidden_name, std::int64_t begin,
                       std::int64_t end, int thread) {
  const residency::Part& down = part(job, job.experts->down_part);
  kernels::MatmulArgs args = product(missed, down, missed.down, begin, end, thread);
  args.x = hidden() + missed.first * down.cols;
  if (kernels::uses_q8(down.dtype)) args.x_q8 = hidden_q8(missed.first, down.cols);
  args.x_name = hidden_name;
  args.y = host_at<float>(at_.output) + missed.first * down.rows + begin;
  table_.matmul_segments(args);
  Gate end_of{job.experts->activation};
  end_of.scale = scale_of(job.down_scale, missed.expert);
  if (job.down_bias != nullptr) end_of.bias = job.down_bias + missed.expert * down.rows + begin;
  end_rows(table_, end_of, args);
}

}  // namespace millrace::exec
