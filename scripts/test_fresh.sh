#!/usr/bin/env bash
# Acts as a newcomer in bare systems (debootstrap) of Debian 12 and 13: a user with sudo clones the repository and types the
# README's two commands. Then everything is compiled with each system's g++ and clang, where a warning is a failure.
# Usage: scripts/test_fresh.sh [bookworm] [trixie] [--no-clang]; as root. Takes about 40 minutes a system on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
suites=() clang=1
for word in "$@"; do
  case "$word" in --no-clang) clang= ;; *) suites+=("$word") ;; esac
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
[ "$(id -u)" -eq 0 ] || { echo "test_fresh: chroots need root" >&2; exit 1; }
if [ -z "${INSIDE:-}" ]; then INSIDE=1 exec unshare --mount --pid --fork --kill-child "$0" "$@"; fi  # mounts and processes end with it
scripts/setup.sh try
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)
mkdir -p build/chroots

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }
for suite in "${suites[@]}"; do
  root=$PWD/build/chroots/$suite-fresh
  rm -rf "$root"
  echo "Installing bare Debian ($suite)"
  debootstrap --variant=minbase --include=sudo,make,git,ca-certificates "$suite" "$root" "$mirror" >"$root.log" 2>&1 || { tail -n 5 "$root.log" >&2; exit 1; }
  # How this machine reaches packages, and nothing else of it.
  cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
  cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  for file in /etc/apt/auth.conf /etc/pip.conf; do [ ! -e "$file" ] || install -D "$file" "$root$file"; done
  printf 'deb %s %s main\n' "$mirror" "$suite" >"$root/etc/apt/sources.list"
  mount --rbind /dev "$root/dev"  # with terminals (pts) and memory files (shm)
  mount --make-rslave "$root/dev"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys" 2>/dev/null || true
  chroot "$root" useradd --create-home --shell /bin/bash newcomer
  echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/newcomer"
  git clone --quiet --no-hardlinks . "$root/home/newcomer/millrace"
  chroot "$root" chown -R newcomer: /home/newcomer/millrace
  as_newcomer() { chroot "$root" su - newcomer -c "cd millrace && $*" </dev/null; }
  for command in "make demo" "make test"; do
    begin=$SECONDS
    as_newcomer "$command" >"$root.log" 2>&1 || { tail -n 40 "$root.log" >&2; echo "test_fresh: '$command' fails on $suite" >&2; exit 1; }
    echo "Debian $suite: '$command' works, $(minutes $((SECONDS - begin)))"
    if grep 'warning:' "$root.log"; then echo "test_fresh: the compiler warns on $suite" >&2; exit 1; fi
  done
  if [ -n "$clang" ]; then
    begin=$SECONDS
    as_newcomer "cmake --preset release -B build/clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DMILLRACE_TESTS=ON && ninja -C build/clang --quiet" \
      >"$root.log" 2>&1 || { grep -m 20 'error' "$root.log" >&2; echo "test_fresh: clang does not build it on $suite" >&2; exit 1; }
    if grep 'warning:' "$root.log"; then echo "test_fresh: clang warns on $suite" >&2; exit 1; fi
    echo "Debian $suite: clang builds it without a warning, $(minutes $((SECONDS - begin)))"
  fi
  umount --recursive "$root/dev" "$root/proc" "$root/sys" 2>/dev/null || true
  rm -rf "$root"
done
