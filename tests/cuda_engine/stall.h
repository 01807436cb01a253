// Launches that come late: what tests put between others to shake their order.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "device/device.h"

#ifdef MILLRACE_SIMULATED
#include "simulated/device.h"
#else
#include "device/cuda_runtime.h"
#endif

namespace millrace {

/// What comes onto the stream from now on waits for so long.
inline void stall(device::StreamRef stream, std::chrono::microseconds time) {
#ifdef MILLRACE_SIMULATED
  ASSERT_TRUE(simulated::enqueue(stream, [time] { std::this_thread::sleep_for(time); }).ok());
#else
  const auto sleep = [](void* count) {
    std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<std::intptr_t>(count)));
  };
  ASSERT_EQ(cudaLaunchHostFunc(device::cuda_stream(stream), sleep,
                               reinterpret_cast<void*>(static_cast<std::intptr_t>(time.count()))),
            cudaSuccess);
#endif
}

}  // namespace millrace
