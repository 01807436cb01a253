"""`make test-models`: Gemma 3 270M, a published base model, against llama.cpp as npm ships it: the tokens of texts in many scripts, and
how it goes on with them greedily.

Both round what they multiply with quantized weights, each in its way, so that answers may part where two tokens are nearly as likely:
that counts as a tie where Millrace's own log probabilities of the two are closer than TIE, and ties have to be few.
Usage: models_check.py MODEL PEER   (PEER: a folder with bench/peer's package installed; $MILLRACE is the program)
"""
import json
import pathlib
import shutil
import subprocess
import sys

from encoder_texts import texts
from harness import MILLRACE
from serving import Server

TOKENS, TIE, MOST_TIES = 12, 0.35, 40
SCRIPT = pathlib.Path(__file__).parent / "models/peer.mjs"


def peer_answers(model, peer, asked):
    """[{tokens, text}] of llama.cpp. Node looks for packages beside the script."""
    shutil.copy(SCRIPT, peer / SCRIPT.name)
    done = subprocess.run(["node", SCRIPT.name, str(model.resolve())], cwd=peer, input=json.dumps(asked), capture_output=True, text=True,
                          check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(lines) != len(asked):
        sys.exit(f"llama.cpp answered {len(lines)} of {len(asked)} texts: {done.stderr[-2000:]}")
    return lines


def wrong_tokens(model, asked, theirs):
    one_line = [(text, answer["tokens"]) for text, answer in zip(asked, theirs) if not set(text) & set("\r\n")]
    out = subprocess.run([MILLRACE, "tokenize", model], input="\n".join(text for text, _ in one_line) + "\n", capture_output=True, text=True,
                         check=True).stdout.splitlines()
    wrong = [(text, line, tokens) for (text, tokens), line in zip(one_line, out, strict=True) if list(map(int, line.split())) != tokens]
    for text, line, tokens in wrong[:5]:
        print(f"tokens of {text!r}: {line}, not {tokens}")
    return len(wrong)


def gap_where_they_part(logprobs, theirs):
    """How much likelier Millrace holds its token than the second one where its text is no longer the start of the other's."""
    text = ""
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"]):
        text += token
        if not theirs.startswith(text):
            best = sorted(top.values(), reverse=True)
            return best[0] - best[1]
    return 0.0  # one goes on where the other ends


def main():
    model, peer = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    asked = texts()
    theirs = peer_answers(model, peer, asked)
    wrong, same, ties, parted = wrong_tokens(model, asked, theirs), 0, 0, 0
    with Server(model, "--threads", "2", "--ctx", "1024", "--parallel", "4") as server:
        for text, answer in zip(asked, theirs):
            status, body = server.json("POST", "/v1/completions", {"prompt": text, "max_tokens": TOKENS, "temperature": 0, "logprobs": 2})
            if status != 200:
                sys.exit(f"{text!r}: {body}")
            choice = body["choices"][0]
            if choice["text"].strip() == answer["text"].strip():
                same += 1
            elif (gap := gap_where_they_part(choice["logprobs"], answer["text"])) < TIE:
                ties += 1
            else:
                parted += 1
                print(f"behind {text[-60:]!r}: {choice['text']!r}, not {answer['text']!r} (by {gap:.2f})")
    print(f"{model.name}: {len(asked)} texts, {same} go on alike, {ties} part at a tie, {parted} elsewhere; {wrong} with other tokens")
    return 1 if wrong or parted or ties > MOST_TIES else 0


if __name__ == "__main__":
    sys.exit(main())
