#!/usr/bin/env bash
# Gathers in build/static what the portable build links in: a folder of archives (lib*.a) and nothing else, so that
# whoever looks there first cannot find a shared library. Debian 12 has most of them in its -dev packages. Seven it has
# as shared libraries only, or as archives of which no shared library can be made, or with what Millrace does not use
# (curl's LDAP, Kerberos, SSH): those are built from Debian's own sources, which apt verifies.
# Usage: packaging/static_libs.sh; does nothing where it has run as it stands.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/build/static
cmp -s packaging/static_libs.sh "$out/done" && exit 0
if ! grep -q 'VERSION_CODENAME=bookworm' /etc/os-release 2>/dev/null; then
  echo "static_libs: packages are built on Debian 12, whose C library is old enough for all three systems" >&2
  exit 1
fi
scripts/setup.sh build package
rm -rf "$out"
mkdir -p "$out/src/lists/partial" "$out/src/cache" "$out/lib" "$out/log"

mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' | awk '$2 == "bookworm" { print $1; exit }')
[ -n "$mirror" ] || { echo "static_libs: apt knows no mirror of Debian 12 to fetch sources from" >&2; exit 1; }
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
for suite in bookworm bookworm-updates; do
  echo "deb-src [signed-by=$keyring] $mirror $suite main"
done >"$out/src/sources.list"
apt=(apt-get -q -o Dir::Etc::sourcelist="$out/src/sources.list" -o Dir::Etc::sourceparts=/dev/null
     -o Dir::State::lists="$out/src/lists" -o Dir::Cache="$out/src/cache" -o APT::Sandbox::User=root)
echo "Fetching sources: curl cpp-httplib prometheus-cpp fmtlib spdlog libjpeg-turbo libpng1.6"
(cd "$out/src" && "${apt[@]}" update && "${apt[@]}" source curl cpp-httplib prometheus-cpp fmtlib spdlog libjpeg-turbo libpng1.6) >"$out/log/fetch" 2>&1 ||
  { tail -n 15 "$out/log/fetch" >&2; exit 1; }

# step NAME COMMAND...: what it says goes to a log that is shown when it fails.
step() {
  local name=$1; shift
  echo "Building $name"
  "$@" >"$out/log/$name" 2>&1 &  # a shell of its own, which ends at the first command that fails
  wait $! || { tail -n 30 "$out/log/$name" >&2; echo "static_libs: $name failed" >&2; exit 1; }
}
with_cmake() {  # SOURCE OPTIONS...
  local source=$1; shift
  cmake -G Ninja -S "$source" -B "$source/out" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DBUILD_SHARED_LIBS=OFF -DCMAKE_UNITY_BUILD=ON -DCMAKE_INSTALL_PREFIX="$out" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_PREFIX_PATH="$out" \
    -DCMAKE_FIND_PACKAGE_NO_PACKAGE_REGISTRY=ON "$@"
  cmake --build "$source/out"
  cmake --install "$source/out"
}
build_httplib() {
  cd "$out"/src/cpp-httplib-*/
  # Debian's package is split into header and source, and the program is compiled against its header.
  python3 ./split.py
  diff -q out/httplib.h /usr/include/httplib.h
  local flags="-DCPPHTTPLIB_OPENSSL_SUPPORT -DCPPHTTPLIB_ZLIB_SUPPORT -DCPPHTTPLIB_BROTLI_SUPPORT"
  g++ -std=c++17 -O2 -fPIC -I out -I . $flags -DCPPHTTPLIB_USE_POLL -c out/httplib.cc -o httplib.o
  ar rcs "$out/lib/libcpp-httplib.a" httplib.o
  package cpp-httplib "-lcpp-httplib -lbrotlienc -lbrotlidec -lbrotlicommon -lssl -lcrypto -lz" "$flags"
}
package() {  # NAME LIBS CFLAGS: a pkg-config file
  printf '%s\n' "Name: $1" "Description: for the portable build" "Version: 1" "Libs: -L$out/lib $2" "Cflags: $3" >"$out/lib/pkgconfig/$1.pc"
}
mkdir -p "$out/lib/pkgconfig"
# Transfers of http and https alone, certificates where Debian and Ubuntu keep them. Most of its time goes into questions to
# the compiler, one at a time, beside which the others are built.
step curl with_cmake "$(echo "$out"/src/curl-*/)" -DHTTP_ONLY=ON -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF -DPICKY_COMPILER=OFF \
  -DCURL_USE_OPENSSL=ON -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF -DUSE_LIBIDN2=OFF -DENABLE_UNIX_SOCKETS=OFF -DCURL_DISABLE_NTLM=ON \
  -DCURL_DISABLE_ALTSVC=ON -DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt -DCURL_CA_PATH=/etc/ssl/certs &
