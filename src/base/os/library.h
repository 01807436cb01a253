// Dynamic libraries, loaded at run time. They are never unloaded, because threads that they started may still run.
// Thread-safety: functions and const methods from any thread.
#pragma once

#include <string>
#include <type_traits>

#include "base/status.h"

namespace millrace::os {

class Library {
 public:
  /// Visibility of the library's symbols: only through the object, or to all libraries loaded later.
  enum class Symbols { own, shared };

  /// path: a file, or a name that the system searches for. Errors: unsupported (with the system's reason).
  static Expected<Library> load(const std::string& path, Symbols symbols = Symbols::own);

  /// Looks up the function; null: missing. REQUIRES: `call` points to a function pointer of that type.
  template <typename Function>
  void find(const char* name, Function*& call) const {
    static_assert(std::is_function_v<Function>);
    call = reinterpret_cast<Function*>(address(name));
  }

 private:
  explicit Library(void* handle) : handle_(handle) {}
  void* address(const char* name) const;

  void* handle_;
};

}  // namespace millrace::os
