// The CPU executor on a small real model: right by the reference, and the same bits however it is run.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "exec/executor.h"
#include "exec/small_model.h"
#include "kv/sequence.h"
#include "residency/weight_store.h"

namespace millrace::exec::test {
namespace {

using residency::Budget;
using residency::Plan;

/// Passes reads on, or fails those from the `fail_from`-th on.
class FailingBackend : public storage::Backend {
 public:
  explicit FailingBackend(std::unique_ptr<storage::Backend> inner) : inner_(std::move(inner)) {}
  const storage::BackendTraits& traits() const override { return inner_->traits(); }
  void submit(std::span<const storage::Read> reads, storage::Completion& completion) override {
    for (const storage::Read& read : reads) {
      if (reads_++ < fail_from) {
        inner_->submit(std::span(&read, 1), completion);
      } else {
        completion.expect(1);
        completion.finish_one(error(Code::io_error, "the disk said no"));
      }
    }
  }
  Status health() const override { return inner_->health(); }
  storage::Counters counters() const override { return inner_->counters(); }
  void reset(std::int64_t fail) {
    reads_ = 0;
    fail_from = fail;
  }

 private:
  std::unique_ptr<storage::Backend> inner_;
  std::int64_t reads_ = 0, fail_from = std::numeric_limits<std::int64_t>::max();
};

struct RunOptions {
  int threads = 2;
  kernels::Isa isa = device::best_isa();
  int ring_slots = 0;     // 0: everything at home but what expert_slots says
  int expert_slots = -1;  // -1: all
  bool embedding_from_file = true;
  DType kv_dtype = DType::f16;
  std::int64_t max_rows = 64, max_positions = 2048;
  Prefetch prefetch = Prefetch::off;
};

Plan plan_by_hand(const residency::UnitTable& units, const RunOptions& options) {
  Plan plan;
  plan.homes.resize(units.units().size(), residency::Tier::disk);
  plan.resident_tiles.assign(units.tiles().size(), false);
  plan.embedding_rows_from_disk = options.embedding_from_file;
  plan.row_scratch_bytes = options.embedding_from_file ? 16384 : 0;
  int experts = 0;
  for (std::size_t t = 0; t < units.tiles().size(); ++t) {
    const residency::Tile& tile = units.tiles()[t];
    const UnitKind kind = units.units()[static_cast<std::size_t>(tile.unit)].kind;
    if (kind == UnitKind::expert) {
      plan.expert_slot_bytes = std::max(plan.expert_slot_bytes, tile.slot_bytes);
      ++experts;
    } else if (options.ring_slots == 0 && (kind != UnitKind::embedding || !options.embedding_from_file)) {
      plan.resident_tiles[t] = true;
      plan.resident_bytes += tile.slot_bytes;
      plan.homes[static_cast<std::size_t>(tile.unit)] = residency::Tier::ram;
    } else if (kind != UnitKind::embedding) {
      plan.ring_slot_bytes = std::max(plan.ring_slot_bytes, tile.slot_bytes);
    }
  }
  plan.ring_slots = plan.ring_slot_bytes == 0 ? 0 : options.ring_slots;
  plan.expert_slots = options.expert_slots < 0 ? experts : std::min(experts, options.expert_slots);
  return plan;
}

/// A model with everything it runs on.
class Runner {
 public:
  Runner(const SmallModel& model, const RunOptions& options)
      : model_(model), pool_({.threads = options.threads, .pin = false}) {
    auto backend = storage::open_backend({model.path()}, {.kind = storage::BackendKind::pread_buffered});
    EXPECT_TRUE(backend.ok()) << backend.status().message();
    backend_ = std::make_unique<FailingBackend>(std::move(backend).value());
    auto store = residency::WeightStore::create(model.units(), plan_by_hand(model.units(), options), *backend_, budget_,
                                                {.poison_evicted = true});
    EXPECT_TRUE(store.ok()) << store.status().message();
    store_ = std::move(store).value();
    executor_ = make_cpu_executor(
        *store_, pool_, budget_,
        {.isa = options.isa, .embedding_rows_from_disk = options.embedding_from_file, .prefetch = options.prefetch});
    limits_ = SmallModel::pass_limits(options.max_rows, options.max_positions);
    const Status prepared = executor_->prepare(model.program(), limits_);
    EXPECT_TRUE(prepared.ok()) << prepared.message();
    kv_ = std::make_shared<kv::BlockPool>(model.layout().with(options.kv_dtype, kv::kOnHost), budget_);
  }

