// Variables of this process's environment, on every system.
#pragma once

#include <cstdlib>

namespace millrace::test {

#if defined(_WIN32)
inline void set_variable(const char* name, const char* value) { _putenv_s(name, value); }
inline void unset_variable(const char* name) { _putenv_s(name, ""); }
#else
inline void set_variable(const char* name, const char* value) { setenv(name, value, 1); }
inline void unset_variable(const char* name) { unsetenv(name); }
#endif

}  // namespace millrace::test
