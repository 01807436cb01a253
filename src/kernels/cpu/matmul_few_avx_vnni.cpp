#include "kernels/cpu/matmul_few_avx2.h"
