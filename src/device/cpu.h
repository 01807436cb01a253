// What the processor offers and how much of the machine this process may use, read once from hardware and kernel.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::device {

/// Instruction sets the CPU kernels are written for, weakest first. avx512 means F, BW, VL, DQ, VBMI and VNNI.
enum class Isa { plain, avx2, avx512 };
std::string_view isa_name(Isa isa);
Expected<Isa> isa_from_name(std::string_view name);  // "plain", "avx2", "avx512"
Isa best_isa();                                      // of this processor and operating system

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
