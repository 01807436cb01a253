// What devices exchange with the processor and with each other: the same words and flags as on GPUs, waited for by the
// stream's thread.

#include "kernels/gpu/exchange.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "kernels.h"
#include "kernels/claimed.h"
#include "kernels/gpu/gather.h"

namespace millrace::kernels::gpu {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::minutes kMostWait{5};

std::uint32_t load(const std::uint32_t* word) {
  return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
}
void store(std::uint32_t* word, std::uint32_t value) { std::atomic_ref(*word).store(value, std::memory_order_release); }

/// A short rest between looks, since the threads that are waited for need the processor, too.
void rest() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

/// Nothing that waits on a lost device goes on.
bool here_is_lost() {
  const Expected<int> device = device::present_gpu();
  return device.ok() && simulated::is_lost(*device);
}

void await(const std::uint32_t* flag, std::uint32_t number, std::uint32_t* seen) {
  while (static_cast<std::int32_t>(load(flag) - number) < 0) {
    if (here_is_lost()) return;
    rest();
  }
  simulated::continue_now();
  store(seen, number);
}

void claim(const ClaimExpertsCall& call) {
  std::vector<bool> chosen(static_cast<std::size_t>(call.experts)), crosses(chosen.size());
  for (std::int32_t i = 0; i < call.entries; ++i) chosen[static_cast<std::size_t>(call.chosen[i])] = true;
  const auto missed = [&](std::int32_t e) {
    return chosen[static_cast<std::size_t>(e)] && call.here[std::int64_t{e} * call.parts] == call.absent;
  };
  std::int32_t all = 0;
  for (std::int32_t e = 0; e < call.experts; ++e) all += missed(e) ? 1 : 0;
  std::int32_t left = claimed_of(all, call.permille);
  for (std::int32_t e = 0; e < call.experts && left > 0; ++e) {
    if (!missed(e) || call.in_ram[std::int64_t{e} * call.parts] == nullptr) continue;
    crosses[static_cast<std::size_t>(e)] = true;
    --left;
  }
  for (std::int64_t i = 0; i < std::int64_t{call.experts} * call.parts; ++i)
    call.table[i] = crosses[static_cast<std::size_t>(i / call.parts)] ? call.in_ram[i] : call.here[i];
}

void take_rows(const TakeInCall& call) {
  await(call.flag, call.number, call.seen);
  for (int p = 0; p < call.count; ++p) {
    const TakenIn& part = call.parts[p];
    for (std::int64_t i = 0; i < std::int64_t{call.rows} * part.cols; ++i) {
      float& to = part.to[i / part.cols * part.to_stride + i % part.cols];
      to = call.add ? to + part.from[i] : part.from[i];
    }
  }
}

void take_experts(const TakeInExpertsCall& call) {
  await(call.flag, call.number, call.seen);
  for (std::int64_t e = 0; e < call.entries; ++e)
    if (call.place[e] >= 0)
      std::copy_n(call.from + call.place[e] * call.from_stride, call.cols, call.to + e * call.cols);
}

/// Says that this device has come so far, and waits for the others.
void meet_others(const GatherCall& call) {
  GatherState& own = *call.targets[call.index].state;
  const std::uint32_t number = ++own.number;
  for (int d = 0; d < call.devices; ++d)
    if (d != call.index) store(&call.targets[d].state->told[call.index], number);
  if (own.failed != 0) return;
  const Clock::time_point until = Clock::now() + kMostWait;
  for (int d = 0; d < call.devices; ++d) {
    while (d != call.index && static_cast<std::int32_t>(load(&own.told[d]) - number) < 0) {
      if (Clock::now() > until || here_is_lost()) store(call.failed, 1);
      if (load(call.failed) != 0) {
        own.failed = 1;
        return;
      }
      rest();
    }
  }
  simulated::continue_now();
}

void put(const GatherCall::Target& target, std::int64_t to, const std::vector<float>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  simulated::give_out(values.data(), 1, count, target.out == nullptr ? nullptr : target.out + to,
                      target.q8.q == nullptr ? Q8() : Q8{target.q8.q + to, target.q8.scale + to / 32},
                      target.bf16 == nullptr ? nullptr : target.bf16 + to);
}

void gather_all(const GatherCall& call) {
  if (call.meets_first) meet_others(call);
  const GatherCall::Target& own = call.targets[call.index];
  const std::int64_t rows = call.some == nullptr ? call.rows : *call.end - *call.begin;
  std::vector<float> values(static_cast<std::size_t>(own.own_cols));
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = call.some == nullptr ? i : call.some[*call.begin + i];
    const std::int64_t to = row * call.cols + own.first;
    std::copy_n(call.own + row * own.own_cols, own.own_cols, values.data());
    for (std::size_t c = 0; call.add && c < values.size(); ++c)
      values[c] = own.out[to + static_cast<std::int64_t>(c)] + values[c];
    for (int d = 0; d < call.devices; ++d) put(call.targets[d], to, values);
  }
  meet_others(call);
}

}  // namespace

Status hand_out(const float* from, std::int64_t count, float* to, std::uint32_t* flag, std::uint32_t number,
                std::uint32_t*, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    std::copy_n(from, count, to);
    store(flag, number);
  });
}
Status hand_out_experts(const HandOutExpertsCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, [](const HandOutExpertsCall& c) {
    std::copy_n(c.from, c.count, c.to);
    std::copy_n(c.chosen, c.entries, c.to_chosen);
    store(c.flag, c.number);
  });
}
Status take_in(const TakeInCall& call, device::StreamRef stream) { return simulated::launch(stream, call, take_rows); }
Status claim_experts(const ClaimExpertsCall& call, device::StreamRef stream) {
  if (call.experts > kMostClaimedExperts) return simulated::refused();
  return simulated::launch(stream, call, claim);
}
Status take_in_experts(const TakeInExpertsCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, take_experts);
}

Status gather(const GatherCall& call, device::StreamRef stream) {
  if (call.devices < 2 || call.devices > kMostGpus) return simulated::refused();
  return simulated::launch(stream, call, gather_all);
}
Status meet(const GatherCall& call, device::StreamRef stream) {
  if (call.devices < 2 || call.devices > kMostGpus || call.through_host) return simulated::refused();
  return simulated::launch(stream, call, meet_others);
}

}  // namespace millrace::kernels::gpu
