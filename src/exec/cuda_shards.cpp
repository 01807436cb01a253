#include "exec/cuda_shards.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/thread_pool.h"
#include "exec/cuda_executor_impl.h"

namespace millrace::exec {
namespace {

class ShardedExecutor final : public Executor {
 public:
  explicit ShardedExecutor(std::size_t shards) : threads_({.threads = static_cast<int>(shards), .pin = false}) {}
  Status add(CudaShard shard) {
    shard.options.brings_results = members_.empty();
    Member& member = members_.emplace_back();
    member.device = shard.options.device;
    member.program = &shard.program;
    MR_ASSIGN_OR_RETURN(member.executor, make_cuda_executor(shard.units, shard.weights, shard.vram, shard.options));
    return {};
  }

  Status prepare(const Program& program, const PassLimits& limits) override;
  Status run(const kv::Batch& batch, const std::function<bool()>& cancelled) override;
  std::int64_t cheap_rows() const override { return first().cheap_rows(); }
  std::int64_t prompt_chunk() const override { return first().prompt_chunk(); }
  Logits last_logits() const override { return first().last_logits(); }
  Status read_hidden(std::int64_t from, std::int64_t rows, float* out) const override {
    return first().read_hidden(from, rows, out);
  }
  std::int64_t top_logits_limit() const override { return first().top_logits_limit(); }
  void bring_top_logits_only(bool only) override {
    for (Member& member : members_) member.executor->bring_top_logits_only(only);
  }
  TopLogits last_top_logits(std::int64_t row) const override { return first().last_top_logits(row); }
  ExecCounters counters() const override;
  std::string describe() const override;
  std::string_view numerics() const override { return first().numerics(); }

 private:
  struct Member {
    int device = 0;
    const Program* program = nullptr;
    std::unique_ptr<Executor> executor;  // a CudaExecutor
    device::DeviceBuffer gathered;       // kernels::cuda::gather_memory_bytes()
  };

  const Executor& first() const { return *members_.front().executor; }
  std::atomic_ref<std::uint32_t> failed() const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(failed_.data()));
  }
  static CudaExecutor& cuda(const Member& member) { return static_cast<CudaExecutor&>(*member.executor); }
  Status join();
  Status forget_gathers();

  device::PinnedBuffer failed_;  // a word, for all GPUs: before the members, which use it
  std::vector<Member> members_;
  Status why_;          // the present pass failed, of whoever gave up first
  ThreadPool threads_;  // one for each, the caller's being the first one's. Last: they use the others
};

Status ShardedExecutor::prepare(const Program& /*program*/, const PassLimits& limits) {
  for (Member& member : members_) MR_RETURN_IF_ERROR(member.executor->prepare(*member.program, limits));
  MR_ASSIGN_OR_RETURN(failed_, device::PinnedBuffer::allocate(sizeof(std::uint32_t), true));
  for (Member& member : members_) {
    const device::OnGpu on(member.device);
    MR_ASSIGN_OR_RETURN(member.gathered, device::DeviceBuffer::allocate(
                                             kernels::cuda::gather_memory_bytes(static_cast<int>(members_.size()))));
  }
  MR_RETURN_IF_ERROR(forget_gathers());
  return join();
}

/// Tells each where the others' memory is.
Status ShardedExecutor::join() {
  Shards shards;
  std::set<int> devices;
  for (const Member& member : members_) devices.insert(member.device);
  shards.one_device = devices.size() < members_.size();
  for (const Member& member : members_) shards.devices.push_back(cuda(member).as_shard(member.gathered.data()));
  for (const Member& member : members_) {
    const device::OnGpu on(member.device);
    for (const Member& other : members_) MR_RETURN_IF_ERROR(device::allow_stores_to(other.device));
    void* word = nullptr;
    MR_CUDA(cudaHostGetDevicePointer(&word, failed_.data(), 0));
    shards.failed = static_cast<std::uint32_t*>(word);
    cuda(member).join(shards);
    ++shards.index;
  }
  return {};
}

/// As if none had been: where one failed, the GPUs no longer agree on their number.
Status ShardedExecutor::forget_gathers() {
  for (const Member& member : members_) {
    const device::OnGpu on(member.device);
    MR_RETURN_IF_ERROR(device::clear_device(member.gathered));
  }
  failed().store(0);
  return {};
}

Status ShardedExecutor::run(const kv::Batch& batch, const std::function<bool()>& cancelled) {
  const std::function<bool()> given_up = [this] { return failed().load() != 0; };
  why_ = {};
  // Whoever fails frees the others, which wait for what it makes; what these say of it afterwards is not why.
  threads_.run([&](int m) {
    Status status = members_[static_cast<std::size_t>(m)].executor->run(batch, m == 0 ? cancelled : given_up);
    if (!status.ok() && failed().exchange(1) == 0) why_ = std::move(status);
  });
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
  return fmt::format("{} and cuda:{}, each with its rows of every matrix", first().describe(), devices.substr(1));
}

}  // namespace

Expected<std::unique_ptr<Executor>> make_sharded_executor(std::vector<CudaShard> shards) {
  auto executor = std::make_unique<ShardedExecutor>(shards.size());
  for (CudaShard& shard : shards) MR_RETURN_IF_ERROR(executor->add(std::move(shard)));
  return std::unique_ptr<Executor>(std::move(executor));
}

void load_all_kernels_first() { setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

}  // namespace millrace::exec
