// What goes to the processor and comes back across the link, and what several GPUs bring together. Nobody is waited
// for: flags have the number that is asked for from the beginning. Two "devices" are streams of the one device here, so
// that a gather moves its bytes within one memory and not between two.
#include <fmt/format.h>

#include <array>
#include <memory>

#include "cuda_kernels/shapes.h"
#include "kernels/cuda/launchers.h"

namespace millrace::bench {
namespace {

using namespace kernels::cuda;

std::uint32_t* zero(Case& c) { return c.holds(std::vector<std::uint32_t>(1, 0)); }

void time_floats(Suite& suite, const Dense& m, int rows) {
  const std::int64_t count = std::int64_t{rows} * m.dim;
  const double bytes = sizeof(float) * static_cast<double>(count);
  suite.time("hand_out", m.name, rows, [=](Case& c) {
    const float* const from = c.reads<float>(count);
    float* const to = c.host<float>(count);
    auto *const flag = c.host<std::uint32_t>(1), *const arrived = zero(c);
    c.sends(bytes);
    return [=](cudaStream_t stream) { return hand_out(from, count, to, flag, 1, arrived, stream); };
  });
  suite.time("take_in", m.name, rows, [=](Case& c) {
    TakeInCall call;
    call.parts[0] = {c.host<float>(count), c.changes<float>(count), m.dim, m.dim};
    call.count = 1;
    call.rows = rows;
    call.add = true;
    call.flag = c.host<std::uint32_t>(1);
    call.seen = zero(c);
    c.receives(bytes);
    return [=](cudaStream_t stream) { return take_in(call, stream); };
  });
}

void time_entries(Suite& suite, const Mixture& m, int rows) {
  const int entries = rows * m.top_k;
  suite.time("hand_out_experts", m.name, rows, [=](Case& c) {
    HandOutExpertsCall call;
    call.count = std::int64_t{rows} * m.dim;
    call.from = c.reads<float>(call.count);
    call.chosen = c.holds(choose_experts(rows, m.experts, m.top_k).chosen);
    call.entries = entries;
    call.to = c.host<float>(call.count);
    call.to_chosen = c.host<std::int32_t>(entries);
    call.flag = c.host<std::uint32_t>(1);
    call.number = 1;
    call.arrived = zero(c);
    c.sends(sizeof(float) * (static_cast<double>(call.count) + entries));
    return [=](cudaStream_t stream) { return hand_out_experts(call, stream); };
  });
  suite.time("take_in_experts", fmt::format("{}, every second entry", m.name), rows, [=](Case& c) {
    TakeInExpertsCall call;
    auto* const place = c.host<std::int32_t>(entries);
    for (int e = 0; e < entries && place != nullptr; ++e) place[e] = e % 2 == 0 ? e / 2 : -1;
    const int came = (entries + 1) / 2;
    call.place = place;
    call.from = c.host<float>(std::int64_t{came} * m.dim);
    call.from_stride = call.cols = m.dim;
    call.to = c.room<float>(std::int64_t{entries} * m.dim);
    call.entries = entries;
    call.flag = c.host<std::uint32_t>(1);
    call.seen = zero(c);
    const double bytes = sizeof(float) * static_cast<double>(came) * m.dim;
    c.receives(bytes + sizeof(std::int32_t) * entries);
    c.moves(bytes);
    return [=](cudaStream_t stream) { return take_in_experts(call, stream); };
  });
  suite.time("claim_experts", fmt::format("{}, a quarter have slots", m.name), rows, [=](Case& c) {
    constexpr int kParts = 3;
    const auto* const memory = c.room<std::byte>(1024);
    std::vector<const std::byte*> here, in_ram;
    for (int i = 0; i < m.experts * kParts; ++i) {
      here.push_back(i / kParts % 4 == 0 ? memory + 256 : memory);
      in_ram.push_back(memory + 512);
    }
    ClaimExpertsCall call;
    call.chosen = c.holds(choose_experts(rows, m.experts, m.top_k).chosen);
    call.entries = entries;
    call.experts = m.experts;
    call.parts = kParts;
    call.here = c.holds(here);
    call.absent = memory;
    call.in_ram = c.holds(in_ram);
    call.permille = 300;
    call.table = c.writes<const std::byte*>(m.experts * kParts);
    return [=](cudaStream_t stream) { return claim_experts(call, stream); };
  });
}

/// Work of a second "device" beside the first one's, in a stream of its own.
class Second {
 public:
  Second() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (cudaEvent_t* event : {&begin_, &end_})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
  }
  Second(const Second&) = delete;
  Second& operator=(const Second&) = delete;
  ~Second() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  template <typename Both>
  cudaError_t beside(cudaStream_t stream, const Both& both) const {
    check(cudaEventRecord(begin_, stream), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream_, begin_), "cudaStreamWaitEvent");
    const cudaError_t error = both(stream_);
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream, end_), "cudaStreamWaitEvent");
    return error;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// Both "devices'" calls, each with half of the columns.
std::array<GatherCall, 2> gathers(Case& c, int rows, int cols) {
  const std::int64_t n = std::int64_t{rows} * cols;
  std::array<GatherCall, 2> calls;
  auto* const failed = c.host<std::uint32_t>(1);
  GatherCall::Target targets[2];
  for (int d = 0; d < 2; ++d) {
    const auto bytes = kGatherStateBytes + gather_word_bytes(2);
    const std::vector<std::byte> zeros(bytes);
    auto* const memory = c.holds(zeros);
    c.moves(-static_cast<double>(bytes));
    targets[d].first = d * cols / 2;
    targets[d].own_cols = cols / 2;
    targets[d].out = c.writes<float>(n);
    targets[d].q8 = c.q8_room(rows, cols);
    targets[d].state = reinterpret_cast<GatherState*>(memory);
    targets[d].words = memory + kGatherStateBytes;
  }
  for (int d = 0; d < 2; ++d) {
    GatherCall& call = calls[static_cast<std::size_t>(d)];
    call.own = c.reads<float>(n / 2);
    call.rows = rows;
    call.cols = cols;
    call.devices = 2;
    call.index = d;
    call.one_device = true;
    call.targets[0] = targets[0];
    call.targets[1] = targets[1];
    call.failed = failed;
  }
  return calls;
}

void time_gathers(Suite& suite, const Dense& m, int rows, const std::shared_ptr<Second>& second) {
  const auto time = [&](std::string_view launcher, cudaError_t (*launch)(const GatherCall&, cudaStream_t)) {
    suite.time(launcher, fmt::format("{}, two streams of one device", m.name), rows, [=](Case& c) {
      const std::array<GatherCall, 2> calls = gathers(c, rows, m.dim);
      if (launch == meet) c.moves(-c.bytes());  // nothing
      return [=](cudaStream_t stream) {
        return second->beside(stream, [&](cudaStream_t other) {
          const cudaError_t error = launch(calls[1], other);
          return error != cudaSuccess ? error : launch(calls[0], stream);
        });
      };
    });
  };
  time("gather", gather);
  if (rows == 1) time("meet", meet);
}

}  // namespace

void time_exchange(Suite& suite) {
  const auto second = suite.lists() ? nullptr : std::make_shared<Second>();
  for (const int rows : kFewRows) {
    for (const Dense& m : {kLlama8b, kLlama70b}) {
      time_floats(suite, m, rows);
      time_gathers(suite, m, rows, second);
    }
    for (const Mixture& m : kMixtures) time_entries(suite, m, rows);
  }
  time_gathers(suite, kLlama70b, kPromptRows, second);
}

}  // namespace millrace::bench
