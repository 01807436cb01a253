"""smolagents: its model over OpenAI's API, and both kinds of agents."""
from cases import ANSWER, MODEL, QUESTION, SCHEMA, V1, passes, run
from smolagents import OpenAIServerModel, tool
from smolagents.models import ChatMessage, MessageRole

LLM = OpenAIServerModel(model_id=MODEL, api_base=V1, api_key="none", temperature=0, max_tokens=100)
ASKED = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": QUESTION}])]
FORM = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}


@tool
def weather(city: str) -> str:
    """The weather of a city

    Args:
        city: the city
    """
    return "Sunny."




ROWS = [
    passes("generate", lambda: LLM.generate(ASKED), lambda told: told.content == ANSWER and told.token_usage.output_tokens > 3),
    passes("generate_stream", lambda: list(LLM.generate_stream(ASKED)), lambda parts: "".join(part.content or "" for part in parts) == ANSWER),
    passes("response_format", lambda: LLM.generate(ASKED, response_format=FORM), lambda told: told.content.startswith("{")),
    passes("stop_sequences", lambda: LLM.generate(ASKED, stop_sequences=[" France"]), lambda told: told.content == "The capital of"),
    passes("tools_to_call_from", lambda: LLM.generate(ASKED, tools_to_call_from=[weather]), lambda told: told.tool_calls[0].function.name == "weather"),
]
if __name__ == "__main__":
    run("smolagents", ROWS)
