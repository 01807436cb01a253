"""lm-evaluation-harness: log likelihoods and texts over each of its backends that asks a server."""
import json
import pathlib
import tempfile

from cases import BASE, MODEL, V1, passes, ran, run

FOLDER = pathlib.Path(tempfile.mkdtemp())
ITEMS = [{"head": "The capital of France is", "rest": " Paris."}, {"head": "The capital of Italy is", "rest": " Rome."}]
TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/items.jsonl
test_split: test
doc_to_text: '{{{{head}}}}'
doc_to_target: '{{{{rest}}}}'
target_delimiter: ''
{more}
"""
LIKELIHOOD = "output_type: loglikelihood\nmetric_list:\n  - metric: perplexity\n  - metric: acc"
CHOICE = "output_type: multiple_choice\ndoc_to_choice: [' Paris.', ' Rome.']\nmetric_list:\n  - metric: acc"
ROLLING = "output_type: loglikelihood_rolling\nmetric_list:\n  - metric: byte_perplexity"
TEXT = "output_type: generate_until\ngeneration_kwargs:\n  until: [\".\"]\n  max_gen_toks: 8\nmetric_list:\n  - metric: exact_match"
for name, more in {"likelihood": LIKELIHOOD, "choice": CHOICE, "rolling": ROLLING, "text": TEXT}.items():
    task = TASK.format(name=name, folder=FOLDER, more=more)
    (FOLDER / f"{name}.yaml").write_text(task.replace("doc_to_target: '{{rest}}'", "doc_to_target: 0") if name == "choice" else task)
(FOLDER / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))


def samples(task, backend, *flags, **arguments):
    out = tempfile.mkdtemp(dir=FOLDER)
    ran("lm_eval", "--model", backend, "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()), "--tasks", task, "--include_path", FOLDER,
        "--output_path", out, "--log_samples", *flags, env={"HF_HOME": str(FOLDER), "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"})
    [path] = pathlib.Path(out).rglob("samples_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers(told):
    return all(float(response[0]) < 0 for one in told for response in one["filtered_resps"])


LOCAL = {"model": MODEL, "base_url": V1 + "/completions", "num_concurrent": 1, "max_length": 1024, "tokenizer_backend": "remote"}
CHAT = {"model": MODEL, "base_url": V1 + "/chat/completions", "num_concurrent": 1}
ROWS = [
    passes("local-completions: log likelihoods", lambda: samples("likelihood", "local-completions", **LOCAL), lambda told: len(told) == 2 and numbers(told)),
    passes("local-completions: multiple choice", lambda: samples("choice", "local-completions", **LOCAL), lambda told: len(told) == 2 and numbers(told)),
    passes("local-completions: rolling log likelihoods", lambda: samples("rolling", "local-completions", **LOCAL), lambda told: len(told) == 2),
    passes("local-completions: texts", lambda: samples("text", "local-completions", **LOCAL), lambda told: all(isinstance(one["filtered_resps"][0], str) for one in told)),
    passes("local-chat-completions: texts", lambda: samples("text", "local-chat-completions", "--apply_chat_template", **CHAT), lambda told: all(one["filtered_resps"][0] for one in told)),
    passes("gguf: log likelihoods", lambda: samples("likelihood", "gguf", base_url=BASE), numbers),
    passes("gguf: texts", lambda: samples("text", "gguf", base_url=BASE), lambda told: all(isinstance(one["filtered_resps"][0], str) for one in told)),
]
if __name__ == "__main__":
    run("lm-eval", ROWS)
