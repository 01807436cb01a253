"""pydantic-ai: each of its three providers."""
import typing

import pydantic
from cases import ANSWER, BASE, DOT, MODEL, QUESTION, V1, passes, refuses, run
from pydantic_ai import Agent, BinaryContent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider

OPENAI = OpenAIProvider(base_url=V1, api_key="none")
MODELS = {
    "chat": OpenAIChatModel(MODEL, provider=OPENAI),
    "responses": OpenAIResponsesModel(MODEL, provider=OPENAI),
    "ollama": OpenAIChatModel(MODEL, provider=OllamaProvider(base_url=V1, api_key="none")),
    "anthropic": AnthropicModel(MODEL, provider=AnthropicProvider(base_url=BASE, api_key="none"),
                                profile=AnthropicModelProfile(supports_json_schema_output=True)),
}
SET = {"temperature": 0, "max_tokens": 200}


class City(pydantic.BaseModel):
    kind: typing.Literal["town", "village"]
    old: bool


async def streamed(agent):
    async with agent.run_stream(QUESTION) as told:
        return [text async for text in told.stream_text()]


def with_tool(model):
    agent = Agent(model, model_settings=SET)

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city"""
        return "Sunny."
    return agent.run_sync(QUESTION)


def rows_of(name, model):
    agent = Agent(model, model_settings=SET)
    return [
        passes(f"run_sync ({name})", lambda: agent.run_sync(QUESTION), lambda told: told.output == ANSWER and told.usage.output_tokens > 3),
        passes(f"run_stream ({name})", lambda: streamed(agent), lambda texts: texts[-1] == ANSWER),
        passes(f"instructions ({name})", lambda: Agent(model, model_settings=SET, instructions="Be brief.").run_sync(QUESTION), lambda told: told.output),
        passes(f"message_history ({name})", lambda: agent.run_sync("And?", message_history=agent.run_sync(QUESTION).all_messages()), lambda told: len(told.all_messages()) == 4),
        passes(f"ToolOutput ({name})", lambda: Agent(model, model_settings=SET, output_type=ToolOutput(City)).run_sync(QUESTION), lambda told: isinstance(told.output, City)),
        passes(f"NativeOutput ({name})", lambda: Agent(model, model_settings=SET, output_type=NativeOutput(City)).run_sync(QUESTION), lambda told: isinstance(told.output, City)),
        passes(f"a tool that may be called ({name})", lambda: with_tool(model), lambda told: told.output is not None),
        refuses(f"pictures ({name})", lambda: agent.run_sync([QUESTION, BinaryContent(bytes(9), media_type="image/png")]), "image"),
    ]


if __name__ == "__main__":
    run("pydantic-ai", *[rows_of(*one) for one in MODELS.items()])
