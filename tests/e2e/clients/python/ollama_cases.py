"""ollama: chat, generate, embeddings, and everything that it does with models. HF_ENDPOINT of the server has a small model."""
import pathlib
import tempfile

import json

import ollama
from cases import ANSWER, ASKED, BASE, DOT, MODEL, PARAMETERS, QUESTION, SCHEMA, STORY, TOOL, passes, refuses, run

CLIENT = ollama.Client(host=BASE)
ASYNC = ollama.AsyncClient(host=BASE)
GREEDY = {"temperature": 0}


def chat(**fields):
    return lambda: CLIENT.chat(**{"model": MODEL, "messages": ASKED, "options": GREEDY, **fields})


def generate(**fields):
    return lambda: CLIENT.generate(**{"model": MODEL, "prompt": QUESTION, "options": GREEDY, **fields})


def said(parts):
    return "".join(part.message.content or "" for part in parts)


def raised(call):
    try:
        call()
    except ollama.ResponseError as error:
        return error
    return None


def weather(city: str) -> str:
    """The weather of a city

    Args:
      city: the city
    """
    return city


def names():
    return [one.model for one in CLIENT.list().models]


async def async_chat():
    return [part async for part in await ASYNC.chat(model=MODEL, messages=ASKED, options=GREEDY, stream=True)]


def left():
    for part in CLIENT.chat(model=MODEL, messages=STORY, options={"num_predict": 1500}, stream=True):
        return part


def copied():
    CLIENT.copy(MODEL, "a-copy")
    found = names()
    CLIENT.delete("a-copy")
    return found, names()


def created(**fields):
    parts = list(CLIENT.create(model="made", stream=True, **fields))
    shown = CLIENT.show("made")
    told = CLIENT.chat("made", ASKED, options={**GREEDY, "num_predict": 8})
    CLIENT.delete("made")
    return parts, shown, told


def uploaded():
    """A file, as `ollama create` sends one."""
    digest = CLIENT.create_blob(FILE)
    return created(files={FILE.name: digest})


def pulled():
    parts = list(CLIENT.pull(PULLED, stream=True))
    again = CLIENT.pull(PULLED)
    told = CLIENT.generate(PULLED, "What is", raw=True, options={"num_predict": 3, **GREEDY})
    CLIENT.delete(PULLED)
    return parts, again, told


