"""aider: each way of editing, with a file, over OpenAI's and Ollama's APIs. Its prompts, streams and commits count, not the small model's code."""
import pathlib
import subprocess
import tempfile

from cases import BASE, MODEL, V1, passes, ran, run

WORDS = ["--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--map-tokens", "0", "--yes-always", "--no-auto-lint", "--no-show-release-notes",
         "--no-pretty", "--no-gitignore", "--no-suggest-shell-commands"]
ENV = {"OPENAI_API_BASE": V1, "OPENAI_API_KEY": "none", "OLLAMA_API_BASE": BASE}


def edited(*flags, model=f"openai/{MODEL}", message="Say hello."):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "a.py")
        file.write_text("print('hello')\n")
        for words in (["init", "-q"], ["config", "user.name", "a"], ["config", "user.email", "a@example.com"], ["add", "a.py"], ["commit", "-qm", "Begin"]):
            subprocess.run(["git", *words], cwd=folder, check=True)
        file.write_text("print('hello there')\n")
        said = ran("aider", *WORDS, "--model", model, *flags, *(["--message", message] if message else []), "a.py", folder=folder, env={**ENV, "HOME": folder})
        log = subprocess.run(["git", "log", "--format=%s"], cwd=folder, capture_output=True, text=True).stdout
        return said, log


def answered(told):
    return "Tokens:" in told[0] and "rror:" not in told[0]


ROWS = [
    *[passes(f"{form} edits", lambda form=form: edited("--edit-format", form), answered) for form in ("whole", "diff", "udiff")],
    passes("ask", lambda: edited("--chat-mode", "ask"), answered),
    passes("without a stream", lambda: edited("--edit-format", "whole", "--no-stream"), answered),
    passes("architect", lambda: edited("--architect", "--editor-model", f"openai/{MODEL}"), answered),
    passes("a commit message", lambda: edited("--commit", message=None), lambda told: len(told[1].splitlines()) == 2),
    passes("ollama_chat", lambda: edited("--edit-format", "whole", model=f"ollama_chat/{MODEL}"), answered),
]
if __name__ == "__main__":
    run("aider", ROWS)
