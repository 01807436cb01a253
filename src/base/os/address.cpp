#include "base/os/address.h"

#include <arpa/inet.h>
#include <unistd.h>

namespace millrace::os {

bool is_ipv6(std::string_view text) {
  in6_addr parsed{};
  return ::inet_pton(AF_INET6, std::string(text.substr(0, text.find('%'))).c_str(), &parsed) == 1;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace millrace::os
