"""instructor: every mode that fits OpenAI's API."""
import typing

import instructor
import openai
import pydantic
from cases import MODEL, V1, passes, run

ASKED = [{"role": "user", "content": "Tell me about a city."}]
KEY = {"base_url": V1, "api_key": "none", "max_retries": 0}


class City(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=12)]
    kind: typing.Literal["town", "village"]
    people: typing.Annotated[int, pydantic.Field(ge=0, le=99)]


def client(mode=instructor.Mode.TOOLS_STRICT):
    return instructor.from_openai(openai.OpenAI(**KEY), mode=mode)


ASK = {"model": MODEL, "messages": ASKED, "response_model": City, "max_retries": 1, "max_tokens": 300, "temperature": 0}
ROWS = [
    *[passes(mode.name, lambda mode=mode: client(mode).chat.completions.create(**ASK), lambda made: isinstance(made, City))
      for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)],
    passes("asynchronous", lambda: instructor.from_openai(openai.AsyncOpenAI(**KEY), mode=instructor.Mode.TOOLS).chat.completions.create(**ASK), lambda made: isinstance(made, City)),
    passes("create_partial", lambda: list(client(instructor.Mode.TOOLS).chat.completions.create_partial(**ASK)), lambda parts: parts[-1].people is not None),
    passes("create_iterable", lambda: list(client(instructor.Mode.TOOLS).chat.completions.create_iterable(**{**ASK, "max_tokens": 600})), lambda made: all(isinstance(one, City) for one in made)),
    passes("create_with_completion", lambda: client().chat.completions.create_with_completion(**ASK), lambda told: isinstance(told[0], City) and told[1].usage.completion_tokens > 0),
    passes("a list", lambda: client(instructor.Mode.JSON_SCHEMA).chat.completions.create(**{**ASK, "response_model": list[City], "max_tokens": 600}), lambda made: isinstance(made, list)),
    passes("responses", lambda: client(instructor.Mode.RESPONSES_TOOLS).responses.create(input="Tell me about a city.", **{name: value for name, value in ASK.items() if name not in ("messages", "max_tokens")}), lambda made: isinstance(made, City)),
]
if __name__ == "__main__":
    run("instructor", ROWS)
