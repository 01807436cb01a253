"""guidance: its model over OpenAI's chat."""
import guidance
import openai
from cases import ANSWER, MODEL, QUESTION, SCHEMA, V1, passes, run
from guidance import assistant, gen, json, user


def asked(what):
    lm = guidance.models.OpenAI(MODEL, echo=False, base_url=V1, api_key="none")
    with user():
        lm += QUESTION
    with assistant():
        lm += what
    return lm


ROWS = [
    passes("gen", lambda: asked(gen("it", max_tokens=60, temperature=0))["it"], lambda text: text == ANSWER),
    passes("json", lambda: asked(json("it", schema=SCHEMA, max_tokens=200))["it"], lambda text: text.startswith("{")),
]
if __name__ == "__main__":
    run("guidance", ROWS)
