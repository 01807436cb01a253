"""openai: chat, completions, embeddings, models."""
import base64
import io
import json
import typing

import jsonschema
import openai
import pydantic
from cases import ANSWER, ASKED, FUNCTION, MODEL, PARAMETERS, PICTURE, QUESTION, SCHEMA, STORY, TOOL, V1, passes, refuses, run

KEY = {"base_url": V1, "api_key": "none", "max_retries": 0, "timeout": 60}
CLIENT = openai.OpenAI(**KEY)
ASYNC = openai.AsyncOpenAI(**KEY)
GREEDY = {"model": MODEL, "messages": ASKED, "temperature": 0}


class City(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=10)]
    kind: typing.Literal["town", "village"]
    people: typing.Annotated[int, pydantic.Field(ge=0, le=99)]


def chat(**fields):
    return lambda: CLIENT.chat.completions.create(**{**GREEDY, **fields})


def text(told):
    return told.choices[0].message.content


def joined(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def is_answer(told):
    return text(told) == ANSWER


def valid(found, schema=SCHEMA):
    jsonschema.validate(json.loads(found), schema)
    return True


def calls(told):
    return told.choices[0].message.tool_calls


def one_call(told):
    [call] = calls(told)
    return call.function.name == "weather" and call.id and valid(call.function.arguments, PARAMETERS)


def chat_stream(**fields):
    with CLIENT.chat.completions.stream(**{**GREEDY, **fields}) as stream:
        events = [event.type for event in stream]
        return events, stream.get_final_completion()


def aborted():
    stream = CLIENT.chat.completions.create(**{**GREEDY, "messages": STORY, "stream": True, "max_tokens": 2000})
    first = next(iter(stream))
    stream.close()
    return first, CLIENT.chat.completions.create(**GREEDY)


def form(schema=SCHEMA, **fields):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}, "max_tokens": 200, **fields}


PAST = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}]
REQUIRED = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
NAMED = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}, "max_tokens": 200}
SECOND = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
MOVE = {"type": "custom", "custom": {"name": "move", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "(up|down) [0-9]"}}}}

