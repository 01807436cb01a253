#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

MatvecKernel matvec_kernel_bytes(DType dtype, int x_rows, bool ragged) {
  switch (dtype) {
    case DType::q5_0:
      return matvec_kernel_of<DType::q5_0>(x_rows, ragged);
    case DType::q5_1:
      return matvec_kernel_of<DType::q5_1>(x_rows, ragged);
    case DType::q8_0:
      return matvec_kernel_of<DType::q8_0, RowLayout::packed>(x_rows, ragged);
    default:
      return {};
  }
}

}  // namespace millrace::kernels::cuda
