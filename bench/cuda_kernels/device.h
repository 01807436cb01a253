// What the bench asks of the device beside the launchers: memory filled with numbers of a kind, caches emptied, and how
// fast the tensor cores are. Launchers put work on a stream and return; errors are the launch's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

/// Floats between -1 and 1.
cudaError_t fill_floats(float* to, std::size_t count, cudaStream_t stream);
/// Random bits without exponents in whatever float16 a dtype sees there: no subnormals, infinities or NaNs. bytes: a
/// multiple of 8.
cudaError_t fill_weights(std::byte* to, std::size_t bytes, cudaStream_t stream);
/// Reads all of it, so that a smaller cache holds nothing else, and nothing that is still to be written back.
cudaError_t read_all(const std::byte* from, std::size_t bytes, cudaStream_t stream);

enum class Operands : std::uint8_t { bf16, int8 };
/// Multiplies for a while with all tensor cores, from shared memory where the device can (compute capability 9.0), else
/// from registers. *operations, in device memory: those of one multiprocessor, a multiplication and an addition being
/// two.
cudaError_t multiply_all(Operands operands, int multiprocessors, double* operations, cudaStream_t stream);

}  // namespace millrace::bench
