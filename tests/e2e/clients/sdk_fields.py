"""Sends each field that the official Python packages can send, one at a time, and prints what came back as a line of JSON each. Also
reads whole conversations of the responses API with the package's own types."""
import inspect
import json
import sys

import anthropic
import openai

url, model = sys.argv[1:]
OPENAI = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
ANTHROPIC = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
NOT_FIELDS = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "stream"}
QUESTION = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
# A value that asks for something, by field; those that are no text.
VALUES = {"n": 1, "best_of": 2, "echo": True, "seed": 1, "logprobs": True, "top_logprobs": 1, "max_tokens": 2, "max_completion_tokens": 2,
          "max_output_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "presence_penalty": 0.1, "frequency_penalty": 0.1, "stop": ["x"],
          "stop_sequences": ["x"], "logit_bias": {"5": 1}, "store": False, "parallel_tool_calls": False, "modalities": ["text"], "user": "u",
          "stream_options": {"include_usage": True}, "metadata": {}, "response_format": {"type": "text"}, "tool_choice": "auto",
          "audio": {"voice": "a", "format": "wav"}, "functions": [FUNCTION], "function_call": {"name": "f"}, "prediction": {"type": "content", "content": "x"},
          "web_search_options": {}, "background": True, "include": ["message.output_text.logprobs"], "text": {"format": {"type": "text"}},
          "reasoning": {"effort": "low"}, "reasoning_effort": "low", "truncation": "auto", "max_tool_calls": 1, "dimensions": 8, "thinking": {"type": "disabled"},
          "encoding_format": "float", "output_config": {}, "cache_control": {"type": "ephemeral"}, "system": "Be brief.", "suffix": "x",
          "container": "c", "context_management": {"edits": []}, "mcp_servers": [{"type": "url", "url": "https://a", "name": "b"}], "input": "Hi",
          "previous_response_id": None, "conversation": "c", "prompt": {"id": "p"}, "betas": [], "output_format": {"type": "json_schema", "schema": {"type": "object"}}}


def try_field(api, call, needed, name):
    value = VALUES.get(name, "x")
    if name == "tools" or name == "tool_choice":
        tool = {"name": "f", "description": "d", "input_schema": FUNCTION["parameters"]} if api.startswith("messages") else \
            {"type": "function", **FUNCTION} if api.startswith("responses") else {"type": "function", "function": FUNCTION}
        needed = {**needed, "tools": [tool]}
        value = [tool] if name == "tools" else {"type": "auto"} if api.startswith("messages") else "auto"
    if api == "completions" and name == "logprobs":
        value = 1
    if api == "chat" and name == "top_logprobs":
        needed = {**needed, "logprobs": True}
    if name == "stream_options":
        needed = {**needed, "stream": True}
    try:
        answer = call(**{**needed, name: value})
        if needed.get("stream"):
            list(answer)
        return {"status": 200}
    except TypeError as problem:  # what the package itself refuses reaches no server
        return {"status": 0, "message": str(problem)}
    except (openai.APIStatusError, anthropic.APIStatusError) as problem:
        return {"status": problem.status_code, "message": str(problem.message)}


APIS = {
    "chat": (OPENAI.chat.completions.create, {"model": model, "messages": QUESTION, "max_tokens": 2}),
    "completions": (OPENAI.completions.create, {"model": model, "prompt": "Hi", "max_tokens": 2}),
    "responses": (OPENAI.responses.create, {"model": model, "input": "Hi", "max_output_tokens": 2}),
    "responses/input_tokens": (OPENAI.responses.input_tokens.count, {"model": model, "input": "Hi"}),
    "responses/compact": (OPENAI.responses.compact, {"model": model, "input": "Hi"}),
    "embeddings": (OPENAI.embeddings.create, {"model": model, "input": "Hi"}),
    "messages": (ANTHROPIC.messages.create, {"model": model, "messages": QUESTION, "max_tokens": 2}),
    "messages/count_tokens": (ANTHROPIC.messages.count_tokens, {"model": model, "messages": QUESTION}),
    "messages (beta)": (ANTHROPIC.beta.messages.create, {"model": model, "messages": QUESTION, "max_tokens": 2}),
}
for api, (call, needed) in APIS.items():
    for name in inspect.signature(call).parameters:
        if name in NOT_FIELDS or name in needed:
            continue
        print(json.dumps({"api": api, "field": name, **try_field(api, call, needed, name)}), flush=True)

# Each event is built into its type without a check, so the check is made here: as the field names of the type demand.
events = list(OPENAI.responses.create(model=model, input="Hi", max_output_tokens=8, stream=True, include=["message.output_text.logprobs"], top_logprobs=2))
for event in events:
    type(event).model_validate(event.model_dump(warnings="error"))
whole = events[-1].response
again = OPENAI.responses.retrieve(whole.id)
type(again).model_validate(again.model_dump(warnings="error"))
replayed = list(OPENAI.responses.retrieve(whole.id, stream=True))
late = list(OPENAI.responses.retrieve(whole.id, stream=True, starting_after=2))
items = OPENAI.responses.input_items.list(whole.id)
print(json.dumps({"numbers": [event.sequence_number for event in events], "replayed": [event.sequence_number for event in replayed],
                  "late": [event.sequence_number for event in late], "types": [event.type for event in replayed],
                  "text": whole.output_text, "said_again": again.output_text, "replayed_text": replayed[-1].response.output_text,
                  "logprobs": len(whole.output[-1].content[0].logprobs), "tops": len(whole.output[-1].content[0].logprobs[0].top_logprobs),
                  "items": [type(item).__name__ for item in items.data], "ids": [item.id for item in items.data], "first": items.first_id,
                  "content": [type(part).__name__ for part in items.data[0].content]}), flush=True)
