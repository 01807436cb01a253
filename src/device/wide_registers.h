// Whether code may keep values in AVX-512's registers across a system's exceptions. Thread-safety: a pure function.
#pragma once

namespace millrace::device {

/// Whether a thread has all registers of AVX-512 again after an exception. Wine 8 gives back their lower halves alone,
/// and on Windows memory that is committed when it is first touched (host_memory.h) raises exceptions anywhere.
bool keeps_avx512();

}  // namespace millrace::device
