#!/bin/sh
# Installs the archive that lies beside this script, or at an address, after its checksum was verified; asks for nothing
# but a C library of 2.35 or newer (Debian 12, Ubuntu 22.04 and later).
# Usage: install.sh [--prefix FOLDER] [--from FOLDER-OR-URL] [--remove]
#   --prefix  where to (default: /usr/local for root, else ~/.local)
#   --from    a folder, or an address to fetch from: millrace-VERSION-linux-CPU.tar.gz and its .sha256 (VERSION=... in the
#             environment, where it is an address)
#   --remove  take away what was installed under the prefix
set -eu
fail() { echo "install.sh: $*" >&2; exit 1; }

[ "$(id -u)" -eq 0 ] && prefix=/usr/local || prefix=${HOME:?}/.local
from=$(cd "$(dirname "$0")" && pwd)
remove=no
while [ $# -gt 0 ]; do
  case "$1" in
    --prefix) prefix=${2:?--prefix needs a folder}; shift 2 ;;
    --from) from=${2:?--from needs a folder or an address}; shift 2 ;;
    --remove) remove=yes; shift ;;
    *) sed -n 's/^# \{0,1\}//; 2,8p' "$0"; [ "$1" = --help ] && exit 0; exit 2 ;;
  esac
done
list=share/millrace/installed

if [ "$remove" = yes ]; then
  [ -f "$prefix/$list" ] || fail "nothing that it installed is under $prefix"
  while IFS= read -r file; do rm -f "$prefix/$file"; done <"$prefix/$list"
  rm -f "$prefix/$list"
  find "$prefix/share/millrace" "$prefix/share/doc/millrace" "$prefix/lib/cmake/millrace" -depth -type d -empty -delete 2>/dev/null || true
  echo "Removed Millrace from $prefix"
  exit 0
fi

version=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //')
[ -n "$version" ] || fail "this system's C library is not glibc"
[ "$(printf '%s\n2.35\n' "$version" | sort -V | head -n 1)" = 2.35 ] || fail "glibc 2.35 or newer is needed; here is $version"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case "$from" in
  http://* | https://*)
    name=millrace-${VERSION:?set VERSION to the one to fetch}-linux-$(uname -m).tar.gz
    for file in "$name" "$name.sha256"; do
      if command -v curl >/dev/null; then curl -fsSL -o "$work/$file" "$from/$file"; else wget -q -O "$work/$file" "$from/$file"; fi ||
        fail "cannot fetch $from/$file"
    done ;;
  *)
    set -- "$from"/millrace-*-linux-"$(uname -m)".tar.gz
    [ $# -eq 1 ] && [ -f "$1" ] || fail "$from must hold one millrace-VERSION-linux-$(uname -m).tar.gz"
    name=$(basename "$1")
    [ -f "$1.sha256" ] || fail "$1.sha256 is not there, so that the archive cannot be verified"
    cp "$1" "$1.sha256" "$work" ;;
esac
# The name in the checksum's file is not trusted: its first word is.
sum=$(cut -d ' ' -f 1 "$work/$name.sha256")
echo "$sum  $work/$name" | sha256sum -c --status - || fail "$name does not have the checksum in $name.sha256; nothing was installed"

mkdir -p "$prefix/share/millrace"
tar -xzf "$work/$name" -C "$prefix" --strip-components=1 --no-same-owner
tar -tzf "$work/$name" | sed -n 's|^[^/]*/\(.*[^/]\)$|\1|p' >"$prefix/$list"
echo "Installed $("$prefix/bin/millrace" --version) into $prefix"
case ":$PATH:" in *":$prefix/bin:"*) ;; *) echo "Put $prefix/bin on your PATH to call it by name." ;; esac
echo "Try it: millrace run $prefix/share/millrace/demo-moe-q4_k_m.gguf -p 'What is the capital of France?'"
