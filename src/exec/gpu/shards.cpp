#include "exec/gpu/shards.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/thread_pool.h"
#include "exec/gpu/executor_impl.h"

namespace millrace::exec {
namespace {

class ShardedExecutor final : public Executor {
 public:
  ShardedExecutor(std::size_t shards, residency::Budget& ram, bool through_host)
      : ram_(ram), through_host_(through_host), threads_({.threads = static_cast<int>(shards), .pin = false}) {}
  Status add(GpuShard shard) {
    shard.options.brings_results = members_.empty();
    if (members_.empty()) experts_ = shard.options.experts.slots;
    Member& member = members_.emplace_back();
    member.device = shard.options.device;
    member.program = &shard.program;
    member.vram = &shard.vram;
    MR_ASSIGN_OR_RETURN(member.executor, make_gpu_executor(shard.units, shard.weights, shard.vram, shard.options));
    return {};
  }

  Status prepare(const Program& program, const PassLimits& limits) override;
  Status run(const kv::Batch& batch, const std::function<bool()>& cancelled) override;
  std::int64_t cheap_rows() const override { return first().cheap_rows(); }
  std::int64_t prompt_chunk() const override { return first().prompt_chunk(); }
  Status takes_pictures(bool /*sees_ahead*/) const override {
    return error(Code::unsupported,
                 "several GPUs take no pictures yet; leave one to compute (--gpus), or --device cpu");
  }
  Logits last_logits() const override { return first().last_logits(); }
  Status read_hidden(std::int64_t from, std::int64_t rows, float* out) const override {
    return first().read_hidden(from, rows, out);
  }
  std::int64_t top_logits_limit() const override { return first().top_logits_limit(); }
  void bring_top_logits_only(bool only) override {
    for (Member& member : members_) member.executor->bring_top_logits_only(only);
  }
  void draw(std::span<const kernels::DrawRule> rules) override {
    for (Member& member : members_) member.executor->draw(rules);
  }
  TopLogits last_top_logits(std::int64_t row) const override { return first().last_top_logits(row); }
  ExecCounters counters() const override;
  std::string describe() const override;
  std::string_view numerics() const override { return first().numerics(); }

 private:
  struct Member {
    int device = 0;
    const Program* program = nullptr;
    residency::Budget* vram = nullptr;
    std::unique_ptr<Executor> executor;  // a GpuExecutor
    residency::Reservation reservation;  // of gathers
    device::DeviceBuffer gathers;        // GatherState, and words behind it where they do not go through the host
    device::PinnedBuffer host_words;     // else

    kernels::gpu::GatherState* state() const { return reinterpret_cast<kernels::gpu::GatherState*>(gathers.data()); }
  };

  const Executor& first() const { return *members_.front().executor; }
  std::atomic_ref<std::uint32_t> failed() const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(failed_.data()));
  }
  static GpuExecutor& cuda(const Member& member) { return static_cast<GpuExecutor&>(*member.executor); }
  ExpertShare* expert_share() const { return cuda(members_.front()).expert_share(); }
  Status reach_each_other();
  Status make_gather_memory();
  Status join();
  Status share_experts();
  Status begin_pass();
  void end_pass(bool failed);
  Status forget_gathers();

  residency::Budget& ram_;
  bool through_host_;
  residency::Reservation words_reservation_;  // of all host_words
  device::PinnedBuffer failed_;               // a word, for all GPUs: before the members, which use it
  std::vector<Member> members_;
  residency::DeviceExperts* experts_ = nullptr;  // null: all are in VRAM, or there are none
  Status why_;                                   // the present pass failed, of whoever gave up first
  ThreadPool threads_;  // one for each, the caller's being the first one's. Last: they use the others
};

Status ShardedExecutor::prepare(const Program& /*program*/, const PassLimits& limits) {
  for (Member& member : members_) MR_RETURN_IF_ERROR(member.executor->prepare(*member.program, limits));
  MR_ASSIGN_OR_RETURN(failed_, device::PinnedBuffer::allocate(sizeof(std::uint32_t), true));
  MR_RETURN_IF_ERROR(reach_each_other());
  MR_RETURN_IF_ERROR(make_gather_memory());
  MR_RETURN_IF_ERROR(forget_gathers());
  MR_RETURN_IF_ERROR(join());
  return experts_ == nullptr ? Status() : share_experts();
}

/// The first GPU hands out to the processor, and all take in what it computes.
Status ShardedExecutor::share_experts() {
  for (const Member& member : members_) {
    MR_RETURN_IF_ERROR(cuda(members_.front()).add_biases(cuda(member)));
    if (&member != &members_.front()) MR_RETURN_IF_ERROR(cuda(member).follow(*expert_share()));
  }
  return {};
}

/// Where one cannot write to another's memory, all goes through the host's.
Status ShardedExecutor::reach_each_other() {
  for (const Member& member : members_) {
    const device::OnGpu on(member.device);
    for (const Member& other : members_) {
      if (through_host_) return {};
      Status reached = device::allow_stores_to(other.device);
      if (reached.ok()) continue;
      if (reached.code() != Code::unsupported) return reached;
      log::info("{}: what the GPUs make goes through the host's memory", reached.message());
      through_host_ = true;
    }
  }
  return {};
}

