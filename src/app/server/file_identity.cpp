#include "app/server/file_identity.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cstdint>
#include <filesystem>

namespace millrace::server {

std::string file_identity(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "";
  std::error_code failed;
  const std::string place = std::filesystem::canonical(path, failed).string();
  const std::int64_t modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  const std::string text = fmt::format("{}\n{}\n{}", failed ? path : place, status.st_size, modified_ns);
  const XXH128_hash_t one = XXH3_128bits_withSeed(text.data(), text.size(), 1);
  const XXH128_hash_t other = XXH3_128bits_withSeed(text.data(), text.size(), 2);
  return fmt::format("{:016x}{:016x}{:016x}{:016x}", one.high64, one.low64, other.high64, other.low64);
}

}  // namespace millrace::server
