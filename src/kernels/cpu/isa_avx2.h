// The namespace of what is compiled for 256 bits, once for AVX2 and once for AVX2 with AVX-VNNI, in which the sum of
// four products of bytes is one instruction and fits into 32 bits whatever the bytes.
#pragma once

#ifdef __AVXVNNI__
#define MR_AVX2 avx_vnni
#else
#define MR_AVX2 avx2
#endif
