#!/usr/bin/env bash
# Makes an archive of 9 MB for a Linux machine with an NVIDIA GPU where nothing can be installed: as much of Wine as millrace.exe and its
# tests take, and a nvcuda.dll that hands CUDA's driver functions on to Linux's driver. There, as root: tar xJf FILE -C /, then
# wine-gpu millrace.exe run MODEL. That Wine finds no FreeType, which it says, is of no matter. Wants Debian's wine64, wine64-tools and libwine-dev here, and a processor of x86-64 on both machines.
# Usage: scripts/wine_kit.sh FILE.txz
set -euo pipefail
[ $# -eq 1 ] || { sed -n 's/^# Usage: /usage: /p' "$0" >&2; exit 2; }
file=$(realpath -m "$1")
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/lib/wine
for program in winegcc-stable winebuild wine64 wineserver64; do
  command -v "$program" >/dev/null || { echo "wine_kit: there is no $program; apt-get install wine64 wine64-tools libwine-dev" >&2; exit 1; }
done
headers=$(dirname "$(dirname "$(scripts/find_nvcc.sh)")")/include
libraries=usr/lib/x86_64-linux-gnu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root prefix=$work/root/opt/wine-gpu

echo "Wine: a prefix"
WINEPREFIX=$work/prefix WINEDEBUG=-all WINEDLLOVERRIDES="winedbg.exe=d;mshtml=;mscoree=" DISPLAY='' timeout 120 wine64 wineboot --init >/dev/null 2>&1
WINEPREFIX=$work/prefix wineserver64 --wait

echo "Wine: nvcuda.dll"
python3 scripts/wine_nvcuda.py "$headers" "$work"
(cd "$work" && winegcc-stable -m64 -shared -O2 -w nvcuda.spec nvcuda.c -o nvcuda.dll -ldl &&
  winebuild -m64 --dll --fake-module -E nvcuda.spec -o placeholder.dll)

dlls=(actxprxy advapi32 apisetschema bcrypt cfgmgr32 combase crypt32 dnsapi gdi32 imm32 iphlpapi kernel32 kernelbase msvcrt nsi ntdll ole32 oleaut32
  propsys psapi rpcrt4 sechost secur32 setupapi shcore shell32 shlwapi ucrtbase user32 userenv uxtheme version win32u windowscodecs ws2_32 zlib1)
programs=(conhost explorer plugplay rpcss services start svchost wineboot winedevice)
files=("${dlls[@]/%/.dll}" "${programs[@]/%/.exe}" mountmgr.sys nsiproxy.sys ntoskrnl.exe)
mkdir -p "$root/usr/lib/wine" "$root/$libraries/wine"/x86_64-{unix,windows} "$root/usr/share/wine/nls" "$root/usr/local/bin" \
  "$prefix"/{dosdevices,drive_c/windows/system32,drive_c/users/root/Temp}
cp /usr/lib/wine/wine64 /usr/lib/wine/wineserver64 "$root/usr/lib/wine/"
ln -s wineserver64 "$root/usr/lib/wine/wineserver"
for library in bcrypt crypt32 dnsapi localspl mountmgr nsiproxy ntdll win32u ws2_32; do
  strip -o "$root/$libraries/wine/x86_64-unix/$library.so" "/$libraries/wine/x86_64-unix/$library.so"
done
cp "$work/nvcuda.dll.so" "$root/$libraries/wine/x86_64-unix/"
cp -L "/$libraries/libunwind.so.8" "$root/$libraries/"
for name in "${files[@]}"; do
  x86_64-w64-mingw32-strip -o "$root/$libraries/wine/x86_64-windows/$name" "/$libraries/wine/x86_64-windows/$name"
  ln -s "/$libraries/wine/x86_64-windows/$name" "$prefix/drive_c/windows/system32/"
done
cp "$work/placeholder.dll" "$prefix/drive_c/windows/system32/nvcuda.dll"
cp /usr/share/wine/wine.inf "$root/usr/share/wine/"
cp /usr/share/wine/nls/{c_437,c_850,c_1252,c_20127,c_28591,l_intl,locale,sortdefault}.nls /usr/share/wine/nls/norm*.nls "$root/usr/share/wine/nls/"
cp "$work"/prefix/*.reg "$prefix/"
echo disable >"$prefix/.update-timestamp"
ln -s ../drive_c "$prefix/dosdevices/c:"
ln -s / "$prefix/dosdevices/z:"
cat >"$root/usr/local/bin/wine-gpu" <<'X'
#!/bin/sh
# wine-gpu PROGRAM.exe [ARGUMENT...]: Linux's driver does not see what a Windows program sets in its environment, so that what Millrace's tests set is set here.
export WINEPREFIX="${WINEPREFIX:-/opt/wine-gpu}" WINEDEBUG=-all WINEDLLOVERRIDES="winedbg.exe=d;winemenubuilder.exe=d" DISPLAY=
export WINEDLLPATH=/usr/lib/x86_64-linux-gnu/wine/x86_64-unix CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-32}"
cuda=$(ldconfig -p | sed -n 's/.*libcuda\.so\.1 .*x86-64.*=> //p' | head -n 1)
[ -z "$cuda" ] || export LD_LIBRARY_PATH="$(dirname "$cuda"):/usr/lib/x86_64-linux-gnu:$LD_LIBRARY_PATH"
exec /usr/lib/wine/wine64 "$@"
X
chmod +x "$root/usr/local/bin/wine-gpu"
tar c -C "$root" . | xz -T0 -6 >"$file"
echo "$file: $(($(stat -c %s "$file") / 1000000)) MB"
