#include "kernels/cpu/make_ops.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec_avx2.h"

namespace millrace::kernels {

Table avx2_ops() { return make_ops<Avx2>(Isa::avx2); }

}  // namespace millrace::kernels
