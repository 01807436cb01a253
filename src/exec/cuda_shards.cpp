#include "exec/cuda_shards.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "exec/cuda_executor_impl.h"

namespace millrace::exec {
namespace {

/// A thread that does one thing at a time.
class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    {
      const MutexLock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// REQUIRES: what was begun before is done.
  void begin(std::function<void()> task) {
    {
      const MutexLock lock(mutex_);
      task_ = std::move(task);
    }
    changed_.notify_all();
  }
  void wait() {
    MutexLock lock(mutex_);
    changed_.wait(mutex_, [&]() MR_REQUIRES(mutex_) { return !task_; });
  }

 private:
  void work() {
    MutexLock lock(mutex_);
    while (true) {
      changed_.wait(mutex_, [&]() MR_REQUIRES(mutex_) { return ending_ || task_; });
      if (!task_) return;
      lock.unlock();
      task_();
      lock.lock();
      task_ = nullptr;
      changed_.notify_all();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::function<void()> task_ MR_GUARDED_BY(mutex_);
  bool ending_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

class ShardedExecutor final : public Executor {
 public:
  Status add(CudaShard shard, bool first) {
    shard.options.brings_results = first;
    Member& member = members_.emplace_back();
    member.device = shard.options.device;
    member.program = &shard.program;
    MR_ASSIGN_OR_RETURN(member.executor, make_cuda_executor(shard.units, shard.weights, shard.vram, shard.options));
    if (!first) member.worker = std::make_unique<Worker>();
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
    Status status;                       // of the present pass
    std::unique_ptr<Worker> worker;      // null: the caller's thread. Last: it uses the others
  };

  const Executor& first() const { return *members_.front().executor; }
  std::atomic_ref<std::uint32_t> failed() const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(failed_.data()));
  }
  static CudaExecutor& cuda(const Member& member) { return static_cast<CudaExecutor&>(*member.executor); }
  Status join();
  Status forget_gathers();
  void run(Member& member, const kv::Batch& batch, const std::function<bool()>& cancelled);

  device::PinnedBuffer failed_;  // a word, for all GPUs: before the members, which use it
  std::vector<Member> members_;
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

/// One GPU's part of the pass. Whoever fails frees the others, which wait for what it makes.
void ShardedExecutor::run(Member& member, const kv::Batch& batch, const std::function<bool()>& cancelled) {
  member.status = member.executor->run(batch, cancelled);
  if (!member.status.ok()) failed().store(1);
}

Status ShardedExecutor::run(const kv::Batch& batch, const std::function<bool()>& cancelled) {
  const std::function<bool()> given_up = [this] { return failed().load() != 0; };
  for (std::size_t m = 1; m < members_.size(); ++m)
    members_[m].worker->begin([this, &member = members_[m], &batch, &given_up] { run(member, batch, given_up); });
  run(members_.front(), batch, cancelled);
  for (std::size_t m = 1; m < members_.size(); ++m) members_[m].worker->wait();
  if (failed().load() == 0) return {};
  Status why;  // of the one that gave up first, not of those that it left waiting
  for (const Member& member : members_) {
    const bool left =
        member.status.message() == kGaveUp || (&member != &members_.front() && member.status.code() == Code::cancelled);
    if (why.ok() && !member.status.ok() && !left) why = member.status;
  }
  if (why.ok()) why = error(Code::io_error, "the GPUs waited for each other for five minutes in vain");
  MR_RETURN_IF_ERROR(forget_gathers());
  return why;
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
  auto executor = std::make_unique<ShardedExecutor>();
  for (std::size_t s = 0; s < shards.size(); ++s) MR_RETURN_IF_ERROR(executor->add(std::move(shards[s]), s == 0));
  return std::unique_ptr<Executor>(std::move(executor));
}

void load_all_kernels_first() { setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

}  // namespace millrace::exec
