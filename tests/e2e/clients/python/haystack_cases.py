"""haystack: generators and embedders of OpenAI and Ollama, a pipeline, an agent."""
from cases import ANSWER, BASE, MODEL, QUESTION, SCHEMA, V1, passes, run
from haystack import Document, Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.tools import Tool
from haystack.utils import Secret
from haystack_integrations.components.embedders.ollama import OllamaDocumentEmbedder, OllamaTextEmbedder
from haystack_integrations.components.generators.ollama import OllamaChatGenerator

KEY = {"model": MODEL, "api_key": Secret.from_token("none"), "api_base_url": V1}
ASKED = [ChatMessage.from_user(QUESTION)]
WEATHER = Tool(name="weather", description="The weather of a city", function=lambda city: "Sunny.",
               parameters={"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]})
FORM = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": SCHEMA}}


def chat(**fields):
    return OpenAIChatGenerator(**KEY, generation_kwargs={"temperature": 0, "max_completion_tokens": 100, **fields})


def ollama():
    return OllamaChatGenerator(model=MODEL, url=BASE, generation_kwargs={"temperature": 0, "num_predict": 100})


def streamed(generator):
    parts = []
    generator.run(ASKED, streaming_callback=lambda part: parts.append(part.content or ""))
    return "".join(parts)


def pipeline():
    store = InMemoryDocumentStore()
    texts = [Document(content="The lantern has number 4711."), Document(content="A fox lives here.")]
    store.write_documents(OpenAIDocumentEmbedder(**KEY).run(texts)["documents"])
    whole = Pipeline()
    for name, part in {"embed": OpenAITextEmbedder(**KEY), "find": InMemoryEmbeddingRetriever(store, top_k=1), "ask": chat(), "prompt": ChatPromptBuilder(
            [ChatMessage.from_user("{% for one in documents %}{{ one.content }}{% endfor %} {{ question }}")], required_variables="*")}.items():
        whole.add_component(name, part)
    for begin, end in (("embed.embedding", "find.query_embedding"), ("find.documents", "prompt.documents"), ("prompt.prompt", "ask.messages")):
        whole.connect(begin, end)
    return whole.run({"embed": {"text": QUESTION}, "prompt": {"question": QUESTION}})


ROWS = [
    passes("OpenAIChatGenerator", lambda: chat().run(ASKED)["replies"][0], lambda told: told.text == ANSWER and told.meta["usage"]["completion_tokens"] > 3),
    passes("OpenAIChatGenerator as a stream", lambda: streamed(chat()), lambda text: text == ANSWER),
    passes("a schema", lambda: chat(response_format=FORM).run(ASKED)["replies"][0], lambda told: told.text.startswith("{")),
    passes("a tool that must be called", lambda: chat(tool_choice="required").run(ASKED, tools=[WEATHER])["replies"][0], lambda told: told.tool_calls[0].tool_name == "weather"),
    passes("OpenAIResponsesChatGenerator", lambda: OpenAIResponsesChatGenerator(**KEY, generation_kwargs={"temperature": 0}).run(ASKED)["replies"][0], lambda told: told.text == ANSWER),
    passes("OllamaChatGenerator", lambda: ollama().run(ASKED)["replies"][0], lambda told: told.text == ANSWER),
    passes("OllamaChatGenerator as a stream", lambda: streamed(ollama()), lambda text: text == ANSWER),
    passes("OllamaTextEmbedder", lambda: OllamaTextEmbedder(model=MODEL, url=BASE).run("a fox")["embedding"], lambda vector: len(vector) > 10),
    passes("OllamaDocumentEmbedder", lambda: OllamaDocumentEmbedder(model=MODEL, url=BASE).run([Document(content="a fox")])["documents"], lambda told: told[0].embedding),
    passes("an agent", lambda: Agent(chat_generator=chat(tool_choice="required"), tools=[WEATHER], exit_conditions=["weather"]).run(ASKED)["messages"], lambda told: told[-1].tool_call_result.result == "Sunny."),
    passes("a pipeline with retrieval", pipeline, lambda told: told["ask"]["replies"][0].text),
]
if __name__ == "__main__":
    run("haystack", ROWS)
