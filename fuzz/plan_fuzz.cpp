// Plan files from anywhere: what parses is written and read again unchanged.
#include <cstdlib>

#include "residency/plan_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace::residency;
  const auto saved = parse_plan_json({reinterpret_cast<const char*>(data), size});
  if (!saved.ok()) return 0;
  const std::string written = plan_to_json(*saved);
  const auto again = parse_plan_json(written);
  if (!again.ok() || plan_to_json(*again) != written) std::abort();
  return 0;
}
