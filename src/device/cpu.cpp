#include "device/cpu.h"

#include <algorithm>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "device/wide_registers.h"

namespace millrace::device {
namespace {

#if defined(__x86_64__)

std::uint64_t xcr0() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

bool all_set(std::uint64_t word, std::uint64_t bits) { return (word & bits) == bits; }

// Intel SDM vol. 2A, CPUID leaves 1 and 7 (0 and 1); vol. 1, 13.3 for XCR0: the processor's word is not enough, the
// operating system must also save the wide registers.
std::vector<Isa> detect_isas() {
  std::vector<Isa> isas{Isa::plain};
  std::uint32_t eax = 0, ebx = 0, ecx1 = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx1, &edx) == 0) return isas;
  constexpr std::uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  if (!all_set(ecx1, fma | osxsave | avx | f16c)) return isas;
  const std::uint64_t saved = xcr0();
  constexpr std::uint64_t xmm_ymm = 0x6, opmask_zmm = 0xe0;
  if (!all_set(saved, xmm_ymm)) return isas;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return isas;
  constexpr std::uint32_t avx2 = 1u << 5;
  if (!all_set(ebx, avx2)) return isas;
  isas.push_back(Isa::avx2);
  constexpr std::uint32_t avx_vnni = 1u << 4;  // eax of leaf 7, subleaf 1
  std::uint32_t eax1 = 0, none = 0;
  if (eax >= 1 && __get_cpuid_count(7, 1, &eax1, &none, &none, &none) != 0 && all_set(eax1, avx_vnni))
    isas.push_back(Isa::avx_vnni);
  constexpr std::uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;  // ebx
  constexpr std::uint32_t vbmi = 1u << 1, vnni = 1u << 11;                            // ecx
  if (all_set(ebx, f | dq | bw | vl) && all_set(ecx, vbmi | vnni) && all_set(saved, opmask_zmm) && keeps_avx512())
    isas.push_back(Isa::avx512);
  return isas;
}

#else

std::vector<Isa> detect_isas() { return {Isa::plain}; }

#endif

const std::vector<Isa>& isas() {
  static const std::vector<Isa> isas = detect_isas();
  return isas;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::plain:
      return "plain";
    case Isa::avx2:
      return "avx2";
    case Isa::avx_vnni:
      return "avx_vnni";
    case Isa::avx512:
      return "avx512";
  }
  return "unknown";
}

Expected<Isa> isa_from_name(std::string_view name) {
  for (const Isa isa : kIsas) {
    if (name == isa_name(isa)) return isa;
  }
  return error(Code::invalid_argument, "'{}' is not an instruction set; use plain, avx2, avx_vnni or avx512", name);
}

bool has_isa(Isa isa) { return std::find(isas().begin(), isas().end(), isa) != isas().end(); }

Isa best_isa() { return isas().back(); }

}  // namespace millrace::device