  kv::SequenceState new_sequence() { return kv::SequenceState(kv_); }

  Status pass(const kv::Batch& batch, std::vector<float>& logits, const std::function<bool()>& cancelled = {}) {
    Status status = executor_->run(batch, cancelled);
    const Logits last = executor_->last_logits();
    if (last.data != nullptr) logits.insert(logits.end(), last.data, last.data + last.rows * last.vocab);
    return status;
  }

  /// Logits of every token of one sequence, `together` tokens a pass.
  std::vector<float> run(const std::vector<std::int32_t>& tokens, std::size_t together) {
    kv::SequenceState sequence = new_sequence();
    std::vector<float> logits;
    for (std::size_t first = 0; first < tokens.size(); first += together) {
      kv::Batch batch;
      batch.sequences = {&sequence};
      const std::size_t end = std::min(first + together, tokens.size());
      for (std::size_t i = first; i < end; ++i)
        batch.rows.push_back({tokens[i], 0, static_cast<std::int32_t>(i), true});
      EXPECT_TRUE(sequence.reserve(static_cast<std::int64_t>(end)).ok());
      const Status status = pass(batch, logits);
      EXPECT_TRUE(status.ok()) << status.message();
      sequence.set_length(static_cast<std::int64_t>(end));
    }
    return logits;
  }

  Executor& executor() { return *executor_; }
  Budget& budget() { return budget_; }
  residency::WeightStore& store() { return *store_; }
  FailingBackend& backend() { return *backend_; }
  PassShape shape() const { return pass_shape(model_.program(), model_.units(), limits_); }

 private:
  const SmallModel& model_;
  ThreadPool pool_;
  Budget budget_{1ull << 40};
  std::unique_ptr<FailingBackend> backend_;
  std::unique_ptr<residency::WeightStore> store_;
  std::unique_ptr<Executor> executor_;
  PassLimits limits_;
  std::shared_ptr<kv::BlockPool> kv_;
};

std::vector<std::int32_t> tokens_below(std::size_t count, std::int64_t vocab) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::int32_t>((i * 37 + i * i * 11 + 5) % vocab);
  return tokens;
}

::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " logits";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return ::testing::AssertionFailure() << "logit " << i << " is " << a[i];
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return ::testing::AssertionFailure() << "logit " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / norm);
}

SmallShape mixture_shape(DType dtype) {
  SmallShape shape;
  shape.dtype = dtype;
  shape.experts = 6;
  shape.head_norms = true;
  shape.neox = true;
  return shape;
}

// --- Right ---

TEST(CpuOps, DenseAgreesWithTheReference) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0}) {
    SmallShape shape;
    shape.dtype = dtype;
    shape.bias = true;
    shape.tile_bytes = 4096;  // matrices in several tiles
    const SmallModel model(shape);
    const auto tokens = tokens_below(21, shape.vocab);
    Runner runner(model, {.kv_dtype = DType::f32});
    const double tolerance = kernels::uses_q8(dtype) ? 3e-2 : 2e-6;  // int8 activations carry about 1 %
    EXPECT_LT(relative_error(runner.run(tokens, 21), model.reference(tokens)), tolerance) << info(dtype).name;
  }
}

TEST(CpuOps, MixtureAgreesWithTheReference) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    const SmallModel model(mixture_shape(dtype));
    const auto tokens = tokens_below(21, model.shape().vocab);
    Runner runner(model, {.expert_slots = 3, .kv_dtype = DType::f32});
    EXPECT_LT(relative_error(runner.run(tokens, 21), model.reference(tokens)), 2e-6) << info(dtype).name;
  }
}

