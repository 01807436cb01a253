#!/usr/bin/env bash
# Holds programs and libraries to what Debian 12, Ubuntu 22.04 and 24.04 all have without installing anything: the C
# library, none of its symbols newer than 2.35 (Ubuntu 22.04's).  Usage: packaging/check_portable.sh FILES...
set -euo pipefail
newest=2.35
failed=0
for file in "$@"; do
  foreign=$(objdump -p "$file" | awk '$1 == "NEEDED" { print $2 }' | grep -vE '^(libc|libm|ld-linux-x86-64|ld-linux-aarch64)\.so\.[0-9]+$' || true)
  newer=$(objdump -T "$file" | sed -nE 's/.*\(?GLIBC_([0-9.]+)\)? +([^ ]+)$/\1 \2/p' | sort -u | while read -r version symbol; do
    [ "$(printf '%s\n' "$version" $newest | sort -V | tail -n 1)" = $newest ] || echo "$symbol@$version"
  done)
  if [ -n "$foreign$newer" ]; then
    echo "check_portable: $file asks for" $foreign $newer >&2
    failed=1
  fi
done
exit "$failed"
