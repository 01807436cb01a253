"""openai: the responses API. Each event of a stream is held to the package's own types."""
import json
import typing

import jsonschema
import openai
import pydantic
from cases import ANSWER, ASKED, FUNCTION, MODEL, PARAMETERS, PICTURE, QUESTION, SCHEMA, V1, passes, refuses, run
from openai_cases import ASYNC, CLIENT, City, raised

GREEDY = {"model": MODEL, "input": QUESTION, "temperature": 0}
TOOL = {"type": "function", **FUNCTION}
REQUIRED = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 200}
FORM = {"text": {"format": {"type": "json_schema", "name": "it", "strict": True, "schema": SCHEMA}}, "max_output_tokens": 200}
MOVE = {"type": "custom", "name": "move", "format": {"type": "grammar", "syntax": "regex", "definition": "(up|down) [0-9]"}}


def create(**fields):
    return lambda: CLIENT.responses.create(**{**GREEDY, **fields})


def is_answer(told):
    return told.output_text == ANSWER


def typed(events):
    """What the SDK builds is checked by nobody before this."""
    for event in events:
        type(event).model_validate(event.model_dump(by_alias=True, warnings="error"))
    return True


def in_order(events):
    return [event.sequence_number for event in events] == list(range(len(events)))


def deltas(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def valid(text, schema=SCHEMA):
    jsonschema.validate(json.loads(text), schema)
    return True


def call_of(told):
    return next(item for item in told.output if item.type == "function_call")


def stream_helper(**fields):
    with CLIENT.responses.stream(**{**GREEDY, **fields}) as stream:
        events = list(stream)
        return events, stream.get_final_response()


def two_turns():
    first = create()()
    return first, create(input="And?", previous_response_id=first.id, max_output_tokens=4)()


def kept(use):
    """Of a response that is kept, what this makes of its id."""
    return lambda: use(create(input=ASKED)().id)


def deleted():
    made = create()()
    CLIENT.responses.delete(made.id)
    return raised(openai.NotFoundError, lambda: CLIENT.responses.retrieve(made.id))


def after_call():
    asked = create(**REQUIRED)()
    made = call_of(asked)
    return create(tools=[TOOL], max_output_tokens=20, input=[*ASKED, *[item.model_dump(exclude_none=True) for item in asked.output],
                                                            {"type": "function_call_output", "call_id": made.call_id, "output": "Sunny."}])()


ROWS = [
    passes("a text", create(), is_answer, lambda told: told.status == "completed" and told.object == "response", lambda told: typed([told])),
    passes("usage", create(), lambda told: told.usage.total_tokens == told.usage.input_tokens + told.usage.output_tokens),
    passes("messages", create(input=ASKED), is_answer),
    passes("parts", create(input=[{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]), is_answer),
    passes("an answer in the input", create(input=[*ASKED, {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [
        {"type": "output_text", "text": ANSWER, "annotations": []}]}, *ASKED]), lambda told: told.output_text),
    passes("instructions", create(instructions="You are brief."), lambda told: told.output_text and told.instructions == "You are brief."),
    passes("developer messages", create(input=[{"role": "developer", "content": "A"}, {"role": "developer", "content": "B"}, *ASKED]), lambda told: told.output_text),
    passes("a stream", create(stream=True), lambda events: deltas(events) == ANSWER, typed, in_order,
           lambda events: [event.type for event in events][:2] == ["response.created", "response.in_progress"] and events[-1].type == "response.completed"),
    passes("a stream's events", create(stream=True), lambda events: [event.type for event in events if "delta" not in event.type][2:] == [
        "response.output_item.added", "response.content_part.added", "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]),
    passes("the stream helper", stream_helper, lambda told: is_answer(told[1])),
    passes("asynchronous", lambda: ASYNC.responses.create(**GREEDY), is_answer),
    passes("an asynchronous stream", lambda: ASYNC.responses.create(**GREEDY, stream=True), lambda events: deltas(events) == ANSWER, typed),
    passes("max_output_tokens", create(max_output_tokens=3), lambda told: told.status == "incomplete" and told.incomplete_details.reason == "max_output_tokens"),
    passes("max_output_tokens as a stream", create(max_output_tokens=3, stream=True), lambda events: events[-1].type == "response.incomplete", typed),
    passes("log probabilities", create(include=["message.output_text.logprobs"], top_logprobs=2), lambda told: len(told.output[0].content[0].logprobs[0].top_logprobs) == 2),
    passes("log probabilities as a stream", create(include=["message.output_text.logprobs"], top_logprobs=2, stream=True), typed,
           lambda events: all(event.logprobs for event in events if event.type == "response.output_text.delta")),
    passes("a schema", create(**FORM), lambda told: valid(told.output_text)),
    passes("a schema as a stream", create(**FORM, stream=True), lambda events: valid(deltas(events)), typed),
    passes("JSON mode", create(text={"format": {"type": "json_object"}}, max_output_tokens=200), lambda told: told.status == "incomplete" or isinstance(json.loads(told.output_text), dict)),
    passes("parse", lambda: CLIENT.responses.parse(**GREEDY, text_format=City, max_output_tokens=200), lambda told: isinstance(told.output_parsed, City)),
    passes("parse by the stream helper", lambda: stream_helper(text_format=City, max_output_tokens=200), lambda told: isinstance(told[1].output_parsed, City)),
    passes("a tool", create(**REQUIRED), lambda told: valid(call_of(told).arguments, PARAMETERS), lambda told: typed([told])),
    passes("a tool as a stream", create(**REQUIRED, stream=True), typed, in_order,
           lambda events: valid("".join(event.delta for event in events if event.type == "response.function_call_arguments.delta"), PARAMETERS)),
    passes("a named tool", create(**{**REQUIRED, "tool_choice": {"type": "function", "name": "weather"}}), lambda told: call_of(told).name == "weather"),
    passes("pydantic_function_tool", lambda: CLIENT.responses.parse(**GREEDY, max_output_tokens=200, tool_choice="required", tools=[openai.pydantic_function_tool(City)]), lambda told: isinstance(call_of(told).parsed_arguments, City)),
    passes("a tool's result", after_call, lambda told: told.output),
    passes("a custom tool with a grammar", create(tools=[MOVE], tool_choice={"type": "custom", "name": "move"}),
           lambda told: told.output[0].type == "custom_tool_call" and told.output[0].input.split()[0] in ("up", "down")),
    passes("shell, which the client runs", create(tools=[{"type": "local_shell"}], tool_choice={"type": "local_shell"}, max_output_tokens=200), lambda told: told.output[0].type == "local_shell_call"),
    passes("apply_patch, which the client runs", create(tools=[{"type": "apply_patch"}], tool_choice="required", max_output_tokens=200),
           lambda told: told.output[0].type == "apply_patch_call", lambda told: typed([told])),
    passes("previous_response_id", two_turns, lambda told: told[1].previous_response_id == told[0].id and told[1].usage.input_tokens > told[0].usage.input_tokens),
    passes("retrieve", kept(CLIENT.responses.retrieve), is_answer, lambda told: typed([told])),
    passes("retrieve as a stream", kept(lambda name: CLIENT.responses.retrieve(name, stream=True)), in_order, typed, lambda events: events[-1].type == "response.completed"),
    passes("retrieve a stream's end", kept(lambda name: CLIENT.responses.retrieve(name, stream=True, starting_after=3)), lambda events: events[0].sequence_number == 4),
    passes("input_items.list", kept(CLIENT.responses.input_items.list), lambda told: told.data[0].content[0].text == QUESTION and told.first_id == told.data[0].id, lambda told: typed(told.data)),
    passes("delete", deleted, lambda error: error.message),
    passes("store: false", lambda: raised(openai.NotFoundError, lambda: CLIENT.responses.retrieve(create(store=False)().id)), lambda error: error.message),
    passes("input_tokens.count", lambda: (CLIENT.responses.input_tokens.count(model=MODEL, input=QUESTION), create()()), lambda told: told[0].input_tokens == told[1].usage.input_tokens),
    passes("compact", lambda: CLIENT.responses.compact(model=MODEL, input=ASKED), lambda told: told.object == "response.compaction" and told.output),
    passes("reasoning", create(reasoning={"effort": "low"}), lambda told: told.output_text and told.reasoning.effort == "low"),
    passes("encrypted reasoning is asked for", create(include=["reasoning.encrypted_content"]), lambda told: told.output_text),
    passes("truncation: auto", create(input="word " * 9000, truncation="auto", max_output_tokens=2), lambda told: told.truncation == "auto"),
    passes("truncation: disabled", lambda: raised(openai.BadRequestError, create(input="word " * 9000)), lambda error: error.code == "context_length_exceeded"),
    passes("fields that come back", create(metadata={"a": "b"}, user="u", top_p=0.5, parallel_tool_calls=False, max_tool_calls=2, service_tier="auto", prompt_cache_key="k"),
           lambda told: told.metadata == {"a": "b"} and told.top_p == 0.5 and told.parallel_tool_calls is False),
    passes("no such model", lambda: raised(openai.NotFoundError, create(model="nothing")), lambda error: "nothing" in error.message),
    passes("no such response to go on from", lambda: raised(openai.NotFoundError, create(previous_response_id="resp_nothing")) or raised(openai.BadRequestError, create(previous_response_id="resp_nothing")), lambda error: "resp_nothing" in error.message),
    passes("web search that may be used", create(tools=[{"type": "web_search"}]), is_answer),
]
ASIDE = [
    refuses("pictures", create(input=[{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE, "detail": "auto"}]}]), "reads text only"),
    refuses("PDF files", create(input=[{"role": "user", "content": [{"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}]}]), "input_file|file"),
    refuses("in the background", create(background=True), "background: not supported"),
    refuses("conversations", lambda: CLIENT.conversations.create(), "/v1/conversations: there is no such path"),
    refuses("a conversation", create(conversation="c"), "conversation"),
    refuses("a stored prompt", create(prompt={"id": "p"}), "prompt"),
    refuses("web search that must be used", create(tools=[{"type": "web_search"}], tool_choice="required"), "Millrace runs none of the tools"),
    refuses("cancel", kept(CLIENT.responses.cancel), "/cancel: there is no such path"),
    refuses("file search that must be used", create(tools=[{"type": "file_search", "vector_store_ids": ["a"]}], tool_choice={"type": "file_search"}), "file_search"),
]
if __name__ == "__main__":
    run("openai (responses)", ROWS, ASIDE)
