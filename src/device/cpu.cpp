#include "device/cpu.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace millrace::device {
namespace {

#if defined(__x86_64__)

std::uint64_t xcr0() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

bool all_set(std::uint64_t word, std::uint64_t bits) { return (word & bits) == bits; }

// Intel SDM vol. 2A, CPUID leaves 1 and 7; vol. 1, 13.3 for XCR0: the processor's word is not enough, the operating
// system must also save the wide registers.
Isa detect_isa() {
  std::uint32_t eax = 0, ebx = 0, ecx1 = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx1, &edx) == 0) return Isa::plain;
  constexpr std::uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  if (!all_set(ecx1, fma | osxsave | avx | f16c)) return Isa::plain;
  const std::uint64_t saved = xcr0();
  constexpr std::uint64_t xmm_ymm = 0x6, opmask_zmm = 0xe0;
  if (!all_set(saved, xmm_ymm)) return Isa::plain;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return Isa::plain;
  constexpr std::uint32_t avx2 = 1u << 5;
  if (!all_set(ebx, avx2)) return Isa::plain;
  constexpr std::uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;  // ebx
  constexpr std::uint32_t vbmi = 1u << 1, vnni = 1u << 11;                            // ecx
  const bool wide = all_set(ebx, f | dq | bw | vl) && all_set(ecx, vbmi | vnni) && all_set(saved, opmask_zmm);
  return wide ? Isa::avx512 : Isa::avx2;
}

#else

Isa detect_isa() { return Isa::plain; }

#endif

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

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::plain:
      return "plain";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "unknown";
}

Expected<Isa> isa_from_name(std::string_view name) {
  for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
    if (name == isa_name(isa)) return isa;
  }
  return error(Code::invalid_argument, "'{}' is not an instruction set; use plain, avx2 or avx512", name);
}

Isa best_isa() {
  static const Isa best = detect_isa();
  return best;
}

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
