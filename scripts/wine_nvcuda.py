#!/usr/bin/env python3
"""Writes the source of a nvcuda.dll for Wine that hands CUDA's driver functions on to Linux's libcuda.so.1: nvcuda.c and nvcuda.spec,
for winegcc (scripts/wine_kit.sh).

    scripts/wine_nvcuda.py HEADERS FOLDER    cuda.h is in HEADERS

Every function takes and gives on twelve integers, more than any has; none has a floating-point number by value.
"""
import pathlib
import re
import subprocess
import sys

MOST = 12
HEAD = """// Made by scripts/wine_nvcuda.py.
#include <dlfcn.h>
#include <windows.h>

static HINSTANCE self;
static void* of_linux(const char* name) {
  static void* library;
  if (!library) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  return library ? dlsym(library, name) : 0;
}
typedef long long (*Function)(%s);
/* Who asks for a function calls it as Windows' functions are called: it gets this library's own. */
long long WINAPI cuGetProcAddress_v2(const char* name, void** found, int version, unsigned long long flags, int* result) {
  *found = of_linux(name) ? (void*)GetProcAddress(self, name) : 0;
  if (result) *result = *found ? 0 : 1;
  return 0;
}
BOOL WINAPI DllMain(HINSTANCE library, DWORD reason, void* reserved) {
  self = library;
  return TRUE;
}
"""
NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    headers, out = map(pathlib.Path, sys.argv[1:])
    text = subprocess.run(["g++", "-E", "-x", "c++", f"-I{headers}", headers / "cuda.h"], check=True, capture_output=True, text=True).stdout
    names = sorted(set(re.findall(r"\bCUresult\s+(cu[A-Z]\w+)\s*\(", text)) - {"cuGetProcAddress_v2"})
    if len(names) < 300:
        sys.exit(f"wine_nvcuda: only {len(names)} functions found in {headers / 'cuda.h'}")
    takes = ", ".join(f"long long a{i}" for i in range(MOST))
    gives = ", ".join(f"a{i}" for i in range(MOST))
    with open(out / "nvcuda.c", "w") as file:
        file.write(HEAD % ", ".join(["long long"] * MOST))
        for name in names:
            file.write(f"long long WINAPI {name}({takes}) {{\n  static Function f;\n  if (!f) f = (Function)of_linux(\"{name}\");\n"
                       f"  return f ? f({gives}) : {NOT_FOUND};\n}}\n")
    with open(out / "nvcuda.spec", "w") as file:
        file.write("@ stdcall cuGetProcAddress_v2(ptr ptr long int64 ptr)\n")
        for name in names:
            file.write(f"@ stdcall {name}({' '.join(['int64'] * MOST)})\n")
    print(f"{len(names) + 1} functions")


main()
