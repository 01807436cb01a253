#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/os/processors.h"

namespace millrace::os {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Quota over period in processors; 0 where a number is missing or says "no limit".
double ratio(const std::string& quota, const std::string& period) {
  const double q = std::strtod(quota.c_str(), nullptr), p = std::strtod(period.c_str(), nullptr);
  return q > 0 && p > 0 ? q / p : 0;
}

double quota_v2(const std::string& folder) {
  std::istringstream line(first_line(folder + "/cpu.max"));
  std::string quota, period;
  line >> quota >> period;
  return ratio(quota, period);
}

double quota_v1(const std::string& folder) {
  return ratio(first_line(folder + "/cpu.cfs_quota_us"), first_line(folder + "/cpu.cfs_period_us"));
}

bool lists_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == "cpu") return true;
    controllers = comma == std::string_view::npos ? std::string_view() : controllers.substr(comma + 1);
  }
  return false;
}

}  // namespace

double cgroup_cpu_quota(std::string_view self_cgroup, const std::string& mount) {
  double tightest = 0;
  std::istringstream lines{std::string(self_cgroup)};
  for (std::string line; std::getline(lines, line);) {  // "0::/a/b" (v2) or "4:cpu,cpuacct:/a/b" (v1)
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && !lists_cpu(controllers)) continue;
    std::string path = line.substr(second + 1);
    while (true) {  // from the group up to the root: inside a container only some of these exist
      const double quota = v2 ? quota_v2(mount + path) : quota_v1(mount + "/cpu" + path);
      if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
      const std::size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return tightest;
}

}  // namespace millrace::os