PULLED = "hf.co/someone/tiny-GGUF:Q8_0"
FILE = pathlib.Path(__file__).parents[3] / "data/demo-draft-f16.gguf"
GO = '{{ if .System }}{{ .System }}\n{{ end }}{{ range .Messages }}{{ .Role }}: {{ .Content }}\n{{ end }}assistant:'
ROWS = [
    passes("chat", chat(), lambda told: told.message.content == ANSWER and told.done and told.done_reason == "stop", lambda told: told["message"]["role"] == "assistant"),
    passes("chat: durations and counts", chat(), lambda told: told.total_duration > 0 and told.eval_count > 3 and told.prompt_eval_count > 0 and told.eval_duration > 0),
    passes("chat as a stream", chat(stream=True), lambda parts: said(parts) == ANSWER, lambda parts: parts[-1].done and not parts[0].done),
    passes("chat, asynchronous stream", async_chat, lambda parts: said(parts) == ANSWER),
    passes("a stream that is left", left, lambda part: part.message),
    passes("num_predict", chat(options={**GREEDY, "num_predict": 3}), lambda told: told.done_reason == "length" and told.eval_count == 3),
    passes("stop", chat(options={**GREEDY, "stop": [" France"]}), lambda told: told.message.content == "The capital of"),
    passes("options of sampling", chat(options={"temperature": 1, "seed": 4, "top_k": 1, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.1, "repeat_last_n": 32, "num_ctx": 1024, "mirostat": 0}), lambda told: told.message.content),
    passes("seed", lambda: {chat(messages=STORY, options={"temperature": 1, "seed": 5, "num_predict": 12})().message.content for _ in range(2)}, lambda told: len(told) == 1),
    passes("format: json", chat(format="json", options={**GREEDY, "num_predict": 200}), lambda told: told.done_reason == "length" or isinstance(json.loads(told.message.content), dict)),
    passes("format: a schema", chat(format=SCHEMA, options={**GREEDY, "num_predict": 200}), lambda told: set(json.loads(told.message.content)) == {"city", "count"}),
    passes("logprobs", chat(logprobs=True, top_logprobs=2), lambda told: told.logprobs and len(told.logprobs[0].top_logprobs) == 2),
    passes("think: False", chat(think=False), lambda told: told.message.content == ANSWER),
    passes("keep_alive", chat(keep_alive="10m"), lambda told: told.message.content == ANSWER),
    passes("tools as functions", chat(tools=[weather], options={**GREEDY, "num_predict": 60}), lambda told: told.message.content or told.message.tool_calls),
    passes("tools as schemas", chat(tools=[TOOL], options={**GREEDY, "num_predict": 60}), lambda told: told.message.content or told.message.tool_calls),
    passes("a tool's result", chat(tools=[TOOL], options={**GREEDY, "num_predict": 20}, messages=[*ASKED, {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "weather", "arguments": {"city": "Paris"}}}]}, {"role": "tool", "tool_name": "weather", "content": "Sunny."}]), lambda told: told.message),
    passes("generate", generate(), lambda told: told.response == ANSWER and told.context),
    passes("generate as a stream", generate(stream=True), lambda parts: "".join(part.response for part in parts) == ANSWER),
    passes("generate that goes on", lambda: generate(prompt="And?", context=generate()().context, options={**GREEDY, "num_predict": 4})(), lambda told: told.prompt_eval_count > 10),
    passes("generate, raw", generate(prompt="Once upon", raw=True, options={**GREEDY, "num_predict": 4}), lambda told: told.eval_count == 4),
    passes("generate with system and template", generate(system="Be brief.", template="{{ .System }} Once upon a {{ .Prompt }}", prompt="time", options={**GREEDY, "num_predict": 4}), lambda told: told.eval_count > 0),
    passes("generate a schema", generate(format=PARAMETERS, options={**GREEDY, "num_predict": 100}), lambda told: "city" in json.loads(told.response)),
    passes("generate loads", generate(prompt=""), lambda told: told.done_reason == "load"),
    passes("ps", lambda: CLIENT.ps(), lambda told: any(one.model.startswith(MODEL) and one.size > 0 and one.context_length for one in told.models)),
    passes("embed", lambda: CLIENT.embed(MODEL, ["a fox", "a lantern"]), lambda told: len(told.embeddings) == 2 and abs(sum(x * x for x in told.embeddings[0]) - 1) < 1e-3),
    passes("embed, dimensions", lambda: CLIENT.embed(MODEL, "a fox", dimensions=16), lambda told: len(told.embeddings[0]) == 16),
    passes("embeddings", lambda: CLIENT.embeddings(MODEL, "a fox"), lambda told: len(told.embedding) > 10),
    passes("list", lambda: CLIENT.list(), lambda told: any(one.model.startswith(MODEL) and one.digest and one.details.quantization_level == "Q4_K_M" for one in told.models)),
    passes("show", lambda: CLIENT.show(MODEL), lambda told: told.details.format == "gguf" and "completion" in told.capabilities and told.modelinfo["general.architecture"]),
    passes("copy and delete", copied, lambda found: "a-copy:latest" in found[0] and "a-copy:latest" not in found[1]),
    passes("create", lambda: created(from_=MODEL, system="You are brief.", parameters={"temperature": 0.5}), lambda made: made[0][-1].status == "success", lambda made: "temperature" in made[1].parameters, lambda made: made[2].message.content),
    passes("create with a template of Go", lambda: created(from_=MODEL, template=GO), lambda made: made[1].template == GO and made[2].message.content),
    passes("create of an uploaded file", uploaded, lambda made: made[0][-1].status == "success", lambda made: made[2].eval_count > 0),
    passes("pull", pulled, lambda told: told[0][-1].status == "success" and told[1].status == "success" and told[2].eval_count > 0,
           lambda told: any((part.total or 0) > 0 and part.digest for part in told[0])),
    passes("no such model", lambda: raised(chat(model="nothing")), lambda error: error.status_code == 404 and "nothing" in error.error),
    passes("no such model to delete", lambda: raised(lambda: CLIENT.delete("nothing")), lambda error: error.status_code == 404),
    passes("options of no kind", lambda: raised(chat(options={"temperature": -1})), lambda error: error.status_code == 400 and "temperature" in error.error),
]
ASIDE = [
    refuses("pictures", chat(messages=[{**ASKED[0], "images": [DOT]}]), "images: this model reads text only"),
    refuses("push", lambda: CLIENT.push(MODEL), "/api/push: there is no such path"),
    refuses("generate with a suffix", generate(suffix="x"), "suffix"),
    refuses("create with quantize", lambda: CLIENT.create(model="made", from_=MODEL, quantize="q4_K_M"), "quantize"),
    refuses("create with an adapter that was not uploaded", lambda: CLIENT.create(model="made", from_=MODEL, adapters={"a.gguf": "sha256:" + "0" * 64}), "upload"),
]
if __name__ == "__main__":
    run("ollama", ROWS, ASIDE)
