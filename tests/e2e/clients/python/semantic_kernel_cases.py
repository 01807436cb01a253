"""semantic-kernel: its OpenAI connectors."""
import openai
import pydantic
import typing
from cases import ANSWER, MODEL, QUESTION, V1, passes, run
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings, OpenAITextEmbedding
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import KernelArguments, kernel_function

OPENAI = openai.AsyncOpenAI(base_url=V1, api_key="none", max_retries=0)
CHAT = OpenAIChatCompletion(ai_model_id=MODEL, async_client=OPENAI)


class City(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=12)]
    kind: typing.Literal["town", "village"]


class Plugin:
    @kernel_function(description="The weather of a city")
    def weather(self, city: str) -> str:
        return "Sunny."


def settings(**fields):
    return OpenAIChatPromptExecutionSettings(temperature=0, max_tokens=200, **fields)


def history():
    asked = ChatHistory(system_message="Be brief.")
    asked.add_user_message(QUESTION)
    return asked


def asked():
    made = ChatHistory()
    made.add_user_message(QUESTION)
    return made


def with_plugin():
    kernel = Kernel(services=CHAT)
    kernel.add_plugin(Plugin(), "here")
    return CHAT.get_chat_message_contents(asked(), settings(function_choice_behavior=FunctionChoiceBehavior.Required(auto_invoke=False)), kernel=kernel)


async def streamed():
    return [part async for parts in CHAT.get_streaming_chat_message_contents(asked(), settings()) for part in parts]


def template():
    kernel = Kernel(services=CHAT)
    return kernel.invoke_prompt("What is the capital of {{$country}}?", arguments=KernelArguments(settings=settings(), country="France"))


ROWS = [
    passes("get_chat_message_content", lambda: CHAT.get_chat_message_content(asked(), settings()), lambda told: told.content == ANSWER),
    passes("as a stream", streamed, lambda parts: "".join(part.content for part in parts) == ANSWER),
    passes("a system message", lambda: CHAT.get_chat_message_content(history(), settings()), lambda told: told.content),
    passes("a Pydantic class", lambda: CHAT.get_chat_message_content(asked(), settings(response_format=City)), lambda told: City.model_validate_json(told.content)),
    passes("a function that must be called", with_plugin, lambda told: told[0].items[0].name == "here-weather"),
    passes("invoke_prompt", template, lambda told: str(told) == ANSWER),
    passes("OpenAITextEmbedding", lambda: OpenAITextEmbedding(ai_model_id=MODEL, async_client=OPENAI).generate_embeddings(["a fox", "a lantern"]), lambda told: len(told) == 2),
]
if __name__ == "__main__":
    run("semantic-kernel", ROWS)
