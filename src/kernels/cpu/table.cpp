#include "base/status.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"
#include "kernels/kernels.h"

namespace millrace::kernels {
namespace {

Table plain_table() {
  Table table = plain_ops();
  table.quantize_q8 = plain::quantize_q8;
  table.matmul = plain::matmul;
  table.matmul_workspace_bytes = plain::matmul_workspace_bytes;
  table.matmul_segments = plain::matmul_segments;
  table.matmul_segments_workspace_bytes = plain::matmul_segments_workspace_bytes;
  return table;
}

#if defined(__x86_64__)
Table avx2_table() {
  Table table = avx2_ops();
  table.quantize_q8 = avx2::quantize_q8;
  table.matmul = avx2::matmul;
  table.matmul_workspace_bytes = avx2::matmul_workspace_bytes;
  table.matmul_segments = avx2::matmul_segments;
  table.matmul_segments_workspace_bytes = avx2::matmul_segments_workspace_bytes;
  return table;
}

Table avx_vnni_table() {
  Table table = avx2_table();
  table.isa = Isa::avx_vnni;
  table.matmul = avx_vnni::matmul;
  table.matmul_workspace_bytes = avx_vnni::matmul_workspace_bytes;
  table.matmul_segments = avx_vnni::matmul_segments;
  table.matmul_segments_workspace_bytes = avx_vnni::matmul_segments_workspace_bytes;
  return table;
}

Table avx512_table() {
  Table table = avx512_ops();
  table.quantize_q8 = avx512::quantize_q8;
  table.matmul = avx512::matmul;
  table.matmul_workspace_bytes = avx512::matmul_workspace_bytes;
  table.matmul_segments = avx512::matmul_segments;
  table.matmul_segments_workspace_bytes = avx512::matmul_segments_workspace_bytes;
  return table;
}
#endif

}  // namespace

// Each table is made when it is first asked for: what fills a table is compiled for its instruction set, too.
const Table& table(Isa isa) {
  MR_ASSERT(device::has_isa(isa));
#if defined(__x86_64__)
  if (isa == Isa::avx512) {
    static const Table avx512 = avx512_table();
    return avx512;
  }
  if (isa == Isa::avx_vnni) {
    static const Table avx_vnni = avx_vnni_table();
    return avx_vnni;
  }
  if (isa == Isa::avx2) {
    static const Table avx2 = avx2_table();
    return avx2;
  }
#endif
  static const Table plain = plain_table();
  return plain;
}

}  // namespace millrace::kernels
