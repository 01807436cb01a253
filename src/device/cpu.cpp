#include "device/cpu.h"

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
  const bool wide =
      all_set(ebx, f | dq | bw | vl) && all_set(ecx, vbmi | vnni) && all_set(saved, opmask_zmm) && keeps_avx512();
  return wide ? Isa::avx512 : Isa::avx2;
}

#else

Isa detect_isa() { return Isa::plain; }

#endif

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

}  // namespace millrace::device
