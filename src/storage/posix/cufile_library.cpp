#include "storage/cufile_library.h"

#include <dlfcn.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/log.h"

namespace millrace::storage {
namespace {

constexpr int kFirstCuFileCode = 5000;
constexpr int kInternalError = 5030;

struct Cause {
  int code;
  const char* text;
};
constexpr std::array<Cause, 29> kCauses = {{{5001, "the driver is not initialized"},
                                            {5004, "nvidia-fs and libcufile are of different versions"},
                                            {5005, "the version of nvidia-fs cannot be read"},
                                            {5006, "the driver is being closed"},
                                            {5007, "this platform is not supported"},
                                            {5008, "this file system or disk is not supported"},
                                            {5009, "this GPU is not supported"},
                                            {5010, "nvidia-fs failed"},
                                            {5011, "the CUDA driver failed"},
                                            {5012, "not an address of the GPU's"},
                                            {5013, "not memory that can be read into"},
                                            {5014, "the range reaches beyond its allocation"},
                                            {5015, "another CUDA context's memory"},
                                            {5016, "more memory than may be pinned"},
                                            {5017, "the range reaches beyond what is registered"},
                                            {5018, "not a regular file"},
                                            {5019, "the file was opened in a way that is not supported"},
                                            {5020, "the file was not opened with O_DIRECT"},
                                            {5022, "wrong arguments"},
                                            {5023, "the memory is registered already"},
                                            {5024, "the memory is not registered"},
                                            {5025, "permission denied"},
                                            {5027, "the file is not registered"},
                                            {5028, "the file is registered already"},
                                            {5029, "no GPU"},
                                            {5030, "an internal error"},
                                            {5033, "nvidia-fs cannot be set up"},
                                            {5034, "switched off for this file by cufile.json"},
                                            {5049, "compatibility mode is not allowed by cufile.json"}}};

template <typename Function>
bool find_call(void* library, const char* name, Function*& call) {
  call = reinterpret_cast<Function*>(dlsym(library, name));
  return call != nullptr;
}

}  // namespace

std::string cufile_cause(int code) {
  if (code <= kFirstCuFileCode) return std::strerror(code);
  for (const Cause& cause : kCauses) {
    if (cause.code == code) return fmt::format("cuFile error {}, {}", code, cause.text);
  }
  return fmt::format("cuFile error {}", code);
}

Expected<CuFileLibrary*> CuFileLibrary::load(const std::string& name) {
  static Mutex mutex;
  // Never destroyed, so that destructors of statics can still use the library.
  static auto* const loaded = new std::map<std::string, std::unique_ptr<CuFileLibrary>>;
  const MutexLock lock(mutex);
  if (const auto found = loaded->find(name); found != loaded->end()) return found->second.get();
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return error(
        Code::unsupported,
        "cuFile is not on this machine ({}); install libcufile, which comes with the CUDA toolkit, and name its "
        "folder in LD_LIBRARY_PATH if it is an unusual one",
        why != nullptr ? why : name);
  }
  std::unique_ptr<CuFileLibrary> made(new CuFileLibrary);
  if (const Status status = made->find_calls(library, name); !status.ok()) {
    dlclose(library);
    return status;
  }
  return loaded->emplace(name, std::move(made)).first->second.get();
}

Status CuFileLibrary::find_calls(void* library, const std::string& name) {
  const char* missing = nullptr;
  const auto need = [&](const char* call, auto*& function) {
    if (!find_call(library, call, function) && missing == nullptr) missing = call;
  };
  need("cuFileDriverOpen", driver_open_);
  // The second is the name of the first since CUDA 11.7.
  if (!find_call(library, "cuFileDriverClose_v2", driver_close_)) need("cuFileDriverClose", driver_close_);
  need("cuFileDriverGetProperties", driver_properties_);
  need("cuFileHandleRegister", handle_register_);
  need("cuFileHandleDeregister", handle_deregister_);
  need("cuFileBufRegister", buffer_register_);
  need("cuFileBufDeregister", buffer_deregister_);
  need("cuFileRead", read_);
  if (missing != nullptr)
    return error(Code::unsupported, "{} has no {}: not cuFile, or too old; install the one of CUDA 11.7 or newer", name,
                 missing);
  return {};
}

