// Activations beyond f16's range, on the GPU.
#include "engine/large.h"

#include <unistd.h>

#include <filesystem>

#include "cuda_engine/on_gpu.h"

namespace millrace::engine {
namespace {

using namespace test;

class LargeActivationsOnGpu : public OnGpu {};

TEST_F(LargeActivationsOnGpu, ChangeNothing) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("millrace-large-gpu-{}", getpid());
  std::filesystem::create_directories(folder);
  EngineOptions options;
  options.device.choice = DeviceChoice::cuda;
  options.device.threads = 2;
  expect_large_activations_change_nothing(options, folder.string());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace millrace::engine
