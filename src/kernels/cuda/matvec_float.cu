#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

MatvecKernel matvec_kernel_float(DType dtype, int x_rows, bool ragged) {
  switch (dtype) {
    case DType::f16:
      return matvec_kernel_of<DType::f16>(x_rows, ragged);
    case DType::bf16:
      return matvec_kernel_of<DType::bf16>(x_rows, ragged);
    case DType::f32:
      return matvec_kernel_of<DType::f32>(x_rows, ragged);
    default:
      return {};
  }
}

}  // namespace millrace::kernels::cuda
