"""Encoders, converted, against transformers: tokens and vectors of texts in many scripts.

Usage: encoders_check.py FOLDER   (`make test-models`: a published checkpoint with its tokenizer.json)
       encoders_check.py --random [NAME...]   (`make test-transformers`: those of encoder_checkpoints.py)
$MILLRACE is the program.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

import tokenizers
import torch
import transformers

from encoder_texts import SENTENCES, texts

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MILLRACE = os.environ.get("MILLRACE", str(ROOT / "build/release/millrace"))
MOST_TOKENS, LEAST_COSINE, LEAST_COSINE_OF_RANDOM = 256, 0.9999, 0.99999

def run(*args, stdin=""):
    done = subprocess.run([MILLRACE, *map(str, args)], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"millrace {' '.join(map(str, args[:1]))}: {done.stderr}")
    return done.stdout


def check_tokens(model, tokenizer, lines):
    """Each line's ids."""
    out = run("tokenize", model, "--special", stdin="\n".join(lines) + "\n").splitlines()
    wrong = [(line, [int(one) for one in ids.split()], tokenizer.encode(line, add_special_tokens=False).ids) for line, ids in zip(lines, out, strict=True)]
    wrong = [one for one in wrong if one[1] != one[2]]
    for line, ours, theirs in wrong[:10]:
        print(f"tokens of {line!r}: {ours}, not {theirs}")
    return len(wrong)


def every_character():
    """All that are the same since Unicode 3.2, whatever version a library's tables are of, between letters, forty in a line."""
    kind, before = unicodedata.category, unicodedata.ucd_3_2_0.category
    all_of = [chr(c) for c in range(0x20, 0x30000)
              if kind(chr(c)) == before(chr(c)) not in ("Cn", "Cs", "Co") and chr(c) not in "\x85\u2028\u2029"]
    return [" ".join(f"a{c}b" for c in all_of[i:i + 40]) for i in range(0, len(all_of), 40)]


def pooled(network, ids, pooling):
    with torch.no_grad():
        states = network(input_ids=torch.tensor([ids])).last_hidden_state[0]
    vector = {"mean_tokens": states.mean(dim=0), "cls_token": states[0], "lasttoken": states[-1]}[pooling]
    return torch.nn.functional.normalize(vector, dim=0)


def pooling_of(folder):
    """By sentence-transformers' file; the mean where there is none."""
    file = folder / "1_Pooling/config.json"
    config = json.loads(file.read_text()) if file.exists() else {}
    return next((key.removeprefix("pooling_mode_") for key, on in config.items() if key.startswith("pooling_mode_") and on), "mean_tokens")


def check(folder, every=False, least_cosine=LEAST_COSINE, spaces=True):
    """True where a checkpoint's tokens and vectors are transformers'. `every`: the tokens of every character, too. `spaces`: with such
    as a published map of characters makes plain ones."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    network = transformers.AutoModel.from_pretrained(folder).float().eval()
    pooling, made = pooling_of(folder), texts()
    if not spaces:
        made = [text.translate(dict.fromkeys(map(ord, "\r\u00a0\u2009"), " ")) for text in made]
    with tempfile.TemporaryDirectory() as temporary:
        model = pathlib.Path(temporary) / "model.gguf"
        run("convert", folder, "-o", model)
        lines = [text for text in made if not set(text) & set("\r\n")] + (every_character() if every else [])
        wrong = check_tokens(model, tokenizer, lines)
        out = run("embed", model, "--ctx", MOST_TOKENS, "--truncate", *made).splitlines()
    least = 1.0
    for text, line in zip(made, out, strict=True):
        ids = tokenizer.encode(text).ids
        if len(ids) > MOST_TOKENS:
            ids = ids[:MOST_TOKENS - 1] + ids[-1:]
        cosine = float(torch.dot(pooled(network, ids, pooling), torch.tensor(json.loads(line))))
        least = min(least, cosine)
        if cosine < least_cosine:
            print(f"cosine {cosine:.7f}: {text[:80]!r}")
    print(f"{folder.name}: {len(made)} texts, least cosine {least:.7f}; {wrong} lines with other tokens")
    return wrong == 0 and least >= least_cosine


def main():
    if sys.argv[1] != "--random":
        return 0 if check(pathlib.Path(sys.argv[1]), every=True) else 1
    import encoder_checkpoints
    good = True
    for name, make in encoder_checkpoints.MAKERS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        with tempfile.TemporaryDirectory() as room:
            folder = pathlib.Path(room) / name
            make(folder, SENTENCES)
            good &= check(folder, least_cosine=LEAST_COSINE_OF_RANDOM, spaces=name != "xlm-roberta")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