Status CuFileLibrary::open() {
  const MutexLock lock(session_mutex_);
  if (users_ == 0) {
    const CuFileError result = driver_open_();
    if (result.code != 0)
      return error(
          Code::unsupported, "cuFile cannot be used here: {}{}; cufile.log in the working directory has details",
          cufile_cause(result.code), result.cuda_code != 0 ? fmt::format(" (CUDA error {})", result.cuda_code) : "");
  }
  ++users_;
  return {};
}

void CuFileLibrary::close() {
  const MutexLock lock(session_mutex_);
  if (--users_ > 0) return;
  // Close it now: at the end of the process the library would call a CUDA driver that is already unloaded.
  if (const CuFileError result = driver_close_(); result.code != 0)
    log::debug("storage: closing cuFile failed: {}", cufile_cause(result.code));
}

std::optional<CuFileProperties> CuFileLibrary::properties() const {
  CuFileProperties properties{};
  if (driver_properties_(&properties).code != 0) return std::nullopt;
  return properties;
}

int CuFileLibrary::register_handle(int fd, void*& handle) {
  CuFileDescription description;
  description.handle.fd = fd;
  return handle_register_(&handle, &description).code;
}

Status CuFileLibrary::register_buffer(std::span<std::byte> range) {
  const MutexLock lock(buffers_mutex_);
  const auto after = buffers_.lower_bound(range.data());
  const bool meets_after = after != buffers_.end() && after->first < range.data() + range.size();
  const bool meets_before =
      after != buffers_.begin() && std::prev(after)->first + std::prev(after)->second > range.data();
  if (meets_after || meets_before) return error(Code::internal, "memory registered with cuFile overlaps other such");
  if (const CuFileError result = buffer_register_(range.data(), range.size(), 0); result.code != 0)
    return error(Code::io_error, "cuFile did not register {} bytes of memory: {}", range.size(),
                 cufile_cause(result.code));
  buffers_.emplace(range.data(), range.size());
  return {};
}

void CuFileLibrary::release_buffer(std::byte* begin) {
  const MutexLock lock(buffers_mutex_);
  buffers_.erase(begin);
  if (const CuFileError result = buffer_deregister_(begin); result.code != 0)
    log::debug("storage: cuFile did not release memory: {}", cufile_cause(result.code));
}

std::int64_t CuFileLibrary::read(void* handle, std::byte* destination, std::uint64_t bytes,
                                 std::uint64_t offset) const {
  // The library finds registered memory by the exact address it was registered with.
  std::byte* base = destination;
  {
    const MutexLock lock(buffers_mutex_);
    const auto after = buffers_.upper_bound(destination);
    if (after != buffers_.begin()) {
      const auto& [begin, size] = *std::prev(after);
      if (destination + bytes <= begin + size) base = begin;
    }
  }
  errno = 0;
  const ssize_t result = read_(handle, base, bytes, static_cast<off_t>(offset), destination - base);
  // Errors are -1 with errno (which may also hold cuFile's own numbers) or a negated number. A result above the
  // requested size is neither, and is treated as an error.
  if (result == -1) return errno != 0 ? -errno : -EIO;
  if (result > 0 && static_cast<std::uint64_t>(result) > bytes) return -kInternalError;
  return result;
}

Expected<CuFileSession> CuFileSession::open(const std::string& library) {
  MR_ASSIGN_OR_RETURN(CuFileLibrary * loaded, CuFileLibrary::load(library));
  MR_RETURN_IF_ERROR(loaded->open());
  CuFileSession session;
  session.library_ = loaded;
  return session;
}

}  // namespace millrace::storage
