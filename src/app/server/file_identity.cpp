#include "app/server/file_identity.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <filesystem>

#include "base/os/file_info.h"

namespace millrace::server {

std::string file_identity(const std::string& path) {
  const auto info = os::file_info(path);
  if (!info.ok()) return "";
  std::error_code failed;
  const std::string place = std::filesystem::canonical(path, failed).string();
  const std::string text = fmt::format("{}\n{}\n{}", failed ? path : place, info->bytes, info->modified_ns);
  const XXH128_hash_t one = XXH3_128bits_withSeed(text.data(), text.size(), 1);
  const XXH128_hash_t other = XXH3_128bits_withSeed(text.data(), text.size(), 2);
  return fmt::format("{:016x}{:016x}{:016x}{:016x}", one.high64, one.low64, other.high64, other.low64);
}

}  // namespace millrace::server
