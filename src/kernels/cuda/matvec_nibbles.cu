#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

MatvecKernel matvec_kernel_nibbles(DType dtype, int x_rows, bool ragged) {
  switch (dtype) {
    case DType::q4_0:
      return matvec_kernel_of<DType::q4_0>(x_rows, ragged);
    case DType::q4_1:
      return matvec_kernel_of<DType::q4_1>(x_rows, ragged);
    case DType::iq4_nl:
      return matvec_kernel_of<DType::iq4_nl>(x_rows, ragged);
    case DType::mxfp4:
      return matvec_kernel_of<DType::mxfp4, RowLayout::packed>(x_rows, ragged);
    case DType::nvfp4:
      return matvec_kernel_of<DType::nvfp4, RowLayout::packed>(x_rows, ragged);
    default:
      return {};
  }
}

}  // namespace millrace::kernels::cuda