TEST(CpuOps, WindowAndHalfPrecisionNormsAgreeWithTheReference) {
  SmallShape shape;
  shape.window = 9;
  shape.norm_dtype = DType::f16;
  shape.neox = true;
  const SmallModel model(shape);
  const auto tokens = tokens_below(90, shape.vocab);  // past a block of keys
  Runner runner(model, {.kv_dtype = DType::f32, .max_rows = 90});
  EXPECT_LT(relative_error(runner.run(tokens, 90), model.reference(tokens)), 2e-6);
}

TEST(CpuOps, HalfPrecisionKeysCostLittle) {
  const SmallModel model(SmallShape{});
  const auto tokens = tokens_below(30, model.shape().vocab);
  Runner half(model, {}), whole(model, {.kv_dtype = DType::f32});
  const double difference = relative_error(half.run(tokens, 30), whole.run(tokens, 30));
  EXPECT_GT(difference, 1e-5);
  EXPECT_LT(difference, 2e-3);
}

// --- The same bits ---

class SameTokens : public ::testing::TestWithParam<SmallShape> {
 protected:
  const SmallModel model_{GetParam()};
  const std::vector<std::int32_t> tokens_ = tokens_below(23, GetParam().vocab);
  const std::vector<float> want_ = Runner(model_, {.threads = 1}).run(tokens_, 23);
};

TEST_P(SameTokens, OneRowOrManyAPass) {
  for (const std::size_t together : {1u, 2u, 7u, 20u}) {
    EXPECT_TRUE(same_bits(Runner(model_, {}).run(tokens_, together), want_)) << together << " rows a pass";
  }
}

TEST_P(SameTokens, AnyThreadsAndInstructionSet) {
  for (const int threads : {1, 2, 3, 8}) {
    for (const auto isa : device::kIsas) {
      if (!device::has_isa(isa)) continue;
      Runner runner(model_, {.threads = threads, .isa = isa});
      EXPECT_TRUE(same_bits(runner.run(tokens_, 5), want_)) << threads << " threads, " << device::isa_name(isa);
    }
  }
}

TEST_P(SameTokens, AnyResidency) {
  for (const int ring : {0, 2, 3, 20}) {
    for (const int slots : {1, 2, 5, -1}) {
      if (GetParam().experts == 0 && slots != 1) continue;
      for (const bool from_file : {true, false}) {
        if (!from_file && ring > 0) continue;
        Runner runner(model_, {.ring_slots = ring, .expert_slots = slots, .embedding_from_file = from_file});
        EXPECT_TRUE(same_bits(runner.run(tokens_, 6), want_)) << ring << " ring slots, " << slots << " expert slots";
      }
    }
  }
}

TEST_P(SameTokens, ExpertsReadAheadOrNot) {
  for (const int slots : {1, 2, 5, 7, -1}) {
    if (GetParam().experts == 0 && slots != 1) continue;
    for (const int ring : {0, 3}) {
      for (const std::size_t together : {1u, 3u}) {
        Runner runner(model_, {.ring_slots = ring, .expert_slots = slots, .prefetch = Prefetch::always});
        EXPECT_TRUE(same_bits(runner.run(tokens_, together), want_)) << ring << " ring slots, " << slots << " slots";
        const residency::GuessFigures guesses = runner.store().counters().guesses;
        EXPECT_EQ(guesses.any(), !runner.store().all_experts_fit()) << "where none leaves, none is guessed";
        EXPECT_LE(guesses.read_ahead_used, guesses.read_ahead);
      }
    }
  }
}

TEST_P(SameTokens, AloneOrBesideOthers) {
  Runner runner(model_, {.expert_slots = 3});
  std::vector<kv::SequenceState> sequences;
  for (int i = 0; i < 3; ++i) sequences.push_back(runner.new_sequence());
  kv::Batch batch;
  for (kv::SequenceState& sequence : sequences) {
    ASSERT_TRUE(sequence.reserve(64).ok());
    batch.sequences.push_back(&sequence);
  }
  // Another prompt, then ours, then a third that ends beside it; only our rows want logits.
  for (std::int32_t i = 0; i < 9; ++i) batch.rows.push_back({i, 0, i, false});
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    batch.rows.push_back({tokens_[i], 1, static_cast<std::int32_t>(i), true});
  }
  for (std::int32_t i = 0; i < 14; ++i) batch.rows.push_back({i * 2, 2, i, false});
  std::vector<float> logits;
  ASSERT_TRUE(runner.pass(batch, logits).ok());
  EXPECT_TRUE(same_bits(logits, want_));
}

