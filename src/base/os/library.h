// Dynamic libraries, loaded while the program runs. A loaded library stays until the process ends: what it started may
// still run. Thread-safety: functions and const methods from any thread.
#pragma once

#include <string>
#include <type_traits>

#include "base/status.h"

namespace millrace::os {

class Library {
 public:
  /// Who finds the library's symbols: those who hold the object, or every library that is loaded behind it.
  enum class Symbols { own, shared };

  /// path: a file, or a name that the system looks up. Errors: unsupported (the system's words for why not).
  static Expected<Library> load(const std::string& path, Symbols symbols = Symbols::own);

  /// The function of that name; null: it has none. REQUIRES: `call` is a pointer to such a function.
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
