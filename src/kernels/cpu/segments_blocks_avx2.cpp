#include "kernels/cpu/segments_blocks_avx2.h"