SmallShape dense_in_tiles(DType dtype) {
  SmallShape shape;
  shape.dtype = dtype;
  shape.tile_bytes = 4096;
  shape.ff = 160;
  return shape;
}
SmallShape large_experts() {
  SmallShape shape = mixture_shape(DType::q8_0);
  shape.tile_bytes = 4096;  // an expert is three tiles and more
  return shape;
}
INSTANTIATE_TEST_SUITE_P(Models, SameTokens,
                         ::testing::Values(dense_in_tiles(DType::f16), dense_in_tiles(DType::q8_0),
                                           mixture_shape(DType::q8_0), mixture_shape(DType::q4_0),
                                           mixture_shape(DType::f16), large_experts()));

TEST(CpuOps, HowAnExpertIsCutChangesNothing) {
  const SmallModel whole(mixture_shape(DType::q8_0)), cut(large_experts());
  ASSERT_GT(cut.units().tiles().size(), whole.units().tiles().size());
  const auto tokens = tokens_below(23, 50);
  EXPECT_TRUE(same_bits(Runner(whole, {}).run(tokens, 23), Runner(cut, {.expert_slots = 1}).run(tokens, 23)));
}

TEST(CpuOps, LongContextsOverManyChunks) {
  SmallShape shape;
  shape.layers = 1;
  const SmallModel model(shape);
  const auto tokens = tokens_below(2300, shape.vocab);  // three chunks of keys
  const RunOptions one{.threads = 1, .max_rows = 64, .max_positions = 2400};
  const auto want = Runner(model, one).run(tokens, 64);
  for (const int threads : {2, 5}) {  // with five, decode shares out the chunks of few heads
    RunOptions many = one;
    many.threads = threads;
    EXPECT_TRUE(same_bits(Runner(model, many).run(tokens, 61), want)) << threads << " threads";
  }
  Runner decode(model, {.threads = 5, .max_positions = 2400});
  const std::vector<std::int32_t> end(tokens.end() - 3, tokens.end());
  kv::SequenceState sequence = decode.new_sequence();
  ASSERT_TRUE(sequence.reserve(2300).ok());
  std::vector<float> logits;
  for (std::int32_t i = 0; i < 2300; i += i < 2240 ? 64 : 1) {  // the last sixty one by one
    kv::Batch batch;
    batch.sequences = {&sequence};
    for (std::int32_t j = i; j < std::min(2300, i + (i < 2240 ? 64 : 1)); ++j) {
      batch.rows.push_back({tokens[static_cast<std::size_t>(j)], 0, j, j >= 2290});
    }
    ASSERT_TRUE(decode.pass(batch, logits).ok());
  }
  EXPECT_TRUE(same_bits(logits, std::vector<float>(want.end() - 10 * shape.vocab, want.end())));
}

// --- Once a pass, within the budget ---

TEST(CpuOps, NoByteIsReadTwiceInAPass) {
  for (const bool mixture : {false, true}) {
    const SmallModel model(mixture ? mixture_shape(DType::q8_0) : dense_in_tiles(DType::f16));
    Runner runner(model, {.ring_slots = 2, .expert_slots = 1});
    const auto tokens = tokens_below(40, 50);
    runner.run(tokens, 40);
    const auto before = runner.store().counters();
    runner.run(tokens, 40);
    const auto after = runner.store().counters();
    // The next pass's first tiles may be on their way: what two slots hold.
    std::uint64_t largest = 0;
    for (const auto& tile : model.units().tiles()) largest = std::max(largest, tile.bytes);
    EXPECT_LE(after.bytes_from_disk - before.bytes_from_disk, model.units().total_bytes() + 2 * largest);
    EXPECT_GT(after.bytes_from_disk, before.bytes_from_disk);
  }
}

