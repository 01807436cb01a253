#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

MatvecKernel matvec_kernel_float(DType dtype, int x_rows, bool ragged) {
  switch (dtype) {
    case DType::f16:
      return ragged ? matvec_kernel_of<DType::f16, true>(x_rows) : matvec_kernel_of<DType::f16, false>(x_rows);
    case DType::bf16:
      return ragged ? matvec_kernel_of<DType::bf16, true>(x_rows) : matvec_kernel_of<DType::bf16, false>(x_rows);
    case DType::f32:
      return ragged ? matvec_kernel_of<DType::f32, true>(x_rows) : matvec_kernel_of<DType::f32, false>(x_rows);
    default:
      return {};
  }
}

}  // namespace millrace::kernels::cuda
