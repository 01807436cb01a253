#include "kernels/cpu/matmul_avx2.h"