Status ShardedExecutor::make_gather_memory() {
  const GatherMemory all = gather_memory(members_.size());
  const std::uint64_t on_gpu = through_host_ ? kernels::gpu::kGatherStateBytes : all.vram_bytes;
  if (through_host_) {
    MR_ASSIGN_OR_RETURN(words_reservation_, ram_.reserve("words between GPUs", all.ram_bytes));
  }
  for (Member& member : members_) {
    const device::OnGpu on(member.device);
    MR_ASSIGN_OR_RETURN(member.reservation, member.vram->reserve("gathers", on_gpu));
    MR_ASSIGN_OR_RETURN(member.gathers, device::DeviceBuffer::allocate(on_gpu));
    if (!through_host_) continue;
    MR_ASSIGN_OR_RETURN(member.host_words, device::PinnedBuffer::allocate(all.ram_bytes / members_.size(), true));
  }
  return {};
}

/// Tells each where the others' memory is.
Status ShardedExecutor::join() {
  Peers peers;
  std::set<int> devices;
  for (const Member& member : members_) devices.insert(member.device);
  peers.one_device = devices.size() < members_.size();
  peers.through_host = through_host_;
  for (const Member& member : members_)
    peers.devices.push_back(
        cuda(member).as_peer(member.state(), member.gathers.data() + kernels::gpu::kGatherStateBytes));
  for (const Member& member : members_) {
    const device::OnGpu on(member.device);
    for (std::size_t m = 0; through_host_ && m < members_.size(); ++m) {
      MR_ASSIGN_OR_RETURN(peers.devices[m].gather_words, device::seen_by_gpu(members_[m].host_words.data()));
    }
    MR_ASSIGN_OR_RETURN(std::byte* const failed, device::seen_by_gpu(failed_.data()));
    peers.failed = reinterpret_cast<std::uint32_t*>(failed);
    cuda(member).join(peers);
    ++peers.index;
  }
  return {};
}

/// As if none had been: where one failed, the GPUs no longer agree on their number.
Status ShardedExecutor::forget_gathers() {
  for (const Member& member : members_) {
    const device::OnGpu on(member.device);
    MR_RETURN_IF_ERROR(device::clear_device(member.gathers));
    if (through_host_) std::memset(member.host_words.data(), 0, member.host_words.bytes());
  }
  failed().store(0);
  return {};
}

/// All GPUs see the same experts in slots.
Status ShardedExecutor::begin_pass() {
  if (experts_ == nullptr) return {};
  MR_RETURN_IF_ERROR(experts_->begin_pass());
  for (const Member& member : members_) cuda(member).follow_from(expert_share()->last_number());
  return {};
}

void ShardedExecutor::end_pass(bool failed) {
  if (experts_ == nullptr) return;
  if (failed) expert_share()->others_have_gone();
  experts_->end_pass();
}

Status ShardedExecutor::run(const kv::Batch& batch, const std::function<bool()>& cancelled) {
  // Asked from all of their threads: one of them may wait for RAM, on which the others' launches wait.
  const std::function<bool()> given_up = [&] { return failed().load() != 0 || (cancelled && cancelled()); };
  why_ = {};
  MR_RETURN_IF_ERROR(begin_pass());
  // Whoever fails frees the others, which wait for what it makes; what these say of it afterwards is not why.
  threads_.run([&](int m) {
    Status status = members_[static_cast<std::size_t>(m)].executor->run(batch, given_up);
    if (status.ok()) return;
    if (failed().exchange(1) == 0) why_ = std::move(status);
    if (m == 0 && experts_ != nullptr) expert_share()->let_others_go();
  });
  end_pass(failed().load() != 0);
  if (failed().load() == 0) return {};
  MR_RETURN_IF_ERROR(forget_gathers());
  return why_.ok() ? error(Code::io_error, "the GPUs waited for each other for five minutes in vain") : why_;
}

ExecCounters ShardedExecutor::counters() const {
  ExecCounters all = first().counters();
  for (std::size_t m = 1; m < members_.size(); ++m) all.weight_bytes += members_[m].executor->counters().weight_bytes;
  return all;
}

std::string ShardedExecutor::describe() const {
  std::string devices;
  for (std::size_t m = 1; m < members_.size(); ++m) devices += fmt::format(",{}", members_[m].device);
  return fmt::format("{} and cuda:{}, each with its rows of every matrix{}", first().describe(), devices.substr(1),
                     through_host_ ? ", through the host's memory" : "");
}

}  // namespace

GatherMemory gather_memory(std::size_t gpus) {
  const std::uint64_t words = kernels::gpu::gather_word_bytes(static_cast<int>(gpus));
  return {kernels::gpu::kGatherStateBytes + words, gpus * words};
}

Expected<std::unique_ptr<Executor>> make_sharded_executor(std::vector<GpuShard> shards, residency::Budget& ram,
                                                          bool through_host) {
  auto executor = std::make_unique<ShardedExecutor>(shards.size(), ram, through_host);
  for (GpuShard& shard : shards) MR_RETURN_IF_ERROR(executor->add(std::move(shard)));
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace millrace::exec
