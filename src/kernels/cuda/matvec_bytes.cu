#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

MatvecKernel matvec_kernel_bytes(DType dtype, int x_rows, bool ragged) {
  switch (dtype) {
    case DType::q5_0:
      return ragged ? matvec_kernel_of<DType::q5_0, true>(x_rows) : matvec_kernel_of<DType::q5_0, false>(x_rows);
    case DType::q5_1:
      return ragged ? matvec_kernel_of<DType::q5_1, true>(x_rows) : matvec_kernel_of<DType::q5_1, false>(x_rows);
    case DType::q8_0:
      return ragged ? matvec_kernel_of<DType::q8_0, true>(x_rows) : matvec_kernel_of<DType::q8_0, false>(x_rows);
    default:
      return {};
  }
}

}  // namespace millrace::kernels::cuda
