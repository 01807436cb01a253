"""autogen: its clients of OpenAI's and Ollama's APIs, an assistant, a team."""
import typing

import pydantic
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import AssistantMessage, SystemMessage, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.ollama import OllamaChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient
from cases import ANSWER, BASE, MODEL, QUESTION, V1, passes, run

INFO = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown", "structured_output": True}
CLIENT = OpenAIChatCompletionClient(model=MODEL, base_url=V1, api_key="none", model_info=INFO, temperature=0, max_tokens=200, max_retries=0)
OLLAMA = OllamaChatCompletionClient(model=MODEL, host=BASE, model_info=INFO, options={"temperature": 0, "num_predict": 200})
ASKED = [UserMessage(content=QUESTION, source="user")]


class City(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=12)]
    kind: typing.Literal["town", "village"]


async def weather(city: str) -> str:
    """The weather of a city"""
    return "Sunny."


TOOL = FunctionTool(weather, description="The weather of a city")


def team():
    members = [AssistantAgent(name, CLIENT, system_message="Be brief.") for name in ("one", "two")]
    return RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(3)).run(task=QUESTION)


ROWS = [
    *[row for name, client in (("openai", CLIENT), ("ollama", OLLAMA)) for row in (
        passes(f"create ({name})", lambda client=client: client.create(ASKED), lambda told: told.content == ANSWER and told.usage.completion_tokens > 3),
        passes(f"create_stream ({name})", lambda client=client: client.create_stream(ASKED), lambda parts: parts[-1].content == ANSWER),
        passes(f"a Pydantic class ({name})", lambda client=client: client.create(ASKED, json_output=City), lambda told: City.model_validate_json(told.content)),
        passes(f"a conversation ({name})", lambda client=client: client.create([SystemMessage(content="Be brief."), *ASKED, AssistantMessage(content=ANSWER, source="one"), *ASKED]), lambda told: told.content))],
    passes("a tool that must be called", lambda: CLIENT.create(ASKED, tools=[TOOL], tool_choice="required"), lambda told: told.content[0].name == "weather"),
    passes("AssistantAgent", lambda: AssistantAgent("one", CLIENT).run(task=QUESTION), lambda told: told.messages[-1].content),
    passes("AssistantAgent with an output type", lambda: AssistantAgent("one", CLIENT, output_content_type=City).run(task=QUESTION), lambda told: isinstance(told.messages[-1].content, City)),
    passes("a team", team, lambda told: len(told.messages) == 3),
]
if __name__ == "__main__":
    run("autogen", ROWS)
