"""litellm: every provider of it that speaks one of the three APIs."""
import json
import typing

import litellm
import pydantic
from cases import ANSWER, ASKED, BASE, MODEL, PARAMETERS, PICTURE, QUESTION, SCHEMA, TOOL, V1, passes, refuses, run

litellm.suppress_debug_info = True
PROVIDERS = {
    "openai": {"model": f"openai/{MODEL}", "api_base": V1},
    "hosted_vllm": {"model": f"hosted_vllm/{MODEL}", "api_base": V1},
    "lm_studio": {"model": f"lm_studio/{MODEL}", "api_base": V1},
    "ollama_chat": {"model": f"ollama_chat/{MODEL}", "api_base": BASE},
    "ollama": {"model": f"ollama/{MODEL}", "api_base": BASE},
    "anthropic": {"model": f"anthropic/{MODEL}", "api_base": BASE},
}
COMMON = {"api_key": "none", "messages": ASKED, "temperature": 0, "max_tokens": 200, "max_retries": 0}
FORM = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": SCHEMA}}


def text(told):
    return told.choices[0].message.content


def joined(parts):
    return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)


def rows_of(name, place):
    ask = {**COMMON, **place}
    rows = [
        passes(f"completion ({name})", lambda: litellm.completion(**ask), lambda told: text(told).strip() == ANSWER and told.usage.completion_tokens > 3),
        passes(f"stream ({name})", lambda: list(litellm.completion(**ask, stream=True)), lambda parts: joined(parts).strip() == ANSWER),
        passes(f"acompletion ({name})", lambda: litellm.acompletion(**ask), lambda told: text(told).strip() == ANSWER),
        passes(f"a conversation ({name})", lambda: litellm.completion(**{**ask, "messages": [{"role": "system", "content": "Be brief."}, *ASKED, {"role": "assistant", "content": ANSWER}, *ASKED]}), lambda told: text(told)),
        passes(f"stop ({name})", lambda: litellm.completion(**ask, stop=[" France"]), lambda told: text(told).strip() == "The capital of"),
        passes(f"no such model ({name})", lambda: raised(lambda: litellm.completion(**{**ask, "model": place["model"].split("/")[0] + "/nothing"})), lambda error: "nothing" in str(error)),
        refuses(f"pictures ({name})", lambda: litellm.completion(**{**ask, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]}), "image"),
    ]
    if name != "anthropic":  # for a model that it does not know, litellm makes a tool of the schema there
        rows.append(passes(f"a JSON schema ({name})", lambda: litellm.completion(**ask, response_format=FORM), lambda told: set(json.loads(text(told))) == {"city", "count"}))
    if not name.startswith("ollama"):
        rows += [passes(f"a tool that must be called ({name})", lambda: litellm.completion(**ask, tools=[TOOL], tool_choice="required"), lambda told: set(json.loads(told.choices[0].message.tool_calls[0].function.arguments)) == {"city"}),
                 passes(f"a tool as a stream ({name})", lambda: litellm.stream_chunk_builder(list(litellm.completion(**ask, tools=[TOOL], tool_choice="required", stream=True))),
                        lambda told: set(json.loads(told.choices[0].message.tool_calls[0].function.arguments)) == {"city"})]
    return rows


def raised(call):
    try:
        call()
    except litellm.NotFoundError as error:
        return error
    return None


OPENAI = {"api_base": V1, "api_key": "none"}
OTHER = [
    passes("text_completion", lambda: litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="Once upon", max_tokens=4, **OPENAI), lambda told: told.choices[0].text),
    passes("responses", lambda: litellm.responses(model=f"openai/{MODEL}", input=QUESTION, temperature=0, **OPENAI), lambda told: told.output[0].content[0].text == ANSWER),
    passes("responses as a stream", lambda: list(litellm.responses(model=f"openai/{MODEL}", input=QUESTION, temperature=0, stream=True, **OPENAI)), lambda events: events[-1].type.value == "response.completed"),
    passes("embedding (openai)", lambda: litellm.embedding(model=f"openai/{MODEL}", input=["a fox", "a lantern"], **OPENAI), lambda told: len(told.data) == 2),
    passes("embedding (ollama)", lambda: litellm.embedding(model=f"ollama/{MODEL}", input=["a fox"], api_base=BASE), lambda told: len(told.data) == 1),
    passes("log probabilities", lambda: litellm.completion(**COMMON, **PROVIDERS["openai"], logprobs=True, top_logprobs=2), lambda told: told.choices[0].logprobs.content),
    passes("anthropic.messages", lambda: litellm.anthropic.messages.acreate(model=f"anthropic/{MODEL}", api_base=BASE, api_key="none", max_tokens=60, messages=ASKED), lambda told: told["content"]),
    passes("Router", lambda: litellm.Router(model_list=[{"model_name": "one", "litellm_params": {**PROVIDERS["openai"], "api_key": "none"}}]).completion("one", ASKED), lambda told: text(told)),
]
if __name__ == "__main__":
    run("litellm", *[rows_of(*one) for one in PROVIDERS.items()], OTHER)
