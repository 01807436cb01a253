// Ranges in NVIDIA's profilers, which look at no simulated device.
#pragma once

inline int nvtxRangePushA(const char*) { return 0; }
inline int nvtxRangePop() { return 0; }
