/* The one function of Windows 10's bcryptprimitives.dll, which Wine 8 lacks and Go's run-time system calls: random bytes. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T bytes) {
  return SystemFunction036(data, (ULONG)bytes);
}
