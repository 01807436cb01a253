#!/usr/bin/env bash
# What bash, zsh and fish complete, as the program prints it, under the names those look for.
# Usage: packaging/make_completions.sh PROGRAM FOLDER
set -euo pipefail
mkdir -p "$2"
"$1" completion bash >"$2/millrace"
"$1" completion zsh >"$2/_millrace"
"$1" completion fish >"$2/millrace.fish"
