#include "device/cpu.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>

#include "device/wide_registers.h"

namespace millrace::device {
namespace {

std::optional<std::uint64_t> parse_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

/// The number after "key:" in a file of "key: number kB" lines, in bytes; 0 when it is not there.
std::uint64_t kilobytes_of(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    return parse_number(std::string_view(line).substr(key.size() + 1)).value_or(0) * 1024;
  }
  return 0;
}

/// The number in a limit file; UINT64_MAX for "max", for v1's huge "no limit" value, and for a file that is not there.
std::uint64_t limit_in(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return UINT64_MAX;
  constexpr std::uint64_t no_limit = std::uint64_t{1} << 60;
  const std::uint64_t value = parse_number(line).value_or(UINT64_MAX);
  return value >= no_limit ? UINT64_MAX : value;
}

/// The tightest of the limits of `group` and of its parents, below `mount`.
std::uint64_t tightest(const std::string& mount, std::string group, const std::string& file) {
  std::uint64_t limit = UINT64_MAX;
  while (true) {
    limit = std::min(limit, limit_in(fmt::format("{}{}/{}", mount, group, file)));
    if (group.empty()) return limit;
    group.resize(std::min(group.rfind('/'), group.size()));
  }
}

}  // namespace

std::uint64_t cgroup_memory_limit(const std::string& root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  std::uint64_t limit = UINT64_MAX;
  std::string line;
  // A line is "id:controllers:path"; v2 has id 0 and no controllers. A container may see its host's path there while
  // its own group is mounted at the top: the walk up to the mount finds it either way.
  while (std::getline(groups, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == ",,") {
      limit = std::min(limit, tightest(root + "/sys/fs/cgroup", path, "memory.max"));
      limit = std::min(limit, tightest(root + "/sys/fs/cgroup/unified", path, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit = std::min(limit, tightest(root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

bool keeps_avx512() { return true; }

MemoryLimits memory_limits() {
  return {.total_bytes = kilobytes_of("/proc/meminfo", "MemTotal"),
          .available_bytes = kilobytes_of("/proc/meminfo", "MemAvailable"),
          .cgroup_bytes = cgroup_memory_limit("")};
}

std::uint64_t resident_bytes() {
  // VmRSS is summed from counters that each processor keeps for a while: some 100 kB off for each, since Linux 6.2.
  const std::uint64_t exact = kilobytes_of("/proc/self/smaps_rollup", "Rss");
  return exact > 0 ? exact : kilobytes_of("/proc/self/status", "VmRSS");
}
std::uint64_t peak_resident_bytes() { return kilobytes_of("/proc/self/status", "VmHWM"); }

void release_code_pages() {
  const auto release = [](dl_phdr_info* object, std::size_t, void*) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const auto& segment = object->dlpi_phdr[i];
      // What may be written holds this process's own data, which no file could give back.
      if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
      const std::uintptr_t begin = (object->dlpi_addr + segment.p_vaddr) / page * page;
      const std::uintptr_t end = object->dlpi_addr + segment.p_vaddr + segment.p_memsz;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader tells addresses as numbers
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
    return 0;
  };
  dl_iterate_phdr(release, nullptr);
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos && (line.starts_with("model name") || line.starts_with("Model"))) {
      return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

}  // namespace millrace::device
