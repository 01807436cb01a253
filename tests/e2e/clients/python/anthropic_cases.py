"""anthropic: messages, the beta's helpers, token counts, models."""
import json
import typing

import anthropic
import pydantic
from anthropic import beta_tool
from cases import ANSWER, ASKED, BASE, DOT, MODEL, PARAMETERS, QUESTION, SCHEMA, STORY, passes, refuses, run

KEY = {"base_url": BASE, "api_key": "none", "max_retries": 0, "timeout": 60}
CLIENT = anthropic.Anthropic(**KEY)
ASYNC = anthropic.AsyncAnthropic(**KEY)
GREEDY = {"model": MODEL, "messages": ASKED, "max_tokens": 60, "extra_body": {"temperature": 0}}  # which this version has no argument for
TOOL = {"name": "weather", "description": "The weather of a city", "input_schema": PARAMETERS}
REQUIRED = {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 200}


class City(pydantic.BaseModel):
    """The package leaves limits out of the schema that it sends, so there are none."""
    kind: typing.Literal["town", "village"]
    old: bool


def create(**fields):
    return lambda: CLIENT.messages.create(**{**GREEDY, **fields})


def beta(**fields):
    return lambda: CLIENT.beta.messages.create(**{**GREEDY, **fields})


def is_answer(told):
    return told.content[0].text == ANSWER


def use_of(told):
    return next(block for block in told.content if block.type == "tool_use")


def good_call(told):
    made = use_of(told)
    return made.name == "weather" and len(made.input["city"]) <= 12 and set(made.input) == {"city"} and made.id


def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    return None


def stream_helper(where=CLIENT.messages, **fields):
    with where.stream(**{**GREEDY, **fields}) as stream:
        kinds = [event.type for event in stream]
        return kinds, stream.get_final_message()


def left():
    stream = create(messages=STORY, stream=True, max_tokens=1500)()
    first = next(iter(stream))
    stream.close()
    return first


def tool_runner():
    asked = []

    @beta_tool
    def weather(city: typing.Annotated[str, pydantic.Field(max_length=12)]) -> str:
        """The weather of a city"""
        asked.append(city)
        return "Sunny."

    told = list(CLIENT.beta.messages.tool_runner(**{**GREEDY, "max_tokens": 200}, tools=[weather], tool_choice={"type": "any"}, max_iterations=2))
    return asked, told


