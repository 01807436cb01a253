#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

MatvecKernel matvec_kernel_grid(DType dtype, int x_rows) {
  switch (dtype) {
    case DType::iq2_xxs:
      return matvec_kernel_of<DType::iq2_xxs, RowLayout::even>(x_rows);
    case DType::iq2_xs:
      return matvec_kernel_of<DType::iq2_xs, RowLayout::even>(x_rows);
    case DType::iq2_s:
      return matvec_kernel_of<DType::iq2_s, RowLayout::even>(x_rows);
    case DType::iq1_s:
      return matvec_kernel_of<DType::iq1_s, RowLayout::even>(x_rows);
    case DType::iq1_m:
      return matvec_kernel_of<DType::iq1_m, RowLayout::even>(x_rows);
    case DType::iq3_xxs:
      return matvec_kernel_of<DType::iq3_xxs, RowLayout::even>(x_rows);
    case DType::iq3_s:
      return matvec_kernel_of<DType::iq3_s, RowLayout::even>(x_rows);
    case DType::tq1_0:
      return matvec_kernel_of<DType::tq1_0, RowLayout::even>(x_rows);
    case DType::tq2_0:
      return matvec_kernel_of<DType::tq2_0, RowLayout::even>(x_rows);
    default:
      return {};
  }
}

}  // namespace millrace::kernels::cuda
