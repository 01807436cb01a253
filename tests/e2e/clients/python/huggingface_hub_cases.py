"""huggingface_hub's InferenceClient, by its URL."""
import json

import huggingface_hub
from cases import ANSWER, ASKED, BASE, MODEL, PICTURE, QUESTION, SCHEMA, TOOL, V1, passes, refuses, run

CLIENT = huggingface_hub.InferenceClient(base_url=V1, api_key="none", timeout=60)
ASYNC = huggingface_hub.AsyncInferenceClient(base_url=V1, api_key="none", timeout=60)
ASK = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_tokens": 200}


def text(told):
    return told.choices[0].message.content


ROWS = [
    passes("chat_completion", lambda: CLIENT.chat_completion(**ASK), lambda told: text(told) == ANSWER),
    passes("chat_completion as a stream", lambda: list(CLIENT.chat_completion(**ASK, stream=True)), lambda parts: "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == ANSWER),
    passes("chat.completions.create", lambda: CLIENT.chat.completions.create(**ASK), lambda told: text(told) == ANSWER),
    passes("asynchronous", lambda: ASYNC.chat_completion(**ASK), lambda told: text(told) == ANSWER),
    passes("json_object with a value", lambda: CLIENT.chat_completion(**ASK, response_format={"type": "json_object", "value": SCHEMA}), lambda told: set(json.loads(text(told))) == {"city", "count"}),
    passes("json_schema", lambda: CLIENT.chat_completion(**ASK, response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}), lambda told: set(json.loads(text(told))) == {"city", "count"}),
    passes("a tool that must be called", lambda: CLIENT.chat_completion(**ASK, tools=[TOOL], tool_choice="required"), lambda told: told.choices[0].message.tool_calls[0].function.name == "weather"),
    passes("log probabilities", lambda: CLIENT.chat_completion(**ASK, logprobs=True, top_logprobs=2), lambda told: told.choices[0].logprobs.content),
    passes("seed and stop", lambda: CLIENT.chat_completion(**ASK, seed=3, stop=[" France"]), lambda told: text(told) == "The capital of"),
]
ASIDE = [
    refuses("pictures", lambda: CLIENT.chat_completion(**{**ASK, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]}), "reads text only"),
    refuses("text_generation, TGI's own", lambda: huggingface_hub.InferenceClient(base_url=BASE).text_generation("Once upon", max_new_tokens=4), "POST /"),
]
if __name__ == "__main__":
    run("huggingface_hub", ROWS, ASIDE)
