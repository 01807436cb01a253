#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

MatvecKernel matvec_kernel_fields(DType dtype, int x_rows, bool ragged) {
  switch (dtype) {
    case DType::q1_0:
      return matvec_kernel_of<DType::q1_0, RowLayout::packed>(x_rows, ragged);
    case DType::q2_0:
      return matvec_kernel_of<DType::q2_0, RowLayout::packed>(x_rows, ragged);
    default:
      return {};
  }
}

}  // namespace millrace::kernels::cuda
