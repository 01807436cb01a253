#include "device/cpu.h"

#include <windows.h>
// After windows.h, whose types it uses.
#include <psapi.h>

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "device/wide_registers.h"

namespace millrace::device {
namespace {

PROCESS_MEMORY_COUNTERS memory_counters() {
  PROCESS_MEMORY_COUNTERS counters{};
  counters.cb = sizeof(counters);
  if (K32GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof(counters)) == 0) return {};
  return counters;
}

}  // namespace

/// What Windows has in place of cgroups: the limits of the job that this process runs in.
std::uint64_t cgroup_memory_limit(const std::string& /*root*/) {
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION job{};
  if (QueryInformationJobObject(nullptr, JobObjectExtendedLimitInformation, &job, sizeof(job), nullptr) == 0)
    return UINT64_MAX;
  std::uint64_t limit = UINT64_MAX;
  const DWORD flags = job.BasicLimitInformation.LimitFlags;
  if ((flags & JOB_OBJECT_LIMIT_JOB_MEMORY) != 0) limit = std::min<std::uint64_t>(limit, job.JobMemoryLimit);
  if ((flags & JOB_OBJECT_LIMIT_PROCESS_MEMORY) != 0) limit = std::min<std::uint64_t>(limit, job.ProcessMemoryLimit);
  return limit;
}

bool keeps_avx512() { return GetProcAddress(GetModuleHandleW(L"ntdll.dll"), "wine_get_version") == nullptr; }

MemoryLimits memory_limits() {
  MEMORYSTATUSEX state{};
  state.dwLength = sizeof(state);
  if (GlobalMemoryStatusEx(&state) == 0) state = {};
  // What may still be committed bounds it, too: RAM and page files together are all that Windows promises.
  return {.total_bytes = state.ullTotalPhys,
          .available_bytes = std::min(state.ullAvailPhys, state.ullAvailPageFile),
          .cgroup_bytes = cgroup_memory_limit("")};
}

std::uint64_t resident_bytes() { return memory_counters().WorkingSetSize; }
std::uint64_t peak_resident_bytes() { return memory_counters().PeakWorkingSetSize; }

void release_code_pages() {
  // Of this program alone: the system's libraries are shared with every other process.
  const auto* const image = reinterpret_cast<const std::byte*>(GetModuleHandleW(nullptr));
  const auto* const dos = reinterpret_cast<const IMAGE_DOS_HEADER*>(image);
  const auto* const headers = reinterpret_cast<const IMAGE_NT_HEADERS*>(image + dos->e_lfanew);
  const IMAGE_SECTION_HEADER* const sections = IMAGE_FIRST_SECTION(headers);
  for (int i = 0; i < headers->FileHeader.NumberOfSections; ++i) {
    if ((sections[i].Characteristics & IMAGE_SCN_MEM_WRITE) != 0) continue;
    // Unlocking pages that are not locked is an error, and takes them out of the working set.
    VirtualUnlock(const_cast<std::byte*>(image) + sections[i].VirtualAddress, sections[i].Misc.VirtualSize);
  }
}

std::string cpu_model_name() {
#if defined(__x86_64__)
  // Intel SDM vol. 2A, CPUID leaves 80000002H to 80000004H: the name, 16 characters each.
  std::array<unsigned, 12> words{};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* const at = words.data() + static_cast<std::size_t>(leaf) * 4;
    if (__get_cpuid(0x80000002u + leaf, at, at + 1, at + 2, at + 3) == 0) return "unknown processor";
  }
  std::array<char, sizeof(words) + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof(words));
  std::string name = text.data();
  name.erase(0, std::min(name.find_first_not_of(' '), name.size()));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "unknown processor" : name;
#else
  return "unknown processor";
#endif
}

}  // namespace millrace::device
