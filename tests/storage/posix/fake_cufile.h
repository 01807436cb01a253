// What a test tells the stand-in for libcufile, and learns from it: fake_cufile_state, found by dlsym.
#pragma once

#include <atomic>

struct FakeCuFile {
  // Orders.
  std::atomic<int> open_code{0};        // of cuFileDriverOpen
  std::atomic<int> register_code{0};    // of cuFileHandleRegister
  std::atomic<int> buffer_code{0};      // of cuFileBufRegister
  std::atomic<int> read_errno{0};       // cuFileRead answers -1 with this
  std::atomic<int> read_code{0};        // cuFileRead answers minus this
  std::atomic<int> lie{0};              // cuFileRead claims this many bytes more than it read
  std::atomic<long> most_bytes{0};      // a read brings no more than this; 0: all
  std::atomic<unsigned> features{0xf};  // feature_flags
  std::atomic<bool> has_properties{true};
  // What happened.
  std::atomic<int> open_now{0}, opened{0}, handles{0}, buffers{0};
  std::atomic<long> reads{0}, unaligned_reads{0}, based_reads{0}, largest_read{0};
};
