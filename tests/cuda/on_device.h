// What tests of CUDA kernels share: arrays in device memory, tables of addresses, random numbers, and comparison by
// bits.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/cpu/fused.h"

namespace millrace::test {

inline bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/// A suite that skips where there is no GPU.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device";
  }
};

/// a * b + c, rounded once (kernels/cpu/fused.h says why no library's).
inline float fused(float a, float b, float c) { return kernels::fused(a, b, c); }
inline double fused(double a, double b, double c) { return std::fma(a, b, c); }

inline void ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }
/// Waits for the device; kernels' errors come up here.
inline void sync() { ok(cudaDeviceSynchronize()); }

/// `n` elements in device memory, poisoned with 0xcb (a float of -26,679,190, an int8 of -53) unless copied from
/// the host. 256 bytes more are readable, as weights have them.
template <typename T>
class Array {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  explicit Array(std::size_t n) : n_(n) {
    if (cudaMalloc(&data_, bytes() + 256) != cudaSuccess) throw std::bad_alloc();  // somebody else has the memory
    ok(cudaMemset(data_, 0xcb, bytes() + 256));
  }
  explicit Array(const std::vector<T>& from) : Array(from.size()) { put(from); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { cudaFree(data_); }

  T* get() const { return static_cast<T*>(data_); }
  std::byte* at_bytes() const { return static_cast<std::byte*>(data_); }
  void put(const std::vector<T>& from) { ok(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice)); }
  std::vector<T> host() const {
    std::vector<T> to(n_);
    sync();
    ok(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return to;
  }

 private:
  std::size_t bytes() const { return n_ * sizeof(T); }
  std::size_t n_;
  void* data_ = nullptr;
};

/// One entry of a table of addresses.
class Entry {
 public:
  explicit Entry(const std::byte* address) : entry_(std::vector<const std::byte*>{address}) {}
  const std::byte* const* get() const { return entry_.get(); }

 private:
  Array<const std::byte*> entry_;
};

inline std::vector<float> normal_floats(std::size_t n, std::mt19937& random, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

inline bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b);
}

/// Equal bit for bit; any NaN equals any other.
inline ::testing::AssertionResult same_bits(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << "sizes differ";
  std::size_t different = 0, first = 0;
  for (std::size_t i = got.size(); i-- > 0;) {
    if (!same(got[i], want[i])) ++different, first = i;
  }
  if (different == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << different << " of " << got.size() << " differ, first element " << first
                                       << ": " << got[first] << " where " << want[first] << " is wanted";
}

}  // namespace millrace::test
