#include "base/os/system_name.h"

#include <fmt/format.h>

#include "base/os/win32/win32.h"

namespace millrace::os {

std::string system_name() {
  HMODULE const kernel = GetModuleHandleW(L"ntdll.dll");
  const auto function = [kernel](const char* name) { return reinterpret_cast<void*>(GetProcAddress(kernel, name)); };
  // GetVersionEx() is answered by what the manifest names, this by what runs.
  using GetVersion = LONG(WINAPI*)(OSVERSIONINFOW*);
  using GetWineVersion = const char*(CDECL*)();
  OSVERSIONINFOW version{};
  version.dwOSVersionInfoSize = sizeof(version);
  const auto get_version = reinterpret_cast<GetVersion>(function("RtlGetVersion"));
  if (get_version == nullptr || get_version(&version) != 0) return "Windows";
  const auto get_wine_version = reinterpret_cast<GetWineVersion>(function("wine_get_version"));
  return fmt::format("Windows {}.{}.{}{}", version.dwMajorVersion, version.dwMinorVersion, version.dwBuildNumber,
                     get_wine_version != nullptr ? fmt::format(" (Wine {})", get_wine_version()) : "");
}

}  // namespace millrace::os
