// Files of sensitivities from anywhere: what parses is written and read again unchanged.
#include <cstdlib>

#include "app/measure/sensitivity.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace::measure;
  const auto found = parse_sensitivity({reinterpret_cast<const char*>(data), size});
  if (!found.ok()) return 0;
  const std::string written = sensitivity_to_json(*found);
  const auto again = parse_sensitivity(written);
  if (!again.ok() || sensitivity_to_json(*again) != written) std::abort();
  return 0;
}