TEST(CpuOps, ReservesWhatItSaid) {
  const SmallModel model(mixture_shape(DType::q8_0));
  Runner runner(model, {.threads = 3});
  const CpuOptions options{device::best_isa(), true};
  const std::uint64_t said = cpu_activation_bytes(runner.shape(), 3, options);
  std::uint64_t held = 0;
  for (const auto& entry : runner.budget().entries()) held += entry.tag == "activations" ? entry.bytes : 0;
  EXPECT_EQ(held, said);
  EXPECT_LT(said, 1u << 20);
  ASSERT_TRUE(
      runner.executor().prepare(model.program(), SmallModel::pass_limits(8, 128)).ok());  // smaller: the rest goes back
  held = 0;
  for (const auto& entry : runner.budget().entries()) held += entry.tag == "activations" ? entry.bytes : 0;
  EXPECT_LT(held, said);
}

TEST(CpuOps, PreparingTooMuchIsAnErrorThatNamesTheBudget) {
  const SmallModel model(SmallShape{});
  Runner runner(model, {});
  Budget small(64 << 10);
  ThreadPool pool({.threads = 1});
  const auto executor = make_cpu_executor(runner.store(), pool, small, {});
  EXPECT_EQ(executor->prepare(model.program(), SmallModel::pass_limits(512, 4096)).code(), Code::out_of_budget);
}

// --- What goes wrong ---

TEST(CpuOps, AFailedReadFailsThePassAndTheNextOneIsRight) {
  for (const bool mixture : {false, true}) {
    const SmallModel model(mixture ? mixture_shape(DType::f16) : dense_in_tiles(DType::f16));
    const auto tokens = tokens_below(12, 50);
    const auto want = Runner(model, {.threads = 1}).run(tokens, 12);
    for (std::int64_t good = 0; good < 40; ++good) {
      Runner runner(model, {.ring_slots = 2, .expert_slots = 2});
      runner.backend().reset(good);
      kv::SequenceState sequence = runner.new_sequence();
      ASSERT_TRUE(sequence.reserve(12).ok());
      kv::Batch batch;
      batch.sequences = {&sequence};
      for (std::int32_t i = 0; i < 12; ++i) batch.rows.push_back({tokens[static_cast<std::size_t>(i)], 0, i, true});
      std::vector<float> logits;
      const Status status = runner.pass(batch, logits);
      if (status.ok()) {  // read no further than that
        EXPECT_TRUE(same_bits(logits, want));
        continue;
      }
      EXPECT_EQ(status.code(), Code::io_error) << status.message();
      EXPECT_TRUE(logits.empty());
      runner.backend().reset(std::numeric_limits<std::int64_t>::max());
      const Status again = runner.pass(batch, logits);
      ASSERT_TRUE(again.ok()) << again.message();
      EXPECT_TRUE(same_bits(logits, want)) << "after " << good << " good reads";
    }
  }
}

