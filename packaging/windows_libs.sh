#!/usr/bin/env bash
# Builds in build/windows-libs the libraries that the Windows build links in, from Debian's own sources, which apt verifies:
# Debian has only zlib for mingw-w64. About 6 minutes on two cores, half of it OpenSSL.
# Usage: packaging/windows_libs.sh [core]; core: without those that only the server and the model store need, in 1 minute. A library that
# was built by the same commands is not built again.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/build/windows-libs
if ! grep -q 'VERSION_CODENAME=bookworm' /etc/os-release 2>/dev/null; then
  echo "windows_libs: the Windows build is made on Debian 12, whose compiler and sources it was tested with" >&2
  exit 1
fi
mkdir -p "$out/src" "$out/lib/pkgconfig" "$out/include" "$out/log" "$out/done"

fetch() {  # SOURCE...: unpacks those that are not there yet
  local wanted=() source
  for source in "$@"; do
    compgen -G "$out/src/$source-*/" >/dev/null || wanted+=("$source")
  done
  [ ${#wanted[@]} -gt 0 ] || return 0
  local mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg suite
  mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' | awk '$2 == "bookworm" { print $1; exit }')
  [ -n "$mirror" ] || { echo "windows_libs: apt knows no mirror of Debian 12 to fetch sources from" >&2; exit 1; }
  mkdir -p "$out/src/lists/partial" "$out/src/cache"
  for suite in bookworm bookworm-updates; do
    echo "deb-src [signed-by=$keyring] $mirror $suite main"
  done >"$out/src/sources.list"
  local apt=(apt-get -q -o Dir::Etc::sourcelist="$out/src/sources.list" -o Dir::Etc::sourceparts=/dev/null
             -o Dir::State::lists="$out/src/lists" -o Dir::Cache="$out/src/cache" -o APT::Sandbox::User=root)
  echo "Fetching sources: ${wanted[*]}"
  (cd "$out/src" && "${apt[@]}" update && "${apt[@]}" source "${wanted[@]}") >"$out/log/fetch" 2>&1 ||
    { tail -n 15 "$out/log/fetch" >&2; exit 1; }
}

# step NAME COMMAND...: runs the command unless the same one has succeeded before. Its output goes to a log that is shown when
# it fails.
step() {
  local name=$1 text; shift
  text="$* $(declare -f "$1")"
  [ "$(cat "$out/done/$name" 2>/dev/null)" != "$text" ] || return 0
  echo "Building $name for Windows"
  "$@" >"$out/log/$name" 2>&1 &  # a shell of its own, which ends at the first command that fails
  wait $! || { tail -n 30 "$out/log/$name" >&2; echo "windows_libs: $name failed" >&2; exit 1; }
  echo "$text" >"$out/done/$name"
}
with_cmake() {  # SOURCE OPTIONS...; SOURCE: a name of a folder of sources without its version, or a folder below one
  local source
  source=$(echo "$out/src/"${1%%/*}-*/)
  [ "${1%%/*}" = "$1" ] || source=$source/${1#*/}
  shift
  rm -rf "$source/out"
  cmake -G Ninja -S "$source" -B "$source/out" -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/windows.cmake" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX="$out" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_FIND_PACKAGE_NO_PACKAGE_REGISTRY=ON "$@"
  cmake --build "$source/out"
  cmake --install "$source/out"
}
package() {  # NAME LIBS CFLAGS: a pkg-config file
  printf '%s\n' "Name: $1" "Description: for the Windows build" "Version: 1" "Libs: -L$out/lib $2" "Cflags: -I$out/include $3" \
    >"$out/lib/pkgconfig/$1.pc"
}
cc() { x86_64-w64-mingw32-gcc-posix -O2 -D_WIN32_WINNT=0x0A00 -D_FILE_OFFSET_BITS=64 "$@"; }
archive() { x86_64-w64-mingw32-gcc-ar-posix rcs "$@"; }

build_utf8proc() {
  cd "$out"/src/utf8proc-*/
  cc -DUTF8PROC_STATIC -c utf8proc.c -o utf8proc.o
  archive "$out/lib/libutf8proc.a" utf8proc.o
  cp utf8proc.h "$out/include/"
  package libutf8proc "-lutf8proc" "-DUTF8PROC_STATIC"
}
build_xxhash() {
  cd "$out"/src/xxhash-*/
  cc -c xxhash.c -o xxhash.o
  archive "$out/lib/libxxhash.a" xxhash.o
  cp xxhash.h xxh3.h "$out/include/"
  package libxxhash "-lxxhash" ""
}
build_pcre2() {
  with_cmake pcre2 -DPCRE2_BUILD_PCRE2_8=ON -DPCRE2_SUPPORT_JIT=ON -DPCRE2_BUILD_TESTS=OFF -DPCRE2_BUILD_PCRE2GREP=OFF \
    -DPCRE2_SUPPORT_LIBZ=OFF -DPCRE2_SUPPORT_LIBBZ2=OFF -DPCRE2_SUPPORT_LIBREADLINE=OFF -DPCRE2_SUPPORT_LIBEDIT=OFF
  package libpcre2-8 "-lpcre2-8" "-DPCRE2_STATIC"
}
build_webp() {
  with_cmake libwebp -DWEBP_BUILD_ANIM_UTILS=OFF -DWEBP_BUILD_CWEBP=OFF -DWEBP_BUILD_DWEBP=OFF -DWEBP_BUILD_GIF2WEBP=OFF \
    -DWEBP_BUILD_IMG2WEBP=OFF -DWEBP_BUILD_VWEBP=OFF -DWEBP_BUILD_WEBPINFO=OFF -DWEBP_BUILD_WEBPMUX=OFF -DWEBP_BUILD_EXTRAS=OFF
  package libwebp "-lwebp" ""
}
build_png() {
  with_cmake libpng1.6 -DPNG_SHARED=OFF -DPNG_TESTS=OFF -DPNG_EXECUTABLES=OFF
  package libpng "-lpng16 -lz" ""
}
build_jpeg() {
  with_cmake libjpeg-turbo -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DCMAKE_INSTALL_LIBDIR="$out/lib"
  package libjpeg "-ljpeg" ""
}
# Transfers of http and https alone, by the system's own TLS (schannel), which knows the system's certificates.
build_curl() {
  with_cmake curl -DHTTP_ONLY=ON -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF -DPICKY_COMPILER=OFF -DCURL_ZLIB=OFF \
    -DCURL_USE_SCHANNEL=ON -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF -DUSE_LIBIDN2=OFF -DCURL_DISABLE_NTLM=ON -DCURL_DISABLE_ALTSVC=ON
  package libcurl "-lcurl -lws2_32 -lcrypt32 -lbcrypt" "-DCURL_STATICLIB"
}
build_openssl() {
  cd "$out"/src/openssl-*/
  ./Configure mingw64 --cross-compile-prefix=x86_64-w64-mingw32- --prefix="$out" --libdir=lib no-shared no-tests no-engine no-dso \
    CC=gcc-posix AR=gcc-ar-posix RANLIB=gcc-ranlib-posix -D_WIN32_WINNT=0x0A00
  make -j"$(nproc)" build_libs
  make install_dev
}
# Debian's package is split into header and source; plain HTTP, which whoever serves the internet puts a proxy before.
build_httplib() {
  cd "$out"/src/cpp-httplib-*/
  python3 ./split.py
  local flags="-DCPPHTTPLIB_OPENSSL_SUPPORT -DCPPHTTPLIB_ZLIB_SUPPORT"
  x86_64-w64-mingw32-g++-posix -std=c++17 -O2 -D_WIN32_WINNT=0x0A00 -D_FILE_OFFSET_BITS=64 -I "$out/include" -I out -I . $flags \
    -c out/httplib.cc -o httplib.o
  archive "$out/lib/libcpp-httplib.a" httplib.o
  cp out/httplib.h "$out/include/"
  package cpp-httplib "-lcpp-httplib -lssl -lcrypto -lz -lws2_32 -lcrypt32" "$flags"
}
build_prometheus() {
  with_cmake prometheus-cpp -DENABLE_PULL=OFF -DENABLE_PUSH=OFF -DENABLE_TESTING=OFF -DENABLE_COMPRESSION=OFF \
    -DUSE_THIRDPARTY_LIBRARIES=OFF -DGENERATE_PKGCONFIG=ON
}

fetch fmtlib spdlog pcre2 utf8proc xxhash nlohmann-json3 cli11 googletest libjpeg-turbo libpng1.6 libwebp
step fmt with_cmake fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF
step spdlog with_cmake spdlog -DSPDLOG_BUILD_EXAMPLE=OFF -DSPDLOG_BUILD_TESTS=OFF -DSPDLOG_FMT_EXTERNAL=ON
step xxhash build_xxhash
step json with_cmake nlohmann-json3 -DJSON_BuildTests=OFF
step googletest with_cmake googletest -DINSTALL_GTEST=ON -DBUILD_GMOCK=OFF
step pcre2 build_pcre2
step utf8proc build_utf8proc
step cli11 with_cmake cli11 -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF -DCLI11_PRECOMPILED=OFF
step jpeg build_jpeg
step png build_png
step webp build_webp
[ "${1:-}" = core ] && exit 0
fetch curl openssl cpp-httplib prometheus-cpp
step prometheus build_prometheus
step curl build_curl
step openssl build_openssl
step httplib build_httplib

# The notices that their licences ask to be handed on, in packages; of the compiler's run-time libraries, too.
notice() { printf '\n==== %s ====\n' "$1"; cat "$2"; }
for source in fmtlib spdlog pcre2 utf8proc xxhash nlohmann-json3 cli11 libjpeg-turbo libpng1.6 libwebp curl openssl cpp-httplib prometheus-cpp; do
  folder=$(echo "$out/src/$source"-*/)
  notice "$(basename "$folder")" "$folder/debian/copyright"
done >"$out/THIRD_PARTY.txt"
for package in libz-mingw-w64-dev mingw-w64-x86-64-dev gcc-mingw-w64-x86-64-posix-runtime; do
  notice "$package $(dpkg-query -W -f='${Version}' "$package")" "/usr/share/doc/$package/copyright"
done >>"$out/THIRD_PARTY.txt"
