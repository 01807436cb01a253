#include "app/capi/common.h"

#include <cstdlib>

namespace millrace::capi {

namespace {

thread_local std::string last_error;

millrace_status status_of(Code code) {
  switch (code) {
    case Code::ok:
      return MILLRACE_OK;
    case Code::invalid_argument:
      return MILLRACE_INVALID_ARGUMENT;
    case Code::not_found:
      return MILLRACE_NOT_FOUND;
    case Code::corrupt:
      return MILLRACE_CORRUPT;
    case Code::unsupported:
      return MILLRACE_UNSUPPORTED;
    case Code::io_error:
      return MILLRACE_IO_ERROR;
    case Code::out_of_budget:
      return MILLRACE_OUT_OF_BUDGET;
    case Code::cancelled:
      return MILLRACE_CANCELLED;
    case Code::unavailable:
      return MILLRACE_UNAVAILABLE;
    case Code::internal:
      break;
  }
  return MILLRACE_INTERNAL;
}

void* allocate(std::size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

millrace_status report(const Status& status) {
  try {
    last_error = status.message();
  } catch (const std::bad_alloc&) {
    last_error.clear();
  }
  return status_of(status.code());
}

char* give(std::string_view text) {
  auto* copy = static_cast<char*>(allocate(text.size() + 1));
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

void give(const std::vector<std::int32_t>& ids, std::int32_t** out, std::size_t* count) {
  auto* copy = static_cast<std::int32_t*>(allocate(std::max<std::size_t>(1, ids.size()) * sizeof(std::int32_t)));
  std::copy(ids.begin(), ids.end(), copy);
  *out = copy;
  *count = ids.size();
}

float* give(const std::vector<std::vector<float>>& vectors, std::size_t dimensions) {
  auto* copy = static_cast<float*>(allocate(std::max<std::size_t>(1, vectors.size() * dimensions) * sizeof(float)));
  float* end = copy;
  for (const auto& vector : vectors) end = std::copy_n(vector.begin(), dimensions, end);
  return copy;
}

}  // namespace millrace::capi

extern "C" {

const char* millrace_version(void) { return MILLRACE_VERSION; }
const char* millrace_last_error(void) { return millrace::capi::last_error.c_str(); }
void millrace_free(void* memory) { std::free(memory); }

}  // extern "C"
