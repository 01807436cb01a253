// The system's handle of an open file, folder or pipe, and of a socket. Only src/base/os interprets the value.
#pragma once

#include <cstdint>

namespace millrace::os {

#if defined(_WIN32)
using Handle = std::intptr_t;         // a HANDLE
using SocketHandle = std::uintptr_t;  // a SOCKET
#else
using Handle = int;
using SocketHandle = int;
#endif
inline constexpr Handle kNoHandle = -1;
inline constexpr SocketHandle kNoSocket = static_cast<SocketHandle>(-1);

}  // namespace millrace::os
