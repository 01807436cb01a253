#!/usr/bin/env bash
# The main job in half a minute: a 12.5 MB model answers under a budget of 6 MB, its experts coming from the disk.
set -euo pipefail
cd "$(dirname "$0")/.."
exec build/release/millrace run models/demo-moe-q4_k_m.gguf --ram 6M --temp 0 --show-plan --stats \
  -p "What is the capital of France?" -p "Tell me a story about a fox and a lantern."
