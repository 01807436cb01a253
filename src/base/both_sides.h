// For pure functions that the host and a GPU's kernels must answer alike.
#pragma once

#if defined(__CUDACC__)
#define MR_BOTH __host__ __device__
#else
#define MR_BOTH
#endif
