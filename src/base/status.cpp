#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace millrace {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::not_found:
      return "not_found";
    case Code::corrupt:
      return "corrupt";
    case Code::unsupported:
      return "unsupported";
    case Code::io_error:
      return "io_error";
    case Code::out_of_budget:
      return "out_of_budget";
    case Code::cancelled:
      return "cancelled";
    case Code::unavailable:
      return "unavailable";
    case Code::internal:
      return "internal";
  }
  return "unknown";
}

void assert_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr,
               "millrace: a bug of ours at %s:%d: %s does not hold. Please report it with the command you ran.\n", file,
               line, what);
  std::abort();
}

}  // namespace millrace
