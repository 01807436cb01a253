"""LangChain's three packages, and langgraph over them."""
import typing

import pydantic
from cases import ANSWER, BASE, MODEL, PICTURE, QUESTION, V1, passes, refuses, run
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

KEY = {"base_url": V1, "api_key": "none", "max_retries": 0}
CHATS = {
    "openai": ChatOpenAI(model=MODEL, temperature=0, max_tokens=200, **KEY),
    "openai, responses": ChatOpenAI(model=MODEL, temperature=0, max_tokens=200, use_responses_api=True, **KEY),
    "anthropic": ChatAnthropic(model=MODEL, max_tokens=200, temperature=0, base_url=BASE, api_key="none", max_retries=0),
    "ollama": ChatOllama(model=MODEL, temperature=0, num_predict=200, base_url=BASE),
}


class City(pydantic.BaseModel):
    """A city"""
    name: typing.Annotated[str, pydantic.Field(max_length=12)]
    kind: typing.Literal["town", "village"]


@tool
def weather(city: typing.Annotated[str, pydantic.Field(max_length=12)]) -> str:
    """The weather of a city"""
    return "Sunny."


def text_of(message):
    return message.text if isinstance(message.text, str) else message.text()


def agent(chat, **choice):
    """A graph that asks, calls the tool once, and remembers."""
    first, later = chat.bind_tools([weather], **choice), chat

    def ask(state):
        model = later if any(isinstance(one, ToolMessage) for one in state["messages"]) else first
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode([weather]))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__", ["tools", "__end__"])
    graph.add_edge("tools", "ask")
    return graph.compile(checkpointer=InMemorySaver()).invoke({"messages": [HumanMessage(QUESTION)]}, {"configurable": {"thread_id": "1"}})["messages"]


def rows_of(name, chat):
    """Which all of them hold; Ollama's has no way to demand a tool."""
    rows = [
        passes(f"invoke ({name})", lambda: chat.invoke(QUESTION), lambda told: text_of(told) == ANSWER and told.usage_metadata["output_tokens"] > 3),
        passes(f"stream ({name})", lambda: "".join(text_of(part) for part in chat.stream(QUESTION)), lambda text: text == ANSWER),
        passes(f"ainvoke ({name})", lambda: chat.ainvoke(QUESTION), lambda told: text_of(told) == ANSWER),
        passes(f"batch ({name})", lambda: chat.batch([QUESTION, QUESTION]), lambda told: [text_of(one) for one in told] == [ANSWER] * 2),
        passes(f"a conversation ({name})", lambda: chat.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION), AIMessage(ANSWER), HumanMessage("And?")]), lambda told: text_of(told)),
        passes(f"a chain ({name})", lambda: (ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")]) | chat | StrOutputParser()).invoke({"country": "France"}), lambda text: text == ANSWER),
        refuses(f"pictures ({name})", lambda: chat.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": PICTURE}}])]), "image"),
    ]
    if name != "anthropic":
        rows.append(passes(f"with_structured_output ({name})", lambda: chat.with_structured_output(City, method="json_schema").invoke(QUESTION), lambda made: isinstance(made, City)))
    if name != "ollama":
        rows += [passes(f"a tool that must be called ({name})", lambda: chat.bind_tools([weather], tool_choice="any").invoke(QUESTION), lambda told: set(told.tool_calls[0]["args"]) == {"city"}),
                 passes(f"with_structured_output by a tool ({name})", lambda: chat.with_structured_output(City, **({} if name == "anthropic" else {"method": "function_calling"})).invoke(QUESTION), lambda made: isinstance(made, City)),
                 passes(f"an agent of langgraph ({name})", lambda: agent(chat, tool_choice="any"), lambda told: [one.type for one in told] == ["human", "ai", "tool", "ai"])]
    else:
        rows.append(passes("an agent of langgraph (ollama)", lambda: agent(chat), lambda told: told[0].type == "human" and told[-1].type == "ai"))
    return rows


OTHER = [
    passes("OpenAI (completions)", lambda: OpenAI(model=MODEL, max_tokens=4, temperature=0, **KEY).invoke("Once upon"), lambda text: text),
    passes("OllamaLLM", lambda: OllamaLLM(model=MODEL, base_url=BASE, temperature=0).invoke(QUESTION), lambda text: text == ANSWER),
    passes("OllamaEmbeddings", lambda: OllamaEmbeddings(model=MODEL, base_url=BASE).embed_documents(["a fox", "a lantern"]), lambda told: len(told) == 2),
    passes("OpenAIEmbeddings", lambda: OpenAIEmbeddings(model=MODEL, base_url=V1, api_key="none", check_embedding_ctx_length=False).embed_query("a fox"), lambda told: len(told) > 10),
    passes("log probabilities (openai)", lambda: CHATS["openai"].bind(logprobs=True).invoke(QUESTION), lambda told: told.response_metadata["logprobs"]["content"]),
    passes("get_num_tokens_from_messages (anthropic)", lambda: CHATS["anthropic"].get_num_tokens_from_messages([HumanMessage(QUESTION)]), lambda count: count > 5),
    passes("validate_model_on_init (ollama)", lambda: ChatOllama(model=MODEL, base_url=BASE, validate_model_on_init=True), lambda chat: chat),
    passes("previous_response_id", lambda: CHATS["openai, responses"].invoke("And?", previous_response_id=CHATS["openai, responses"].invoke(QUESTION).response_metadata["id"]), lambda told: text_of(told)),
]
if __name__ == "__main__":
    run("langchain", *[rows_of(*one) for one in CHATS.items()], OTHER)
