#include "device/vulkan/self_test.h"

#include <vulkan_spirv/device.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "device/device.h"
#include "device/vulkan/stream.h"

namespace millrace::device::vulkan {
namespace {

constexpr Kernel kSelfTest{"self_test", device_self_test};
constexpr std::uint32_t kOperands = 8192, kThreads = 64;

struct Operands {
  std::vector<float> a, b, c;
};

/// Those of a model's size, and some that cancel.
Operands make_operands() {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  Operands made;
  for (std::uint32_t i = 0; i < kOperands; ++i) {
    const auto size = [&] { return std::ldexp(normal(random), static_cast<int>(random() % 24) - 12); };
    made.a.push_back(size());
    made.b.push_back(size());
    made.c.push_back(i % 4 == 0 ? -made.a[i] * made.b[i] : size());
  }
  return made;
}

struct Operation {
  const char* name;
  float (*of)(float a, float b, float c);
};
// In the order of self_test.comp's numbers.
constexpr Operation kOperations[] = {
    {"fma", [](float a, float b, float c) { return std::fma(a, b, c); }},
    {"products", [](float a, float b, float) { return a * b; }},
    {"sums", [](float a, float b, float) { return a + b; }},
    {"differences", [](float a, float b, float) { return a - b; }},
    {"division", [](float a, float b, float) { return a / b; }},
    {"square roots", [](float a, float, float) { return std::sqrt(std::abs(a)); }},
    {"integers", [](float a, float, float) { return static_cast<float>(std::bit_cast<std::int32_t>(a) >> 6); }},
    {"a product and a sum", [](float a, float b, float c) { return a * b + c; }},
};

/// The operands in the device's memory, and room for a result.
class Test {
 public:
  static Expected<Test> create() {
    Test test;
    test.operands_ = make_operands();
    const std::vector<float>* const from[] = {&test.operands_.a, &test.operands_.b, &test.operands_.c};
    for (int i = 0; i < 4; ++i) {
      MR_ASSIGN_OR_RETURN(test.memory_[i], DeviceBuffer::allocate(kOperands * sizeof(float)));
      if (i < 3) MR_RETURN_IF_ERROR(write_device(test.memory_[i].data(), from[i]->data(), kOperands * sizeof(float)));
    }
    return test;
  }
  /// How many results differ from the processor's.
  Expected<std::uint32_t> differences(std::uint32_t operation, std::uint32_t attempt) const {
    struct {
      std::uint64_t operands[3], result;
      std::uint32_t count;
    } arguments{};
    for (int i = 0; i < 3; ++i) arguments.operands[i] = reinterpret_cast<std::uint64_t>(memory_[i].data());
    arguments.result = reinterpret_cast<std::uint64_t>(memory_[3].data());
    arguments.count = kOperands;
    Dispatch dispatch;
    dispatch.kernel = &kSelfTest;
    dispatch.constants = {operation, attempt};
    const auto* const bytes = reinterpret_cast<const std::byte*>(&arguments);
    dispatch.arguments.assign(bytes, bytes + sizeof arguments);
    dispatch.groups[0] = kOperands / kThreads;
    MR_RETURN_IF_ERROR(launch({}, {&dispatch, 1}));
    std::vector<float> got(kOperands);
    MR_RETURN_IF_ERROR(read_device(got.data(), memory_[3].data(), kOperands * sizeof(float)));
    std::uint32_t differ = 0;
    for (std::uint32_t i = 0; i < kOperands; ++i) {
      const float want = kOperations[operation].of(operands_.a[i], operands_.b[i], operands_.c[i]);
      differ += std::bit_cast<std::uint32_t>(want) != std::bit_cast<std::uint32_t>(got[i]) ? 1 : 0;
    }
    return differ;
  }

 private:
  Operands operands_;
  DeviceBuffer memory_[4];
};

}  // namespace

Status self_test(Driver& driver) {
  MR_ASSIGN_OR_RETURN(const Test test, Test::create());
  driver.fma = Fma::fused;
  MR_ASSIGN_OR_RETURN(const std::uint32_t split, test.differences(0, 0));
  if (split > 0) driver.fma = Fma::own;
  std::string inexact;
  for (std::uint32_t i = 0; i < std::size(kOperations); ++i) {
    MR_ASSIGN_OR_RETURN(const std::uint32_t differ, test.differences(i, 1));
    if (differ > 0)
      inexact += fmt::format("{}{} ({} of {})", inexact.empty() ? "" : ", ", kOperations[i].name, differ, kOperands);
  }
  driver.promises_bits = inexact.empty();
  log::info("vulkan:{} {}: fma {}", driver.index, driver.offer.name,
            split == 0 ? "is the device's, which rounds once"
                       : "is made of products and sums, because the device's rounds twice");
  if (!driver.promises_bits)
    log::warn("vulkan:{} {} does not compute exactly: {}; its tokens may differ from other devices'", driver.index,
              driver.offer.name, inexact);
  return {};
}

}  // namespace millrace::device::vulkan
