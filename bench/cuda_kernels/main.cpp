// How long every launcher of the GPU's kernels takes at shapes of real models, beside what the device could at best.
//
//   millrace_cuda_kernels [FILTER] [--json FILE] [--commit NAME] [--list]
//
// FILTER: those rows alone whose launcher and shape have these letters. A line: microseconds (the median of launches
// behind emptied caches, the first of two events to the second), megabytes that must move at least, GB/s and TFLOP/s
// that follow, and the least time by the device's rates as a share of the time, with what sets it. Rates are measured
// first: a copy inside the device's memory (read and written), the link each way, the tensor cores in bfloat16 and
// int8. A time has in it what lies between two events without a kernel's work; the first line says how long that is.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "base/json.h"
#include "cuda_kernels/suite.h"

namespace {

using namespace millrace::bench;

[[noreturn]] void usage() {
  fmt::print(stderr, "millrace_cuda_kernels [FILTER] [--json FILE] [--commit NAME] [--list]\n");
  std::exit(2);
}

struct Options {
  std::string filter, json, commit;
  bool list = false;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--list") {
      o.list = true;
    } else if (name == "--json" || name == "--commit") {
      if (++i == argc) usage();
      (name == "--json" ? o.json : o.commit) = argv[i];
    } else if (name.starts_with("-") || !o.filter.empty()) {
      usage();
    } else {
      o.filter = name;
    }
  }
  return o;
}

/// What bench/tables.py takes.
nlohmann::ordered_json json_of(const Suite& suite, const Options& options, const std::string& device) {
  const Rates& r = suite.rates();
  nlohmann::ordered_json all = {{"bench", "cuda_kernels"}, {"device", device}, {"commit", options.commit}};
  all["rates"] = {{"copy_gb_s", r.copy_gb},      {"to_host_gb_s", r.to_host_gb}, {"from_host_gb_s", r.from_host_gb},
                  {"bf16_tflop_s", r.bf16_tera}, {"int8_top_s", r.int8_tera},    {"least_us", r.least_us}};
  all["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : suite.rows())
    all["rows"].push_back({{"launcher", row.launcher},
                           {"shape", row.shape},
                           {"rows", row.rows},
                           {"us", row.us},
                           {"bytes", row.bytes},
                           {"operations", row.operations},
                           {"gb_s", row.bytes / row.us * 1e-3},
                           {"share", row.least_us / row.us},
                           {"bound", row.bound}});
  return all;
}

void print_rates(const Rates& r, const std::string& device) {
  fmt::print(
      "{}: copies {:.0f} GB/s; link {:.1f} GB/s to the host, {:.1f} from it; tensor cores {:.0f} TFLOP/s bfloat16,"
      " {:.0f} TOP/s int8; {:.1f} us with the smallest kernel\n",
      device, r.copy_gb, r.to_host_gb, r.from_host_gb, r.bf16_tera, r.int8_tera, r.least_us);
  fmt::print("{:18} {:52} {:>4} {:>9} {:>10} {:>7} {:>7}  {:>4} {}\n", "launcher", "shape", "rows", "us", "MB", "GB/s",
             "TFLOP/s", "%", "of");
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  // Gathers wait for each other on the device: no kernel may be loaded meanwhile.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  std::string device;
  if (!options.list) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "no device");
    device = properties.name;
  }
  Suite suite(options.filter, options.list);
  if (!options.list) print_rates(suite.rates(), device);
  for (auto* part :
       {time_products, time_experts, time_attention, time_latents, time_rows, time_states, time_exchange, time_towers})
    part(suite);
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << json_of(suite, options, device).dump(1) << '\n';
    if (!file.flush()) {
      fmt::print(stderr, "cuda_kernels: {} cannot be written\n", options.json);
      return 1;
    }
  }
  if (suite.failures() > 0) fmt::print(stderr, "cuda_kernels: {} rows could not be timed\n", suite.failures());
  return suite.failures() > 0 ? 1 : 0;
}
