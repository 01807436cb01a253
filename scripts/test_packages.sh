#!/usr/bin/env bash
# Tries what packaging/make_packages.sh made of a preset where nothing else is installed: the .deb and the archive each in a
# bare chroot (debootstrap) of Debian 12, and of Ubuntu 22.04 and 24.04 where their packages can be had; and the image that
# packaging/Dockerfile makes of the .deb. Needs root.
# Usage: scripts/test_packages.sh PRESET; in the environment UBUNTU_MIRROR=URL, without which Ubuntu is skipped, and
# UNSIGNED=1 to take its packages where /usr/share/keyrings has no Ubuntu key to verify them with (Debian 12 has none)
# With --can in place of a preset it tries nothing, and succeeds where it could; where not it says why.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/test_packages.sh PRESET, or --can}
passed=0 skipped=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debian=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' 2>/dev/null | awk '$2 == "bookworm" { print $1; exit }') || true

if [ "$preset" = --can ]; then
  apt=(/usr/lib/apt/apt-helper -o Acquire::Retries=0 -o Acquire::http::Timeout=20)
  why=
  if ! grep -q 'VERSION_CODENAME=bookworm' /etc/os-release 2>/dev/null; then why="they are made on Debian 12"
  elif [ "$(id -u)" -ne 0 ]; then why="chroots need root"
  elif ! chroot / true 2>/dev/null; then why="chroots are not allowed here"
  elif [ -z "$debian" ] || ! "${apt[@]}" download-file "$debian/dists/bookworm/InRelease" "$work/InRelease" >/dev/null 2>&1; then
    why="Debian's packages cannot be had here"
  fi
  [ -z "$why" ] || { echo "packages: skipped, $why" >&2; exit 1; }
  exit 0
fi