TEST(CpuOps, StatesAreReadWhereTheyWereAskedForAndChangeNothing) {
  const SmallModel model(mixture_shape(DType::f16));
  const auto tokens = tokens_below(12, model.shape().vocab);
  Runner runner(model, {.ring_slots = 2});
  kv::SequenceState sequence = runner.new_sequence();
  ASSERT_TRUE(sequence.reserve(12).ok());
  kv::Batch batch;
  batch.sequences = {&sequence};
  for (std::int32_t i = 0; i < 12; ++i) batch.rows.push_back({tokens[static_cast<std::size_t>(i)], 0, i, i > 9});
  const auto dim = static_cast<std::size_t>(model.shape().dim);
  std::vector<float> plain, logits, states(12 * dim), piece(5 * dim);
  ASSERT_TRUE(runner.pass(batch, plain).ok());
  EXPECT_EQ(runner.executor().read_hidden(0, 1, states.data()).code(), Code::internal) << "nobody asked";
  batch.wants_hidden = true;
  ASSERT_TRUE(runner.pass(batch, logits).ok());
  EXPECT_TRUE(same_bits(logits, plain));
  ASSERT_TRUE(runner.executor().read_hidden(0, 12, states.data()).ok());
  ASSERT_TRUE(runner.executor().read_hidden(7, 5, piece.data()).ok());
  EXPECT_TRUE(same_bits(piece, std::vector<float>(states.end() - static_cast<std::ptrdiff_t>(5 * dim), states.end())));
  for (const auto& [first, rows] : {std::pair(-1, 1), std::pair(0, 13), std::pair(12, 1)})
    EXPECT_EQ(runner.executor().read_hidden(first, rows, states.data()).code(), Code::internal);
  EXPECT_EQ(runner.pass(batch, logits, [] { return true; }).code(), Code::cancelled);
  EXPECT_EQ(runner.executor().read_hidden(0, 1, states.data()).code(), Code::internal) << "of a pass that failed";
}

TEST(CpuOps, CancelsBetweenOps) {
  const SmallModel model(mixture_shape(DType::f16));
  Runner runner(model, {.expert_slots = 1});
  kv::SequenceState sequence = runner.new_sequence();
  ASSERT_TRUE(sequence.reserve(4).ok());
  kv::Batch batch;
  batch.sequences = {&sequence};
  for (std::int32_t i = 0; i < 4; ++i) batch.rows.push_back({i, 0, i, true});
  int asked = 0;
  std::vector<float> logits;
  ASSERT_TRUE(runner.pass(batch, logits, [&] { return ++asked < 0; }).ok());
  const int all = asked;
  EXPECT_GT(all, 40);
  for (int stop = 1; stop <= all; stop += 7) {
    asked = 0;
    logits.clear();
    EXPECT_EQ(runner.pass(batch, logits, [&] { return ++asked == stop; }).code(), Code::cancelled);
    EXPECT_TRUE(logits.empty());
    EXPECT_EQ(asked, stop);  // nobody asks again
  }
}

TEST(CpuOps, RefusesTokensAndRowsItCannotTake) {
  const SmallModel model(SmallShape{});
  Runner runner(model, {.max_rows = 4});
  kv::SequenceState sequence = runner.new_sequence();
  ASSERT_TRUE(sequence.reserve(8).ok());
  kv::Batch batch;
  batch.sequences = {&sequence};
  std::vector<float> logits;
  for (const std::int32_t token : {-1, 50, 1 << 30}) {
    batch.rows = {{token, 0, 0, true}};
    EXPECT_EQ(runner.pass(batch, logits).code(), Code::invalid_argument);
  }
  batch.rows.assign(5, {1, 0, 0, true});
  EXPECT_EQ(runner.pass(batch, logits).code(), Code::internal);
  batch.rows = {{1, 0, 64, true}};  // beyond what was reserved
  EXPECT_EQ(runner.pass(batch, logits).code(), Code::internal);
  batch.rows = {{1, 3, 0, true}};
  EXPECT_EQ(runner.pass(batch, logits).code(), Code::internal);
  Budget budget(1 << 20);
  kv::SequenceState on_device(std::make_shared<kv::BlockPool>(model.layout().with(DType::f16, 0), budget));
  ASSERT_TRUE(on_device.reserve(1).ok());
  batch.sequences = {&on_device};
  batch.rows = {{1, 0, 0, true}};
  EXPECT_EQ(runner.pass(batch, logits).code(), Code::internal);
  batch.sequences = {&sequence};
  EXPECT_TRUE(logits.empty());
  batch.rows = {{1, 0, 0, false}};  // nobody wants logits: fine
  EXPECT_TRUE(runner.pass(batch, logits).ok());
  EXPECT_TRUE(logits.empty());
  EXPECT_EQ(runner.executor().describe(), fmt::format("cpu {}, 2 threads", device::isa_name(device::best_isa())));
  EXPECT_EQ(runner.executor().counters().passes, 8u);
}

}  // namespace
}  // namespace millrace::exec::test
