#include "base/os/library.h"

#include <dlfcn.h>

namespace millrace::os {

Expected<Library> Library::load(const std::string& path, Symbols symbols) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | (symbols == Symbols::shared ? RTLD_GLOBAL : RTLD_LOCAL));
  if (handle != nullptr) return Library(handle);
  const char* const said = dlerror();
  return Status(Code::unsupported, said != nullptr ? said : path);
}

void* Library::address(const char* name) const { return dlsym(handle_, name); }

}  // namespace millrace::os
