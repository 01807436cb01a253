"""llama-index: its OpenAI-like and Ollama models, embeddings, retrieval, an agent."""
import pydantic
import typing

from cases import ANSWER, BASE, MODEL, QUESTION, V1, passes, run
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

ASKED = [ChatMessage(role="user", content=QUESTION)]
LIKE = OpenAILike(model=MODEL, api_base=V1, api_key="none", temperature=0, max_tokens=200, context_window=2048, is_chat_model=True, is_function_calling_model=True, should_use_structured_outputs=True, max_retries=0)
OLLAMA = Ollama(model=MODEL, base_url=BASE, temperature=0, context_window=2048, request_timeout=60, additional_kwargs={"num_predict": 200})
EMBED = OpenAILikeEmbedding(model_name=MODEL, api_base=V1, api_key="none")


class City(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=12)]
    kind: typing.Literal["town", "village"]


def weather(city: str) -> str:
    """The weather of a city"""
    return "Sunny."


def retrieved(llm):
    index = VectorStoreIndex.from_documents([Document(text="The lantern has number 4711."), Document(text="A fox lives here.")], embed_model=EMBED)
    return index.as_query_engine(llm=llm, similarity_top_k=1).query("What number has the lantern?")


async def agent():
    return await FunctionAgent(tools=[weather], llm=LIKE, system_prompt="Be brief.").run(user_msg=QUESTION, max_iterations=3)


def rows_of(name, llm):
    return [
        passes(f"chat ({name})", lambda: llm.chat(ASKED), lambda told: told.message.content == ANSWER),
        passes(f"stream_chat ({name})", lambda: list(llm.stream_chat(ASKED)), lambda parts: parts[-1].message.content == ANSWER),
        passes(f"achat ({name})", lambda: llm.achat(ASKED), lambda told: told.message.content == ANSWER),
        passes(f"complete ({name})", lambda: llm.complete(QUESTION), lambda told: told.text),
        passes(f"structured_predict ({name})", lambda: llm.as_structured_llm(City).complete(QUESTION), lambda told: isinstance(told.raw, City)),
        passes(f"retrieval ({name})", lambda: retrieved(llm), lambda told: told.response and len(told.source_nodes) == 1),
    ]


OTHER = [
    passes("a tool that must be called", lambda: LIKE.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg=QUESTION, tool_required=True), lambda told: LIKE.get_tool_calls_from_response(told)[0].tool_name == "weather"),
    passes("FunctionAgent", agent, lambda told: str(told)),
    passes("OllamaEmbedding", lambda: OllamaEmbedding(model_name=MODEL, base_url=BASE).get_text_embedding("a fox"), lambda vector: len(vector) > 10),
    passes("OpenAILikeEmbedding", lambda: EMBED.get_text_embedding_batch(["a fox", "a lantern"]), lambda vectors: len(vectors) == 2),
]
if __name__ == "__main__":
    run("llama-index", rows_of("openai-like", LIKE), rows_of("ollama", OLLAMA), OTHER)