def after_call():
    told = create(**REQUIRED)()
    made = use_of(told)
    return create(tools=[TOOL], messages=[*ASKED, {"role": "assistant", "content": told.content},
                                          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": made.id, "content": "Sunny."}]}])()


def typed_tool(**tool):
    return lambda: use_of(beta(tools=[tool], tool_choice={"type": "any"}, max_tokens=300)())


ROWS = [
    passes("messages", create(), is_answer, lambda told: told.stop_reason == "end_turn" and told.type == "message" and told.role == "assistant"),
    passes("usage", create(), lambda told: told.usage.output_tokens > 3 and told.usage.input_tokens + (told.usage.cache_read_input_tokens or 0) > 5),
    passes("_request_id", create(), lambda told: told._request_id),
    passes("a stream", create(stream=True), lambda events: "".join(event.delta.text for event in events if event.type == "content_block_delta") == ANSWER,
           lambda events: [event.type for event in events][0] == "message_start" and [event.type for event in events][-2:] == ["message_delta", "message_stop"]),
    passes("the stream helper", stream_helper, lambda told: is_answer(told[1]) and "text" in told[0]),
    passes("text_stream", lambda: (lambda stream: "".join(stream.text_stream))(CLIENT.messages.stream(**GREEDY).__enter__()), lambda text: text == ANSWER),
    passes("asynchronous", lambda: ASYNC.messages.create(**GREEDY), is_answer),
    passes("an asynchronous stream", lambda: ASYNC.messages.create(**GREEDY, stream=True), lambda events: events[-1].type == "message_stop"),
    passes("a stream that is left", left, lambda event: event.type == "message_start"),
    passes("with_raw_response", lambda: CLIENT.messages.with_raw_response.create(**GREEDY), lambda told: told.headers["request-id"] and is_answer(told.parse())),
    passes("max_tokens", create(max_tokens=3), lambda told: told.stop_reason == "max_tokens" and told.usage.output_tokens == 3),
    passes("stop_sequences", create(stop_sequences=["x", " France"]), lambda told: told.stop_reason == "stop_sequence" and told.stop_sequence == " France"),
    passes("stop_sequences as a stream", lambda: stream_helper(stop_sequences=[" France"]), lambda told: told[1].stop_sequence == " France" and told[1].content[0].text == "The capital of"),
    passes("system", create(system="You are brief."), lambda told: told.content),
    passes("system as blocks, to be cached", create(system=[{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}]), lambda told: told.content),
    passes("cache_read_input_tokens", lambda: [create(messages=[{"role": "user", "content": "word " * 500}], max_tokens=1)() for _ in range(2)][1], lambda told: told.usage.cache_read_input_tokens > 400),
    passes("top_k, top_p", create(extra_body={"top_k": 1, "top_p": 0.5}), is_answer),
    passes("metadata, service_tier", create(metadata={"user_id": "u"}, service_tier="auto"), is_answer),
    passes("a document of text", create(messages=[{"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Fox"}, "title": "a"},
                                                                               {"type": "text", "text": QUESTION}]}]), lambda told: told.content),
    passes("an answer's beginning", create(messages=[*ASKED, {"role": "assistant", "content": "The capital of"}]), lambda told: told.content[0].text.strip().startswith("France")),
    passes("a tool that must be called", create(**REQUIRED), good_call, lambda told: told.stop_reason == "tool_use"),
    passes("a named tool", create(**{**REQUIRED, "tool_choice": {"type": "tool", "name": "weather"}}), good_call),
    passes("a tool by the stream helper", lambda: stream_helper(**REQUIRED), lambda told: good_call(told[1]) and "input_json" in told[0]),
    passes("one call at a time", create(**{**REQUIRED, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}), good_call),
    passes("tools that must not be called", create(tools=[TOOL], tool_choice={"type": "none"}), lambda told: told.content[0].type == "text"),
    passes("a tool's result", after_call, lambda told: told.content),
    passes("a tool that is not there", lambda: raised(anthropic.BadRequestError, create(**{**REQUIRED, "tool_choice": {"type": "tool", "name": "clock"}})), lambda error: "clock" in str(error)),
    passes("a picture in a tool's result", create(tools=[TOOL], messages=[*ASKED, {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DOT}}]}]}]), lambda told: told.content),
    passes("thinking", create(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1100), lambda told: told.content),
    passes("thinking is disabled", create(thinking={"type": "disabled"}), is_answer),
    passes("output_config", create(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, max_tokens=200), lambda told: set(json.loads(told.content[0].text)) == {"city", "count"}),
    passes("parse", lambda: CLIENT.messages.parse(**{**GREEDY, "max_tokens": 200}, output_format=City), lambda told: isinstance(told.parsed_output, City)),
    passes("the beta's parse", lambda: CLIENT.beta.messages.parse(**{**GREEDY, "max_tokens": 200}, output_format=City), lambda told: isinstance(told.parsed_output, City)),
    passes("tool_runner", tool_runner, lambda told: len(told[0]) >= 1 and len(told[0][0]) <= 12 and len(told[1]) == 2),
    passes("the beta's messages", beta(), is_answer),
    passes("the beta's stream helper", lambda: stream_helper(CLIENT.beta.messages), lambda told: is_answer(told[1])),
    passes("bash", typed_tool(type="bash_20250124", name="bash"), lambda made: "command" in made.input or "restart" in made.input),
    passes("text_editor", typed_tool(type="text_editor_20250728", name="str_replace_based_edit_tool"), lambda made: made.input["command"] in ("view", "create", "str_replace", "insert")),
    passes("memory", typed_tool(type="memory_20250818", name="memory"), lambda made: made.input["command"]),
    passes("count_tokens", lambda: (CLIENT.messages.count_tokens(model=MODEL, messages=ASKED), create()()),
           lambda told: told[0].input_tokens == told[1].usage.input_tokens + (told[1].usage.cache_read_input_tokens or 0)),
    passes("count_tokens beyond the context", lambda: CLIENT.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}]), lambda told: told.input_tokens > 8000),
    passes("count_tokens with tools", lambda: CLIENT.messages.count_tokens(model=MODEL, messages=ASKED, tools=[TOOL]), lambda told: told.input_tokens > 20),
    passes("models", lambda: [one.id for one in CLIENT.models.list()], lambda ids: any(one.startswith(MODEL) for one in ids)),
    passes("one model", lambda: CLIENT.models.retrieve(MODEL), lambda told: told.type == "model" and told.display_name and told.created_at),
    passes("models have a request id", lambda: CLIENT.models.with_raw_response.list(), lambda told: told.headers["request-id"]),
    passes("no such model", lambda: raised(anthropic.NotFoundError, create(model="nothing")), lambda error: error.body["error"]["type"] == "not_found_error"),
    passes("a prompt that is too long", lambda: raised(anthropic.BadRequestError, create(messages=[{"role": "user", "content": "word " * 9000}])), lambda error: "prompt is too long:" in str(error)),
    passes("temperature 7", lambda: raised(anthropic.BadRequestError, create(extra_body={"temperature": 7})), lambda error: error.body["error"]["type"] == "invalid_request_error"),
    passes("web search that may be used", create(tools=[{"type": "web_search_20250305", "name": "web_search"}]), is_answer),
]
ASIDE = [
    refuses("pictures", create(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DOT}}]}]), "reads text only"),
    refuses("PDF documents", create(messages=[{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}]}]), "a document of source type .*base64.* is not supported"),
    refuses("batches", lambda: CLIENT.messages.batches.list(), "/v1/messages/batches: there is no such path"),
    refuses("batches.create", lambda: CLIENT.messages.batches.create(requests=[{"custom_id": "a", "params": GREEDY}]), "/v1/messages/batches: there is no such path"),
    refuses("files", lambda: CLIENT.beta.files.list(), "/v1/files: there is no such path"),
    refuses("files.upload", lambda: CLIENT.beta.files.upload(file=("a.txt", b"text", "text/plain")), "/v1/files: there is no such path"),
    refuses("skills", lambda: CLIENT.beta.skills.list(), "/v1/skills: there is no such path"),
    refuses("web search that must be used", create(tools=[{"type": "web_search_20250305", "name": "web_search"}], tool_choice={"type": "any"}), "tool"),
    refuses("mcp_servers", beta(mcp_servers=[{"type": "url", "url": "https://a.example", "name": "a"}]), "mcp_servers"),
    refuses("a container", beta(container="c"), "container"),
]
if __name__ == "__main__":
    run("anthropic", ROWS, ASIDE)
