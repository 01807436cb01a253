#include "base/os/library.h"

#include "base/os/win32/win32.h"

namespace millrace::os {

Expected<Library> Library::load(const std::string& path, Symbols) {
  // A library finds others by their names, never its symbols: own and shared are one.
  HMODULE const handle = LoadLibraryW(wide_path(path).c_str());
  if (handle != nullptr) return Library(handle);
  return Status(Code::unsupported, fmt::format("{}: {}", path, last_error().message()));
}

void* Library::address(const char* name) const {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), name));
}

}  // namespace millrace::os
