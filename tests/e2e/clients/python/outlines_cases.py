"""outlines: its models over OpenAI's and Ollama's APIs."""
import json
import typing

import ollama
import openai
import outlines
import pydantic
from cases import ANSWER, BASE, MODEL, QUESTION, V1, passes, run

OPENAI = outlines.from_openai(openai.OpenAI(base_url=V1, api_key="none", max_retries=0), MODEL)
OLLAMA = outlines.from_ollama(ollama.Client(BASE), MODEL)
SGLANG = outlines.from_sglang(openai.OpenAI(base_url=V1, api_key="none", max_retries=0), MODEL)
VLLM = outlines.from_vllm(openai.OpenAI(base_url=V1, api_key="none", max_retries=0), MODEL)
SET = {"temperature": 0, "max_tokens": 200}


class City(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=12)]
    kind: typing.Literal["town", "village"]


ROWS = [
    passes("text (openai)", lambda: OPENAI(QUESTION, **SET), lambda text: text == ANSWER),
    passes("stream (openai)", lambda: "".join(OPENAI.stream(QUESTION, **SET)), lambda text: text == ANSWER),
    passes("a Pydantic class (openai)", lambda: City.model_validate_json(OPENAI(QUESTION, City, **SET)), lambda made: made.kind),
    passes("text (ollama)", lambda: OLLAMA(QUESTION, options={"temperature": 0}), lambda text: text == ANSWER),
    passes("a Pydantic class (ollama)", lambda: City.model_validate_json(OLLAMA(QUESTION, City, options={"temperature": 0})), lambda made: made.kind),
    *[row for name, llm in (("sglang", SGLANG), ("vllm", VLLM)) for row in (
        passes(f"a Pydantic class ({name})", lambda llm=llm: City.model_validate_json(llm(QUESTION, City, **SET)), lambda made: made.kind),
        passes(f"a choice ({name})", lambda llm=llm: llm(QUESTION, typing.Literal["Paris", "Rome"], **SET), lambda text: text in ("Paris", "Rome")),
        passes(f"a regular expression ({name})", lambda llm=llm: llm(QUESTION, outlines.types.Regex("(up|down) [0-9]"), **SET), lambda text: text.split()[0] in ("up", "down")),
        passes(f"a grammar ({name})", lambda llm=llm, name=name: llm(QUESTION, outlines.types.CFG({"sglang": 'root ::= "yes" | "no"', "vllm": 'start: "yes" | "no"'}[name]), **SET), lambda text: text in ("yes", "no")))],
]
if __name__ == "__main__":
    run("outlines", ROWS)
