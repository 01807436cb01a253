"""dspy: its model over each API, and its adapter that asks for a schema."""
import typing

import dspy
from cases import ANSWER, ASKED, MODEL, QUESTION, V1, passes, run



class Known(dspy.LM):
    """The package's own list does not have this model, so what it takes is said here."""
    supports_response_schema = True
    supported_params = {"response_format"}


LMS = {"openai": Known(f"openai/{MODEL}", api_base=V1, api_key="none", temperature=0, max_tokens=300, cache=False, num_retries=0),
       "ollama": dspy.LM(f"ollama_chat/{MODEL}", api_base=V1, api_key="none", temperature=0, max_tokens=300, cache=False, num_retries=0),
       "responses": dspy.LM(f"openai/{MODEL}", model_type="responses", api_base=V1, api_key="none", temperature=0, max_tokens=300, cache=False, num_retries=0)}


class Kind(dspy.Signature):
    """Say which kind of place it is."""
    place: str = dspy.InputField()
    kind: typing.Literal["town", "village"] = dspy.OutputField()


class Facts(Kind):
    """Say what is known of it."""
    old: bool = dspy.OutputField()
    people: int = dspy.OutputField()


def predict(name, signature=Kind):
    def call():
        with dspy.context(lm=LMS[name], adapter=dspy.JSONAdapter()):
            return dspy.Predict(signature)(place="Paris")
    return call


def text_of(told):
    first = told[0]
    return first if isinstance(first, str) else first["text"]


ROWS = [
    *[passes(f"LM, a prompt ({name})", lambda lm=lm: lm(QUESTION), lambda told: text_of(told).strip() == ANSWER) for name, lm in LMS.items()],
    *[passes(f"LM, messages ({name})", lambda lm=lm: lm(messages=ASKED), lambda told: text_of(told).strip() == ANSWER) for name, lm in LMS.items()],
    passes("acall", lambda: LMS["openai"].acall(QUESTION), lambda told: text_of(told) == ANSWER),
    passes("Predict", predict("openai"), lambda told: told.kind in ("town", "village")),
    passes("Predict with several fields", predict("openai", signature=Facts), lambda told: isinstance(told.old, bool) and isinstance(told.people, int)),
    passes("Embedder", lambda: dspy.Embedder(f"openai/{MODEL}", api_base=V1, api_key="none", caching=False)(["a fox", "a lantern"]), lambda told: told.shape[0] == 2),
]
if __name__ == "__main__":
    run("dspy", ROWS)
