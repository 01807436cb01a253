#!/usr/bin/env bash
# Makes a wheel of a portable build, the Python package with the library and the program in it, beside the other packages.
# Its name on PyPI is millrace-llm, since `millrace` is another product there; it is imported as millrace.
# Usage: packaging/make_wheel.sh PRESET FOLDER; says why and makes none where PyPI, which has what builds it, is not reachable
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/$1
stage=$build/wheel
rm -rf "$stage"
mkdir -p "$stage"
cp -r python/pyproject.toml python/README.md python/millrace LICENSE "$stage"
find "$stage" -name __pycache__ -prune -exec rm -rf {} +
mkdir "$stage/millrace/bin"
strip -o "$stage/millrace/bin/millrace" "$build/millrace"
strip -o "$stage/millrace/libmillrace.so.0" "$build/libmillrace.so"
cp build/static/THIRD_PARTY.txt "$stage/millrace"
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
if ! python3 -m pip download --quiet --no-deps --dest "$stage/probe" 'setuptools>=70.1' >"$build/wheel.log" 2>&1; then
  echo "Wheel: left out, PyPI is not reachable" >&2
  exit 0
fi
# The C library that check_portable.sh allows at most.
python3 -m pip wheel --quiet --no-deps --wheel-dir "$2" --config-settings=--build-option="--plat-name=manylinux_2_35_$(uname -m)" \
  "$stage" >"$build/wheel.log" 2>&1 || { tail -n 20 "$build/wheel.log" >&2; exit 1; }
