// cuFile is a library for Linux: every call says so.
#include "storage/cufile.h"

namespace millrace::storage {
namespace {

Status absent() {
  return error(Code::unsupported, "cuFile is NVIDIA's library for Linux; leave --storage cufile out on Windows");
}

}  // namespace

Expected<CuFileWay> cufile_available(const std::string& /*path*/, const CuFileOptions& /*options*/) { return absent(); }

Expected<std::unique_ptr<Backend>> open_cufile(const std::vector<std::string>& /*paths*/,
                                               const CuFileOptions& /*options*/) {
  return absent();
}

Expected<CuFileBuffer> CuFileBuffer::make(std::span<std::byte> /*memory*/, const CuFileOptions& /*options*/) {
  return absent();
}

CuFileBuffer::~CuFileBuffer() = default;

void CuFileLibrary::close() {}

}  // namespace millrace::storage