CHAT = [
    passes("chat", chat(), is_answer, lambda told: told.object == "chat.completion" and told.id.startswith("chatcmpl") and told.created > 1_700_000_000),
    passes("chat: finish and usage", chat(), lambda told: told.choices[0].finish_reason == "stop",
           lambda told: told.usage.total_tokens == told.usage.prompt_tokens + told.usage.completion_tokens),
    passes("chat: cached tokens", lambda: [chat(messages=[{"role": "user", "content": "word " * 500}], max_tokens=1)() for _ in range(2)][1], lambda told: 0 < told.usage.prompt_tokens_details.cached_tokens < told.usage.prompt_tokens),
    passes("chat as a stream", chat(stream=True), lambda chunks: joined(chunks) == ANSWER, lambda chunks: chunks[-1].choices[0].finish_reason == "stop",
           lambda chunks: len({chunk.id for chunk in chunks}) == 1, lambda chunks: chunks[0].choices[0].delta.role == "assistant"),
    passes("chat as a stream with usage", chat(stream=True, stream_options={"include_usage": True}),
           lambda chunks: chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 3, lambda chunks: all(chunk.usage is None for chunk in chunks[:-1])),
    passes("chat by the stream helper", chat_stream, lambda told: is_answer(told[1]), lambda told: "content.done" in told[0]),
    passes("chat, asynchronous", lambda: ASYNC.chat.completions.create(**GREEDY), is_answer),
    passes("chat, asynchronous stream", lambda: ASYNC.chat.completions.create(**GREEDY, stream=True), lambda chunks: joined(chunks) == ANSWER),
    passes("a stream that is left", aborted, lambda told: is_answer(told[1])),
    passes("with_raw_response", lambda: CLIENT.chat.completions.with_raw_response.create(**GREEDY),
           lambda told: told.headers["x-request-id"] and is_answer(told.parse())),
    passes("with_streaming_response", lambda: [line for line in CLIENT.chat.completions.with_streaming_response.create(**GREEDY, stream=True).__enter__().iter_lines()],
           lambda lines: "data: [DONE]" in lines),
    passes("_request_id", chat(), lambda told: told._request_id),
    passes("max_tokens", chat(max_tokens=3), lambda told: told.choices[0].finish_reason == "length" and told.usage.completion_tokens == 3),
    passes("max_completion_tokens", chat(max_completion_tokens=3), lambda told: told.usage.completion_tokens == 3),
    passes("stop, a text", chat(stop=" of"), lambda told: text(told) == "The capital" and told.choices[0].finish_reason == "stop"),
    passes("stop, a list", chat(stop=["xx", " is"]), lambda told: text(told) == "The capital of France"),
    passes("stop as a stream", chat(stop=[" France is"], stream=True), lambda chunks: joined(chunks) == "The capital of"),
    passes("n", chat(n=3), lambda told: [choice.index for choice in told.choices] == [0, 1, 2] and {choice.message.content for choice in told.choices} == {ANSWER}),
    passes("n as a stream", chat(n=2, stream=True), lambda chunks: {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}),
    passes("seed", lambda: [text(chat(messages=STORY, temperature=1, seed=7, max_tokens=12)()) for _ in range(2)], lambda told: told[0] == told[1]),
    passes("another seed", lambda: {text(chat(messages=STORY, temperature=1.5, seed=seed, max_tokens=12)()) for seed in range(6)}, lambda told: len(told) > 1),
    passes("top_p", chat(temperature=1, top_p=0.01), is_answer),
    passes("penalties", chat(presence_penalty=0.5, frequency_penalty=0.5), lambda told: text(told)),
    passes("logit_bias", chat(max_tokens=1, logprobs=True, top_logprobs=2, logit_bias={"7": 100}), lambda told: told.choices[0].logprobs.content[0].token != "The"),
    passes("logprobs", chat(logprobs=True, top_logprobs=3), lambda told: len(told.choices[0].logprobs.content) > 3,
           lambda told: all(len(one.top_logprobs) == 3 and one.logprob <= 0 for one in told.choices[0].logprobs.content),
           lambda told: "".join(bytes(one.bytes).decode() for one in told.choices[0].logprobs.content) == ANSWER),
    passes("logprobs as a stream", chat(logprobs=True, stream=True), lambda chunks: sum(len(chunk.choices[0].logprobs.content) for chunk in chunks if chunk.choices and chunk.choices[0].logprobs) > 3),
    passes("system message", chat(messages=[{"role": "system", "content": "You are brief."}, *ASKED]), lambda told: text(told)),
    passes("developer message", chat(messages=[{"role": "developer", "content": "You are brief."}, *ASKED]), lambda told: text(told)),
    passes("two system messages", chat(messages=[{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, *ASKED]), lambda told: text(told)),
    passes("a late system message", chat(messages=[*ASKED, {"role": "assistant", "content": ANSWER}, {"role": "system", "content": "Be brief."}, *ASKED]), lambda told: text(told)),
    passes("named users", chat(messages=[{"role": "user", "name": "ann", "content": QUESTION}]), lambda told: text(told)),
    passes("content as parts", chat(messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]), is_answer),
    passes("a conversation", chat(messages=[*ASKED, {"role": "assistant", "content": ANSWER}, *ASKED]), lambda told: told.usage.prompt_tokens > 20),
    passes("an assistant's turn that goes on", chat(messages=[*ASKED, {"role": "assistant", "content": "The capital of"}]), lambda told: text(told).strip().startswith("France")),
    passes("a refusal as a part", chat(messages=[*ASKED, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *ASKED]), lambda told: text(told)),
    passes("JSON mode", chat(response_format={"type": "json_object"}, max_tokens=200), lambda told: told.choices[0].finish_reason == "length" or isinstance(json.loads(text(told)), dict)),
    passes("a JSON schema", chat(**form()), lambda told: valid(text(told))),
    passes("a JSON schema at temperature 1", lambda: [chat(**form(temperature=1, seed=seed))() for seed in range(4)], lambda all_told: all(valid(text(told)) for told in all_told)),
    passes("a JSON schema as a stream", chat(**form(stream=True)), lambda chunks: valid(joined(chunks))),
    passes("parse with a Pydantic class", lambda: CLIENT.chat.completions.parse(**GREEDY, max_tokens=200, response_format=City),
           lambda told: isinstance(told.choices[0].message.parsed, City)),
    passes("parse, asynchronous", lambda: ASYNC.chat.completions.parse(**GREEDY, max_tokens=200, response_format=City), lambda told: isinstance(told.choices[0].message.parsed, City)),
    passes("the stream helper with a Pydantic class", lambda: chat_stream(max_tokens=200, response_format=City), lambda told: isinstance(told[1].choices[0].message.parsed, City)),
    passes("a tool that must be called", chat(**REQUIRED), one_call, lambda told: told.choices[0].finish_reason == "tool_calls"),
    passes("a named tool", chat(**NAMED), one_call),
    passes("a tool that must be called, as a stream", chat(**REQUIRED, stream=True),
           lambda chunks: valid("".join(call.function.arguments or "" for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or []), PARAMETERS),
           lambda chunks: chunks[-1].choices[0].finish_reason == "tool_calls"),
    passes("a tool by the stream helper", lambda: chat_stream(**REQUIRED), lambda told: one_call(told[1]) and "tool_calls.function.arguments.done" in told[0]),
    passes("pydantic_function_tool", lambda: CLIENT.chat.completions.parse(**GREEDY, max_tokens=200, tool_choice="required", tools=[openai.pydantic_function_tool(City)]),
           lambda told: isinstance(calls(told)[0].function.parsed_arguments, City)),
    passes("a strict tool", chat(**{**REQUIRED, "tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]}), one_call),
    passes("tools that may be called", chat(tools=[TOOL], max_tokens=60), lambda told: text(told) or one_call(told)),
    passes("tools that must not be called", chat(tools=[TOOL], tool_choice="none", max_tokens=60), lambda told: not calls(told) and text(told)),
    passes("one of two tools", chat(**{**NAMED, "tools": [SECOND, TOOL]}), one_call),
    passes("allowed_tools", chat(tools=[SECOND, TOOL], max_tokens=200, tool_choice={"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}}), one_call),
    passes("one call at a time", chat(**REQUIRED, parallel_tool_calls=False), one_call),
    passes("a tool's result", chat(messages=PAST, tools=[TOOL], max_tokens=20), lambda told: told.choices[0].message),
    passes("a tool without parameters", chat(tools=[SECOND], tool_choice="required", max_tokens=60), lambda told: json.loads(calls(told)[0].function.arguments) == {}),
    passes("a custom tool with a grammar", chat(tools=[MOVE], tool_choice={"type": "custom", "custom": {"name": "move"}}), lambda told: calls(told)[0].custom.input[:3] in ("up ", "dow")),
    passes("reasoning_effort", chat(reasoning_effort="low"), lambda told: text(told)),
    passes("service_tier, user, store, metadata", chat(service_tier="auto", user="u", store=False, metadata={"a": "b"}, safety_identifier="s", prompt_cache_key="k"), is_answer),
    passes("extra_body", chat(extra_body={"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0}), is_answer),
    passes("extra_headers", chat(extra_headers={"X-Other": "1"}), is_answer),
    passes("long texts", chat(messages=[{"role": "user", "content": "word " * 1000}], max_tokens=2), lambda told: told.usage.prompt_tokens > 900),
    passes("text of all planes", chat(messages=[{"role": "user", "content": "äß😀\u0000漢\u200d👩‍🚀"}], max_tokens=4), lambda told: told.usage.completion_tokens > 0),
]

def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    return None


OTHER = [
    passes("NotFoundError", lambda: raised(openai.NotFoundError, chat(model="nothing")), lambda error: error.code == "model_not_found" and "nothing" in error.message),
    passes("BadRequestError", lambda: raised(openai.BadRequestError, chat(temperature=7)), lambda error: error.param == "temperature"),
    passes("an unknown role", lambda: raised(openai.BadRequestError, chat(messages=[{"role": "king", "content": "x"}])), lambda error: "king" in error.message),
    passes("an unknown effort", lambda: raised(openai.BadRequestError, chat(reasoning_effort="huge")), lambda error: "effort" in error.message),
    passes("top_logprobs without logprobs", lambda: raised(openai.BadRequestError, chat(top_logprobs=2)), lambda error: "logprobs" in error.message),
    passes("a prompt that is too long", lambda: raised(openai.BadRequestError, chat(messages=[{"role": "user", "content": "word " * 9000}])),
           lambda error: error.code == "context_length_exceeded" and "maximum context length" in error.message),
    passes("a schema that cannot be", lambda: raised(openai.BadRequestError, chat(**form({"type": "string", "minLength": 5, "maxLength": 2}))), lambda error: error.message),
    passes("completions", lambda: CLIENT.completions.create(model=MODEL, prompt="Once upon", max_tokens=4, temperature=0), lambda told: told.choices[0].text and told.object == "text_completion"),
    passes("completions as a stream", lambda: CLIENT.completions.create(model=MODEL, prompt="Once upon", max_tokens=4, temperature=0, stream=True), lambda chunks: "".join(chunk.choices[0].text for chunk in chunks)),
    passes("completions of several prompts", lambda: CLIENT.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=2), lambda told: [one.index for one in told.choices] == [0, 1]),
    passes("completions of token ids", lambda: CLIENT.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=2), lambda told: told.usage.prompt_tokens in (3, 4)),
    passes("echo with logprobs", lambda: CLIENT.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=1, echo=True, logprobs=1, temperature=0),
           lambda told: told.choices[0].text.startswith("Once upon a time") and told.choices[0].logprobs.token_logprobs[0] is None,
           lambda told: told.choices[0].logprobs.text_offset[:1] == [0] and len(told.choices[0].logprobs.tokens) > 3),
    passes("embeddings", lambda: CLIENT.embeddings.create(model=MODEL, input="a fox"), lambda told: len(told.data[0].embedding) > 10 and told.usage.prompt_tokens > 0),
    passes("embeddings of several texts", lambda: CLIENT.embeddings.create(model=MODEL, input=["a fox", "a lantern"]), lambda told: [one.index for one in told.data] == [0, 1]),
    passes("embeddings as floats", lambda: CLIENT.embeddings.create(model=MODEL, input="a fox", encoding_format="float"), lambda told: isinstance(told.data[0].embedding[0], float)),
    passes("embeddings in base64", lambda: CLIENT.embeddings.create(model=MODEL, input="a fox", encoding_format="base64"), lambda told: len(base64.b64decode(told.data[0].embedding)) % 4 == 0),
    passes("embeddings of token ids", lambda: CLIENT.embeddings.create(model=MODEL, input=[[5, 6], [7]]), lambda told: len(told.data) == 2),
    passes("embeddings, asynchronous", lambda: ASYNC.embeddings.create(model=MODEL, input="a fox"), lambda told: len(told.data) == 1),
    passes("models", lambda: [one.id for one in CLIENT.models.list()], lambda ids: any(one.startswith(MODEL) for one in ids)),
    passes("one model", lambda: CLIENT.models.retrieve(MODEL), lambda told: told.object == "model" and told.owned_by),
    passes("no such model", lambda: raised(openai.NotFoundError, lambda: CLIENT.models.retrieve("nothing")), lambda error: "nothing" in error.message),
]
ASIDE = [
    refuses("pictures", chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]), "reads text only"),
    refuses("sound", chat(messages=[{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}]}]), "input_audio is not supported"),
    refuses("answers in sound", chat(modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"}), "audio|modalities"),
    refuses("images.generate", lambda: CLIENT.images.generate(model=MODEL, prompt="A fox"), "/v1/images/generations: there is no such path"),
    refuses("audio.speech", lambda: CLIENT.audio.speech.create(model=MODEL, input="x", voice="alloy"), "/v1/audio/speech: there is no such path"),
    refuses("audio.transcriptions", lambda: CLIENT.audio.transcriptions.create(model=MODEL, file=("a.wav", io.BytesIO(b"RIFF"))), "/v1/audio/transcriptions: there is no such path"),
    refuses("files.list", lambda: CLIENT.files.list(), "/v1/files: there is no such path"),
    refuses("files.create", lambda: CLIENT.files.create(file=("a.jsonl", io.BytesIO(b"{}")), purpose="batch"), "/v1/files: there is no such path"),
    refuses("batches", lambda: CLIENT.batches.list(), "/v1/batches: there is no such path"),
    refuses("vector_stores", lambda: CLIENT.vector_stores.create(name="a"), "/v1/vector_stores: there is no such path"),
    refuses("assistants", lambda: CLIENT.beta.assistants.create(model=MODEL), "/v1/assistants: there is no such path"),
    refuses("moderations", lambda: CLIENT.moderations.create(input="x"), "/v1/moderations: there is no such path"),
    refuses("fine_tuning", lambda: CLIENT.fine_tuning.jobs.list(), "/v1/fine_tuning/jobs: there is no such path"),
    refuses("uploads", lambda: CLIENT.uploads.create(bytes=1, filename="a", mime_type="text/plain", purpose="batch"), "/v1/uploads: there is no such path"),
    refuses("best_of", lambda: CLIENT.completions.create(model=MODEL, prompt="Once", best_of=2), "best_of: not supported"),
]
if __name__ == "__main__":
    run("openai", CHAT, OTHER, ASIDE)
