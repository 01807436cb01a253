// What the C API's halves share: errors of this thread, structs of any age, memory that crosses to C.
// Thread-safety: errors are kept per thread; the rest is pure.
#pragma once

#include <millrace.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::capi {

/// Keeps the message for millrace_last_error(); the code for the caller.
millrace_status report(const Status& status);

inline Status refuse_null(const char* name) { return error(Code::invalid_argument, "{}: must not be NULL", name); }

/// Runs `work` (returning Status) and lets no exception out.
template <typename Work>
millrace_status guarded(const Work& work) noexcept {
  try {
    const Status status = work();
    return status.ok() ? MILLRACE_OK : report(status);
  } catch (const std::bad_alloc&) {
    return report(Status(Code::out_of_budget, "out of memory"));
  } catch (const std::exception& unexpected) {
    return report(Status(Code::internal, unexpected.what()));
  }
}

/// A caller's struct as this version knows it: members the caller's header had, defaults for the others.
template <typename Struct>
Expected<Struct> read_struct(const Struct* given, Struct defaults, const char* name) {
  if (given == nullptr || given->struct_size < sizeof(std::size_t)) {
    return error(Code::invalid_argument, "{}: set the struct up with its init function first", name);
  }
  std::memcpy(static_cast<void*>(&defaults), given, std::min(given->struct_size, sizeof(Struct)));
  return defaults;
}

/// Sets up a caller's struct, which is `size` bytes long: it may be of an older header, or of a newer one.
template <typename Struct>
void init_struct(Struct* out, std::size_t size, Struct defaults) {
  if (out == nullptr || size < sizeof(std::size_t)) return;
  defaults.struct_size = size;
  std::memset(static_cast<void*>(out), 0, size);
  std::memcpy(static_cast<void*>(out), &defaults, std::min(size, sizeof(Struct)));
}

/// Writes as much of `value` as the caller's struct has room for. REQUIRES: out->struct_size is the caller's.
template <typename Struct>
void write_struct(Struct* out, Struct value) {
  value.struct_size = out->struct_size;
  std::memcpy(static_cast<void*>(out), &value, std::min(value.struct_size, sizeof(Struct)));
}

/// A copy that millrace_free takes. Throws std::bad_alloc.
char* give(std::string_view text);
void give(const std::vector<std::int32_t>& ids, std::int32_t** out, std::size_t* count);
/// Vectors of `dimensions` values each, one behind the other.
float* give(const std::vector<std::vector<float>>& vectors, std::size_t dimensions);

}  // namespace millrace::capi
