// How the CPU executor guesses the experts of layers to come, and has the store read them while the disk idles. Only in
// passes of few rows: those of many touch most experts anyway.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "exec/cpu_executor.h"
#include "exec/expert_choice.h"

namespace millrace::exec {
namespace {

constexpr std::uint64_t kColdPasses = 4;  // in which every layer is guessed by the embeddings

using residency::Guess;

}  // namespace

void CpuExecutor::prepare_guesses() {
  routers_ = options_.prefetch == Prefetch::off ? std::vector<RouterAhead>() : routers_ahead(program_);
  guesses_.assign(routers_.size(), {});
  last_used_.assign(routers_.size(), {});
  next_mixture_ = 0;
}

void CpuExecutor::begin_guesses() {
  next_mixture_ = 0;
  ahead_.clear();
  may_guess_ = rows_ <= kGuessedRows && !routers_.empty() && !store_.all_experts_fit();
  guessing_ = may_guess_ && (options_.prefetch == Prefetch::always || trial_.on());
  for (auto& of_layer : guesses_)
    for (auto& guess : of_layer) guess.experts.clear();  // of a pass that failed
  if (!guessing_)
    for (auto& last : last_used_) last.clear();
}

void CpuExecutor::end_guesses(std::uint64_t pass_ns) {
  if (may_guess_ && rows_ > 0 && !failed())
    trial_.passed(static_cast<double>(pass_ns) * 1e-9 / static_cast<double>(rows_));
  ahead_.clear();
}

/// The bytes of a weight of one piece if they are there; the lease is dropped with the next wave.
const std::byte* CpuExecutor::borrow(WeightRef ref) {
  const std::span<const Piece> pieces = pieces_.pieces(ref);
  if (pieces.size() != 1) return nullptr;
  std::optional<residency::Lease> lease = store_.borrow(pieces[0].tile);
  if (!lease) return nullptr;
  borrowed_.push_back(std::move(*lease));
  return borrowed_.back().segment(static_cast<std::size_t>(pieces[0].segment));
}

/// As float32, if it is there and is; absent ones are fine, and null.
bool CpuExecutor::borrow_vector(WeightRef ref, const float*& out) {
  out = nullptr;
  if (ref.none()) return true;
  const std::byte* const bytes = borrow(ref);
  if (bytes == nullptr || part(ref).dtype != DType::f32 ||
      reinterpret_cast<std::uintptr_t>(bytes) % alignof(float) != 0)
    return false;
  out = reinterpret_cast<const float*>(bytes);
  return true;
}

/// Asks mixture `index`'s router about its state as it is now. Nothing where its weights are not in memory.
void CpuExecutor::ask_router(std::size_t index, Guess kind) {
  const RouterAhead& ahead = routers_[index];
  auto& guess = guesses_[index][static_cast<std::size_t>(kind)];
  guess.experts.clear();
  if (!ahead.experts.of_tokens.none()) return ask_table(index, guess);
  if (!ahead.known()) return;
  const std::int64_t cols = cols_of(ahead.state), count = ahead.experts.count;
  if (kernels::uses_q8(part(ahead.router).dtype) || part(ahead.norm).cols != cols) return;
  const float *norm = nullptr, *router_bias = nullptr, *selection_bias = nullptr;
  const std::byte* const router = borrow(ahead.router);
  const bool there = router != nullptr && borrow_vector(ahead.norm, norm) &&
                     borrow_vector(ahead.experts.router_bias, router_bias) &&
                     borrow_vector(ahead.experts.selection_bias, selection_bias);
  if (there) {
    auto* const normed = at<float>(layout_.guess_rows);
    auto* const scores = at<float>(layout_.guess_scores);
    table_.rms_norm(data(ahead.state), norm, rows_, cols, ahead.eps, normed);
    Input input;
    input.x = normed;
    input.cols = cols;
    input.rows = rows_;
    jobs_.clear();
    jobs_.push_back(make_job(ahead.router, router, 0, count, {ahead.router, scores, count, {}}, input, Effect::store));
    run_jobs();
    std::array<std::int32_t, kMostGuesses> chosen{};
    std::array<float, kMostGuesses> weight{};
    for (std::int64_t r = 0; r < rows_ && ahead.experts.top_k <= kMostGuesses; ++r) {
      if (router_bias != nullptr) table_.add(scores + r * count, router_bias, count);
      choose_experts(table_, ahead.experts, selection_bias, scores + r * count, scores + rows_ * count, chosen.data(),
                     weight.data());
      for (std::int32_t k = 0; k < ahead.experts.top_k; ++k)
        add_guess(guess, index, chosen[static_cast<std::size_t>(k)]);
    }
  }
  borrowed_.clear();
}

/// The experts that a table has of the rows' tokens, as far as its bytes are in memory: no guess, but known beforehand.
void CpuExecutor::ask_table(std::size_t index, ExpertGuess& guess) {
  const Experts& experts = routers_[index].experts;
  const std::int64_t bytes = row_bytes(DType::i32, experts.top_k);
  for (const Piece& piece : pieces_.pieces(experts.of_tokens)) {
    std::optional<residency::Lease> lease = store_.borrow(piece.tile);
    if (!lease) continue;
    const std::byte* const rows = lease->segment(static_cast<std::size_t>(piece.segment));
    for (const kv::BatchRow& row : batch_->rows) {
      if (row.token < piece.row_begin || row.token >= piece.row_end) continue;
      for (std::int32_t k = 0; k < experts.top_k; ++k) {
        std::int32_t expert = 0;
        std::memcpy(&expert, rows + (row.token - piece.row_begin) * bytes + k * row_bytes(DType::i32, 1),
                    sizeof expert);
        if (expert >= 0 && expert < experts.count) add_guess(guess, index, expert);
      }
    }
  }
}

void CpuExecutor::add_guess(ExpertGuess& guess, std::size_t index, std::int32_t expert) {
  if (std::find(guess.experts.begin(), guess.experts.end(), expert) != guess.experts.end()) return;
  guess.experts.push_back(expert);
  const std::int32_t tile = store_.units().tiles_of(routers_[index].experts.first_unit + expert).first;
  guess.absent.resize(guess.experts.size());
  guess.absent.back() = !store_.present(tile);
}

/// Queues what a guess names and memory has not, where such guesses are right often enough.
void CpuExecutor::want(std::size_t index, Guess kind) {
  if (!trust_[static_cast<std::size_t>(kind)].worth_reading()) return;
  const ExpertGuess& guess = guesses_[index][static_cast<std::size_t>(kind)];
  const std::int32_t first_unit = routers_[index].experts.first_unit;
  for (std::size_t i = 0; i < guess.experts.size(); ++i)
    if (guess.absent[i] && single_tile(first_unit + guess.experts[i]))
      ahead_.push_back(store_.units().tiles_of(first_unit + guess.experts[i]).first);
}

/// The embeddings are there: the first mixture is guessed by them, and while memory is cold every one.
void CpuExecutor::guess_by_embedding(Act embedded) {
  if (!guessing_ || rows_ == 0) return;
  const std::size_t most = counters_.passes < kColdPasses ? routers_.size() : std::min<std::size_t>(1, routers_.size());
  for (std::size_t i = 0; i < most; ++i) {
    if (!(routers_[i].state == embedded) && routers_[i].experts.of_tokens.none()) continue;
    ask_router(i, Guess::embedding);
    want(i, Guess::embedding);
  }
  if (!routers_.empty()) want_last_token(0);
}

void CpuExecutor::want_last_token(std::size_t index) {
  auto& guess = guesses_[index][static_cast<std::size_t>(Guess::last_token)];
  guess.experts.clear();
  for (const std::int32_t expert : last_used_[index]) add_guess(guess, index, expert);
  want(index, Guess::last_token);
}

/// Mixture `index` has chosen: what was guessed of it is counted, and is what its next token is guessed by.
void CpuExecutor::count_guesses(std::size_t index, std::int32_t experts) {
  if (!guessing_) return;
  const auto* first = at<std::int32_t>(layout_.expert_first);
  const auto used = [&](std::int32_t expert) { return first[expert] != first[expert + 1]; };
  for (std::size_t kind = 0; kind < residency::kGuesses; ++kind) {
    ExpertGuess& guess = guesses_[index][kind];
    if (guess.experts.empty()) continue;
    residency::GuessCounters counted;
    for (std::int32_t e = 0; e < experts; ++e) counted.used += used(e) ? 1 : 0;
    for (std::size_t i = 0; i < guess.experts.size(); ++i) {
      const bool right = used(guess.experts[i]);
      ++counted.guessed;
      counted.right += right ? 1 : 0;
      counted.absent += guess.absent[i] ? 1 : 0;
      counted.absent_right += guess.absent[i] && right ? 1 : 0;
    }
    trust_[kind].count(counted);
    store_.count_guess(static_cast<Guess>(kind), counted);
    guess.experts.clear();
  }
  last_used_[index].clear();
  for (std::int32_t e = 0; e < experts && std::ssize(last_used_[index]) < kMostGuesses; ++e)
    if (used(e)) last_used_[index].push_back(e);
}

/// While mixture `index` waits for its experts, the next one is guessed.
void CpuExecutor::guess_next(std::size_t index) {
  ahead_.clear();  // what is not being read yet comes too late
  if (!guessing_ || index + 1 >= routers_.size()) return;
  const RouterAhead& next = routers_[index + 1];
  if (!next.experts.of_tokens.none() || (next.known() && rows_of(next.state) == rows_))
    ask_router(index + 1, Guess::next_router);
  want(index + 1, Guess::next_router);
  want_last_token(index + 1);
}

/// Starts reads of what is wanted as far as the disk idles.
void CpuExecutor::read_ahead() {
  while (!ahead_.empty() && store_.prefetch(ahead_.front())) ahead_.erase(ahead_.begin());
}

}  // namespace millrace::exec
