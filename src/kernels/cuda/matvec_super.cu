#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

MatvecKernel matvec_kernel_super(DType dtype, int x_rows) {
  switch (dtype) {
    case DType::q2_k:
      return matvec_kernel_of<DType::q2_k, RowLayout::even>(x_rows);
    case DType::q3_k:
      return matvec_kernel_of<DType::q3_k, RowLayout::even>(x_rows);
    case DType::q4_k:
      return matvec_kernel_of<DType::q4_k, RowLayout::even>(x_rows);
    case DType::q5_k:
      return matvec_kernel_of<DType::q5_k, RowLayout::even>(x_rows);
    case DType::q6_k:
      return matvec_kernel_of<DType::q6_k, RowLayout::even>(x_rows);
    case DType::iq4_xs:
      return matvec_kernel_of<DType::iq4_xs, RowLayout::even>(x_rows);
    default:
      return {};
  }
}

}  // namespace millrace::kernels::cuda