curl=$!
step fmt with_cmake "$(echo "$out"/src/fmtlib-*)" -DFMT_TEST=OFF -DFMT_DOC=OFF
step spdlog with_cmake "$(echo "$out"/src/spdlog-*)" -DSPDLOG_BUILD_EXAMPLE=OFF -DSPDLOG_BUILD_TESTS=OFF -DSPDLOG_FMT_EXTERNAL=ON
step prometheus with_cmake "$(echo "$out"/src/prometheus-cpp-*)" -DENABLE_PULL=OFF -DENABLE_PUSH=OFF -DENABLE_TESTING=OFF -DENABLE_COMPRESSION=OFF -DUSE_THIRDPARTY_LIBRARIES=OFF -DGENERATE_PKGCONFIG=ON
step jpeg with_cmake "$(echo "$out"/src/libjpeg-turbo-*/)" -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DCMAKE_UNITY_BUILD=OFF -DCMAKE_INSTALL_LIBDIR="$out/lib"
step png with_cmake "$(echo "$out"/src/libpng1.6-*/)" -DPNG_SHARED=OFF -DPNG_TESTS=OFF -DCMAKE_UNITY_BUILD=OFF
step httplib build_httplib
wait "$curl"
package libcurl "-lcurl -lssl -lcrypto -lz" ""
for name in uring pcre2-8 utf8proc xxhash edit bsd md tinfo ssl crypto z webp brotlienc brotlidec brotlicommon; do  # Debian's own
  ln -sf "$(gcc -print-file-name="lib$name.a")" "$out/lib/lib$name.a"
done
for name in uring pcre2-8 xxhash; do package "lib$name" "-l$name" ""; done
package libwebp "-lwebp -lm -lpthread" ""
package libutf8proc "-lutf8proc" "-DUTF8PROC_EXPORTS"
package libedit "-ledit -lbsd -lmd -ltinfo" "-I/usr/include/editline"
gcc -O2 -fPIC -c packaging/arc4random.c -o "$out/arc4random.o"
ar rcs "$out/lib/libarc4random.a" "$out/arc4random.o"
# Their headers are those that Debian has: what is compiled without them is what is linked here.
sed -i -E "/^Cflags:/s#-I(\\$\{includedir\}|$out/include)##g" "$out"/lib/pkgconfig/*.pc
# The notices that their licences ask to be handed on.
for package in libcurl4-openssl-dev libssl-dev libcpp-httplib-dev libbrotli-dev prometheus-cpp-dev libfmt-dev libspdlog-dev liburing-dev \
    libpcre2-dev libutf8proc-dev libxxhash-dev libedit-dev libbsd-dev libmd-dev libncurses-dev zlib1g-dev \
    libjpeg62-turbo-dev libpng-dev libwebp-dev \
    nlohmann-json3-dev libcli11-dev libstdc++-12-dev; do
  printf '\n==== %s %s ====\n' "$package" "$(dpkg-query -W -f='${Version}' "$package")"
  cat "/usr/share/doc/$package/copyright"
done >"$out/THIRD_PARTY.txt"
cp packaging/static_libs.sh "$out/done"
