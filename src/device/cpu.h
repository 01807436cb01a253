// What the processor offers and how much of the machine this process may use, read once from hardware and kernel.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::device {

/// Instruction sets the CPU kernels are written for, slowest first. avx2 means FMA and F16C, too; avx_vnni is that with
/// AVX-VNNI, which processors with avx512 (F, BW, VL, DQ, VBMI and VNNI) may lack.
enum class Isa { plain, avx2, avx_vnni, avx512 };
inline constexpr std::array kIsas{Isa::plain, Isa::avx2, Isa::avx_vnni, Isa::avx512};
std::string_view isa_name(Isa isa);
Expected<Isa> isa_from_name(std::string_view name);  // as isa_name() has it
bool has_isa(Isa isa);                               // this processor and operating system
Isa best_isa();                                      // the fastest of these

struct MemoryLimits {
  std::uint64_t total_bytes;      // MemTotal
  std::uint64_t available_bytes;  // MemAvailable
  std::uint64_t cgroup_bytes;     // the tightest memory limit of this process's cgroups (v1 or v2); UINT64_MAX: none
};
MemoryLimits memory_limits();

/// memory_limits().cgroup_bytes as found under `root` ("" for this machine; tests create a /proc and /sys of their
/// own).
std::uint64_t cgroup_memory_limit(const std::string& root);

/// Resident set of this process in bytes: now, exact where the kernel tells (Linux 4.14), at the cost of a walk through
/// its mappings; and at its peak (VmHWM).
std::uint64_t resident_bytes();
std::uint64_t peak_resident_bytes();

/// Releases the pages of code and constants that this process has mapped from the program and its libraries. Pages that
/// only the start needed stay out of memory; others are mapped again from the page cache when they are used.
/// Breakpoints that a debugger set before are lost.
void release_code_pages();

std::string cpu_model_name();

}  // namespace millrace::device