packages=$(sed -n 's/^set(CPACK_PACKAGE_DIRECTORY "\(.*\)")/\1/p' "build/$preset/CPackConfig.cmake")
deb=$(echo $packages/millrace_*_"$(dpkg --print-architecture)".deb)
archive=$(echo $packages/millrace-*-linux-"$(uname -m)".tar.gz)
[ -f "$deb" ] && [ -f "$archive" ] || { echo "test_packages: run 'packaging/make_packages.sh $preset' first" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || { echo "test_packages: chroots need root" >&2; exit 1; }
scripts/setup.sh try
version=$(sed -nE 's/^project\(millrace VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)

fail() { echo "test_packages: $*" >&2; exit 1; }
check() {  # WHAT COMMAND...
  local what=$1; shift
  "$@" >"$work/said" 2>&1 || { tail -n 20 "$work/said" >&2; fail "$what"; }
  passed=$((passed + 1))
}
answers() {  # CHROOT PROGRAM MODEL: the bundled model, within one minute of the first call
  timeout 60 chroot "$1" "$2" run "$3" --ram 20M --temp 0 -p "What is the capital of France?" | grep -q Paris
}
serves() {  # COMMAND...: it says where it listens, and answers there
  timeout 60 "$@" >"$work/serve" &
  local server=$! address=
  for _ in $(seq 300); do address=$(grep -o -m 1 'http://.*' "$work/serve") && break; sleep 0.1; done
  python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())' "$address/api/version" | grep -q "\"millrace\": *\"$version\"" || return 1
  kill "$server"
  wait "$server" || true
}
try_deb() {  # CHROOT
  cp "$deb" "$1/tmp/millrace.deb"
  check "the .deb does not install" chroot "$1" dpkg -i /tmp/millrace.deb
  check "it says another version" grep -qx "millrace $version" <(chroot "$1" millrace --version)
  check "it does not answer" answers "$1" millrace /usr/share/millrace/demo-moe-q4_k_m.gguf
  check "there is no user" chroot "$1" getent passwd millrace
  printf 'port = 0\nram = 40M\nprompt-cache = off\nmodels = /usr/share/millrace\n' >"$1/tmp/serve.conf"
  check "it does not serve as its user" serves chroot --userspec=millrace "$1" /usr/bin/millrace serve --config /tmp/serve.conf
  check "a man page is missing" test -s "$1/usr/share/man/man1/millrace-serve.1.gz" -a -s "$1/usr/share/man/man1/millrace.1.gz"
  check "a completion is missing" test -s "$1/usr/share/bash-completion/completions/millrace" -a -s "$1/usr/share/zsh/vendor-completions/_millrace" -a -s "$1/usr/share/fish/vendor_completions.d/millrace.fish"
  echo "ram = 1G" >>"$1/etc/millrace/serve.conf"
  check "it cannot be removed" chroot "$1" dpkg -r millrace
  check "its settings went with it" grep -q "ram = 1G" "$1/etc/millrace/serve.conf"
  check "it cannot be purged" chroot "$1" dpkg -P millrace
  check "something of it stayed" test -z "$(chroot "$1" find / -xdev -path /proc -prune -o -path /tmp -prune -o -iname '*millrace*' -print)"
}
try_archive() {  # CHROOT
  mkdir -p "$1/tmp/in it" "$1/opt/a b"
  cp "$archive" "$archive.sha256" packaging/install.sh "$1/tmp/in it"
  check "install.sh fails" chroot "$1" "/tmp/in it/install.sh" --prefix "/opt/a b"
  mv "$1/opt/a b" "$1/opt/elsewhere"
  check "it does not answer where it was moved to" answers "$1" /opt/elsewhere/bin/millrace /opt/elsewhere/share/millrace/demo-moe-q4_k_m.gguf
  check "install.sh --remove fails" chroot "$1" "/tmp/in it/install.sh" --prefix /opt/elsewhere --remove
  check "something stayed" test -z "$(find "$1/opt/elsewhere" -type f -o -type l)"
  printf 'x' >>"$1/tmp/in it/$(basename "$archive")"
  check "a damaged archive is taken" bash -c '! chroot "$1" "/tmp/in it/install.sh" --prefix /opt/bad && [ ! -e "$1/opt/bad" ]' - "$1"
}
try_on() {  # NAME SUITE MIRROR KEYRING
  local base=build/chroots/$2
  if [ ! -e "$base.tar" ]; then
    if [ -z "$3" ]; then
      echo "$1: skipped, nobody says where its packages are"
      skipped=$((skipped + 1))
      return
    fi
    mkdir -p build/chroots
    # The script for Ubuntu is the same for each of its suites, and Debian's debootstrap does not name them all.
    local script=/usr/share/debootstrap/scripts/$2
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/gutsy
    local verify=--keyring=/usr/share/keyrings/$4
    if [ -n "${UNSIGNED:-}" ] && [ ! -e "${verify#*=}" ]; then verify=--no-check-gpg; fi
    if ! debootstrap --variant=minbase "$verify" "$2" "$base" "$3" "$script" >"$base.log" 2>&1; then
      tail -n 1 "$base.log"  # why
      rm -rf "$base"
      echo "$1: skipped, its packages cannot be had here"
      skipped=$((skipped + 1))
      return
    fi
    tar -C "$base" -cf "$base.tar" . && rm -rf "$base"
  fi
  for kind in deb archive; do
    mkdir "$work/$kind"
    tar -C "$work/$kind" -xf "$base.tar"
    "try_$kind" "$work/$kind"
    rm -rf "${work:?}/$kind"
    echo "$1: the $kind works"
  done
}

# The Dockerfile's last stage, on the same base system; its first one does what `make package` does, and takes as long.
try_image() {
  local store=(buildah --root "$work/images" --runroot "$work/images.run" --storage-driver vfs) base container words from
  mkdir -p "$work/image/src/build/packages"
  cp "$deb" "$work/image/src/build/packages"
  from=$(awk '$1 == "FROM" { image = $2 } END { print image }' packaging/Dockerfile)
  sed -n "\|^FROM $from\$|,\$p" packaging/Dockerfile >"$work/image/Dockerfile"
  base=$("${store[@]}" from scratch)
  "${store[@]}" add -q "$base" build/chroots/bookworm.tar / >/dev/null
  "${store[@]}" commit -q --rm "$base" "$from" >/dev/null
  check "the Dockerfile's last stage fails" "${store[@]}" bud --isolation chroot --network host --build-context build="$work/image" -f "$work/image/Dockerfile" -t millrace "$work/image"
  container=$("${store[@]}" from millrace)
  local inside=("${store[@]}" run --isolation chroot --network host "$container" --)
  check "the image runs as root" test "$("${inside[@]}" id -un)" = millrace
  check "the image does not answer" bash -c 'timeout 60 "$@" | grep -q Paris' - "${inside[@]}" millrace run /usr/share/millrace/demo-moe-q4_k_m.gguf --ram 20M --temp 0 -p "What is the capital of France?"
  mapfile -t words < <("${store[@]}" inspect --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}{{range .OCIv1.Config.Cmd}}{{println .}}{{end}}' "$container")
  check "the image does not serve" serves "${inside[@]}" "${words[@]}" --port 0
  rm -rf "$work/images"
  echo "Docker: the image works"
}

# Into an environment of its own, as a Python programmer installs it.
try_wheel() {
  local wheel=$1 environment="$work/wheel environment"
  check "there is no virtual environment" python3 -m venv "$environment"
  check "the wheel does not install" "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
  check "the wheel's program says another version" grep -qx "millrace $version" <("$environment/bin/millrace" --version)
  check "the wheel's library does not answer" bash -c '"$1/bin/python" -c "$2" models/demo-moe-q4_k_m.gguf | grep -q Paris' - "$environment" \
    'import millrace, sys; print(millrace.Engine(sys.argv[1]).generate([{"role": "user", "content": "What is the capital of France?"}], temperature=0).text)'
  check "the wheel cannot be removed" "$environment/bin/python" -m pip uninstall --quiet --yes millrace-llm
  check "something of the wheel stayed" test -z "$(find "$environment" -iname '*millrace*')"
  echo "Python: the wheel works"
}

mkdir "$work/unpacked"
tar -C "$work/unpacked" --strip-components=1 -xf "$archive"
check "more is asked for than the base systems have" packaging/check_portable.sh "$work"/unpacked/bin/millrace "$work"/unpacked/lib/libmillrace.so
dpkg-deb -x "$deb" "$work/deb_files"
sed "s|/usr/bin/millrace|$work/unpacked/bin/millrace|" "$work/deb_files/lib/systemd/system/millrace.service" >"$work/millrace.service"
check "systemd does not take the unit" bash -c 'out=$(systemd-analyze verify --man=no "$1" 2>&1 | grep millrace.service || true); echo "$out"; [ -z "$out" ]' - "$work/millrace.service"
try_on "Debian 12" bookworm "$debian" debian-archive-keyring.gpg
[ "$skipped" -gt 0 ] || try_image
wheel=$(find "$packages" -name 'millrace_llm-*.whl')
if [ -n "$wheel" ]; then try_wheel "$wheel"; else echo "Python: skipped, no wheel was made"; skipped=$((skipped + 1)); fi
try_on "Ubuntu 22.04" jammy "${UBUNTU_MIRROR:-}" ubuntu-archive-keyring.gpg
try_on "Ubuntu 24.04" noble "${UBUNTU_MIRROR:-}" ubuntu-archive-keyring.gpg
echo "packages: $passed checks passed, 0 failed, $skipped systems skipped"
