#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that building (with "dev", testing and linting; with "package", making packages; with
# "try", trying them; with "windows", building for Windows and testing in Wine; with "vulkan", Vulkan's GPU part; with "pip",
# NVIDIA's compiler; with "coverage", gcovr) needs, and says which.  Does nothing when all is there.
# Usage: scripts/setup.sh build [dev] [package] [try] [windows] [vulkan] [pip] [coverage]
set -euo pipefail

build=(g++ make cmake ninja-build python3 pkg-config libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libpcre2-dev
       libutf8proc-dev liburing-dev libxxhash-dev libedit-dev libcurl4-openssl-dev libssl-dev libcpp-httplib-dev
       prometheus-cpp-dev libjpeg-dev libpng-dev libwebp-dev libjs-marked node-dompurify libjs-highlight.js libjs-pdf
       libjs-katex fonts-katex)
dev=(time codespell libgtest-dev libbenchmark-dev clang clang-tidy clang-format libclang-rt-14-dev python3-lark git tmux
     openmpi-bin libopenmpi-dev iproute2 haproxy fonts-wqy-microhei)
package=(dpkg-dev file help2man libncurses-dev libbsd-dev libmd-dev zlib1g-dev python3-pip python3-venv)
windows=(g++-mingw-w64-x86-64-posix libz-mingw-w64-dev wine64 xvfb mesa-vulkan-drivers nasm dpkg-dev perl)
vulkan=(glslc libvulkan-dev libvulkan1 mesa-vulkan-drivers)
try=(debootstrap buildah systemd)

wanted=()
for group in "$@"; do
  case "$group" in
    build) wanted+=("${build[@]}") ;;
    dev) wanted+=("${dev[@]}") ;;
    package) wanted+=("${package[@]}") ;;
    coverage) wanted+=(gcovr) ;;
    pip) wanted+=(python3-pip) ;;
    windows) wanted+=("${windows[@]}") ;;
    vulkan) wanted+=("${vulkan[@]}") ;;
    try) wanted+=("${try[@]}") ;;
    *) echo "setup: unknown group '$group'; use build, dev, package, try, windows, vulkan, pip or coverage" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null; then
  echo "setup: this is not a Debian or Ubuntu system. Install the equivalents of these and go on: ${wanted[*]}" >&2
  exit 0
fi

if [ -r /etc/os-release ] && ! grep -q 'VERSION_CODENAME=bookworm' /etc/os-release; then
  # The sanitizer runtime's package carries clang's version in its name.
  for i in "${!wanted[@]}"; do [ "${wanted[$i]}" = libclang-rt-14-dev ] && unset 'wanted[i]'; done
fi

find_missing() {
  missing=()
  for package in "${wanted[@]}"; do
    # A tool that is there by another road counts too.
    case "$package" in
      g++|make|cmake|clang|clang-tidy|clang-format|codespell|python3|git|tmux) command -v "$package" >/dev/null && continue ;;
      python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
      python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null && continue ;;
      ninja-build) command -v ninja >/dev/null && continue ;;
    esac
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
}
find_missing
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: these packages are missing: ${missing[*]}. Install them as root, then run this again." >&2
    exit 1
  fi
  sudo=sudo
fi
# Two scripts that install at the same time would fail at apt's locks: the second one waits, and may find all that it wants.
exec 9<"$0"
flock 9
find_missing
[ ${#missing[@]} -eq 0 ] && exit 0
echo "Installing ${#missing[@]} packages with apt: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}"; } >"$log" 2>&1 9<&-; then
  tail -n 15 "$log" >&2
  echo "setup: apt could not install the packages above; see its last lines." >&2
  exit 1
fi
