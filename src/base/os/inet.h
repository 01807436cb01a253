// Includes the system's networking headers. Only for sources of this folder and its tests.
#pragma once

#if defined(_WIN32)
// clang-format off: in this order
#include <winsock2.h>
#include <ws2tcpip.h>
// clang-format on
#else
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#endif
