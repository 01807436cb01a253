#!/usr/bin/env bash
# Makes the .deb, the archive and the wheel of a portable build in build/packages, or, where it does not
# run on all that Millrace supports, in build/packages-cpu or -part (cmake/package.cmake); install.sh lies beside them.
# Usage: packaging/make_packages.sh PRESET
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/$1
packages=$(sed -n 's/^set(CPACK_PACKAGE_DIRECTORY "\(.*\)")/\1/p' "$build/CPackConfig.cmake")
packaging/check_portable.sh "$build/millrace" "$build/libmillrace.so"
packaging/make_man.sh "$build/millrace" "$build/man"
packaging/make_completions.sh "$build/millrace" "$build/completions"
rm -rf "$packages"  # install.sh takes the one archive beside it
(cd "$build" && cpack >cpack.log 2>&1) || { tail -n 20 "$build/cpack.log" >&2; exit 1; }
rm -rf "$packages/_CPack_Packages"
cp packaging/install.sh "$packages"
packaging/make_wheel.sh "$1" "$packages"
echo "Packages in ${packages#"$PWD"/}:"
ls -sh "$packages"
