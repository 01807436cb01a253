// Activations beyond f16's range, on the CPU.
#include "engine/large.h"

#include <unistd.h>

#include <filesystem>

namespace millrace::engine {
namespace {

using namespace test;

TEST(LargeActivations, ChangeNothing) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("millrace-large-{}", getpid());
  std::filesystem::create_directories(folder);
  for (const DType kv : {DType::f32, DType::f16}) {
    EngineOptions options = roomy(kGranite.model());
    options.kv.dtype = kv;
    expect_large_activations_change_nothing(options, folder.string());
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace millrace::engine
