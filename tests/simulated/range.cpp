// device/range.h over simulated devices: addresses first, memory where it is asked for.
#include "device/range.h"

#include <sys/mman.h>

#include <vector>

#include "base/bytes.h"
#include "device.h"

namespace millrace::device {
namespace {

constexpr std::uint64_t kGranule = 2 * kMiB;

class SimulatedRange final : public Range {
 public:
  SimulatedRange(int device, std::byte* base, std::size_t granules)
      : device_(device), base_(base), backed_(granules, false) {}
  ~SimulatedRange() override {
    release(0, bytes());
    munmap(base_, bytes());
  }

  std::byte* data() const override { return base_; }
  std::uint64_t bytes() const override { return backed_.size() * kGranule; }
  std::uint64_t granule_bytes() const override { return kGranule; }
  std::uint64_t backed_bytes() const override { return count_ * kGranule; }

  Status back(std::uint64_t offset, std::uint64_t bytes) override {
    if (bytes == 0) return {};
    for (std::size_t g = offset / kGranule; g <= (offset + bytes - 1) / kGranule; ++g) {
      if (backed_[g]) continue;
      if (!simulated::take(device_, kGranule))
        return error(Code::out_of_budget, "the GPU is out of memory; close what else uses it or ask for less");
      mprotect(base_ + g * kGranule, kGranule, PROT_READ | PROT_WRITE);
      backed_[g] = true;
      ++count_;
    }
    return {};
  }

  void release(std::uint64_t offset, std::uint64_t bytes) override {
    for (std::size_t g = offset / kGranule; g < (offset + bytes) / kGranule; ++g) {
      if (!backed_[g]) continue;
      madvise(base_ + g * kGranule, kGranule, MADV_DONTNEED);
      mprotect(base_ + g * kGranule, kGranule, PROT_NONE);  // whoever still reads there is found
      simulated::give(device_, kGranule);
      backed_[g] = false;
      --count_;
    }
  }

 private:
  const int device_;
  std::byte* const base_;
  std::vector<bool> backed_;
  std::uint64_t count_ = 0;
};

}  // namespace

Expected<std::unique_ptr<Range>> reserve_device_range(std::uint64_t bytes) {
  MR_ASSIGN_OR_RETURN(const int device, present_gpu());
  const std::size_t granules = std::max<std::uint64_t>(1, (bytes + kGranule - 1) / kGranule);
  void* const base = mmap(nullptr, granules * kGranule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return error(Code::out_of_budget, "no addresses are left for {}", format_bytes(bytes));
  return std::unique_ptr<Range>(new SimulatedRange(device, static_cast<std::byte*>(base), granules));
}

}  // namespace millrace::device
