// For pure functions that are compiled for the host and for GPU kernels, and must give the same result on both.
#pragma once

#if defined(__CUDACC__)
#define MR_BOTH __host__ __device__
#else
#define MR_BOTH
#endif
