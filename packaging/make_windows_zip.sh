#!/usr/bin/env bash
# Makes of the Windows build in build/packages-windows the zip, its checksum, and beside them install.ps1, which knows the sum. With
# the address that the zip will be published under, also winget's manifest. The GPU part is in it, unless CUDA=OFF is in the environment.
# Usage: packaging/make_windows_zip.sh [ADDRESS]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build windows
packaging/windows_libs.sh
CUDA=${CUDA:-ON} scripts/build.sh windows millrace millrace_shared
build=build/windows packages=build/packages-windows
rm -rf "$packages"
(cd "$build" && cpack >cpack.log 2>&1) || { tail -n 20 "$build/cpack.log" >&2; exit 1; }
rm -rf "$packages/_CPack_Packages"
zip=$(echo "$packages"/millrace-*-windows-x86_64.zip)
version=$(sed -nE 's/^project\(millrace VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
fill() {  # FILE FOLDER
  sed -e "s|@VERSION@|$version|g; s|@SHA256@|$(cut -d ' ' -f 1 "$zip.sha256" | tr a-f A-F)|; s|@URL@|${address%/}|" "$1" >"$2/$(basename "$1")"
}
address=${1:-}
fill packaging/windows/install.ps1 "$packages"
if [ -n "$address" ]; then
  mkdir "$packages/winget"
  for file in packaging/windows/*.yaml; do fill "$file" "$packages/winget"; done
fi
echo "The zip in $packages:"
ls -sh "$packages"
