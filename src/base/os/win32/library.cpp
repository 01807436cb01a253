#include "base/os/library.h"

#include <filesystem>

#include "base/os/win32/win32.h"

namespace millrace::os {

Expected<Library> Library::load(const std::string& path, Symbols) {
  // Symbols are always private on Windows, so own and shared are the same. A bare name is searched beside
  // the program and in the system's folder, never in the current folder or PATH, where others could plant one.
  const bool name_alone = path.find_first_of("/\\:") == std::string::npos;
  HMODULE const handle = name_alone
                             ? LoadLibraryExW(to_wide(path).c_str(), nullptr,
                                              LOAD_LIBRARY_SEARCH_APPLICATION_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32)
                             : LoadLibraryExW(std::filesystem::absolute(wide_path(path)).make_preferred().c_str(),
                                              nullptr, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (handle != nullptr) return Library(handle);
  return Status(Code::unsupported, fmt::format("{}: {}", path, last_error().message()));
}

void* Library::address(const char* name) const {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), name));
}

}  // namespace millrace::os
