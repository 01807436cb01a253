#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

MatvecKernel matvec_kernel_nibbles(DType dtype, int x_rows, bool ragged) {
  switch (dtype) {
    case DType::q4_0:
      return ragged ? matvec_kernel_of<DType::q4_0, true>(x_rows) : matvec_kernel_of<DType::q4_0, false>(x_rows);
    case DType::q4_1:
      return ragged ? matvec_kernel_of<DType::q4_1, true>(x_rows) : matvec_kernel_of<DType::q4_1, false>(x_rows);
    case DType::iq4_nl:
      return ragged ? matvec_kernel_of<DType::iq4_nl, true>(x_rows) : matvec_kernel_of<DType::iq4_nl, false>(x_rows);
    case DType::mxfp4:
      return ragged ? matvec_kernel_of<DType::mxfp4, true>(x_rows) : matvec_kernel_of<DType::mxfp4, false>(x_rows);
    default:
      return {};
  }
}

}  // namespace millrace::kernels::cuda
