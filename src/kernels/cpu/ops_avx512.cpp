#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec_avx512.h"

// After vec_avx512.h, which quietens a false warning of the compiler about its own intrinsics.
#include "kernels/cpu/make_ops.h"

namespace millrace::kernels {

Table avx512_ops() { return make_ops<Avx512>(Isa::avx512); }

}  // namespace millrace::kernels
