"""Each client shows a picture to a model that sees: python shown_cases.py BASE_URL MODEL CLIENT EXPECTED. EXPECTED is JSON, as ../shown.mjs
has it."""
import base64
import json

from cases import BASE, MODEL, REST, V1, passes, run

CLIENT, EXPECTED = REST[0], json.loads(REST[1])
DATA, QUESTION, TOKENS, ANSWERS = (EXPECTED[name] for name in ("picture", "question", "tokens", "answers"))
PICTURE = "data:image/png;base64," + DATA
IMAGE_URL, INPUT_IMAGE = {"type": "image_url", "image_url": {"url": PICTURE}}, {"type": "input_image", "image_url": PICTURE, "detail": "auto"}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
ASKED = {"role": "user", "content": QUESTION}
CHAT = [{"role": "user", "content": [IMAGE_URL, {"type": "text", "text": QUESTION}]}]
INPUT = [{"role": "user", "content": [INPUT_IMAGE, {"type": "input_text", "text": QUESTION}]}]
CHAT_RESULT = [ASKED, {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
               {"role": "tool", "tool_call_id": "a", "content": [IMAGE_URL]}]


def shows(name, call, place="user"):
    """The answer is the model's own to this picture in this place."""
    return passes(name, call, lambda text: text.strip() == ANSWERS[place])


def openai():
    import openai
    client = openai.OpenAI(base_url=V1, api_key="none", max_retries=0)

    def chat(messages):
        return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=TOKENS).choices[0].message.content

    def respond(items):
        return client.responses.create(model=MODEL, input=items, temperature=0, max_output_tokens=TOKENS).output_text
    yield shows("image_url of a chat", lambda: chat(CHAT))
    yield shows("image_url in a tool's result", lambda: chat(CHAT_RESULT), "tool")
    yield shows("input_image of a response", lambda: respond(INPUT))
    yield shows("input_image in a function's output", lambda: respond([ASKED, {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": [INPUT_IMAGE]}]), "tool")


def anthropic():
    import anthropic
    client = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)

    def create(*messages):
        return client.messages.create(model=MODEL, messages=messages, extra_body={"temperature": 0}, max_tokens=TOKENS).content[0].text
    yield shows("an image block", lambda: create({"role": "user", "content": [BLOCK, {"type": "text", "text": QUESTION}]}))
    yield shows("an image block in a tool's result", lambda: create(ASKED, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [BLOCK]}]}), "tool")


def ollama():
    import ollama
    client, options = ollama.Client(host=BASE), {"temperature": 0, "num_predict": TOKENS}
    yield shows("images of a chat", lambda: client.chat(model=MODEL, options=options, messages=[{**ASKED, "images": [DATA]}]).message.content)
    yield shows("images of a chat as bytes", lambda: client.chat(model=MODEL, options=options, messages=[{**ASKED, "images": [base64.b64decode(DATA)]}]).message.content)
    yield shows("images of generate", lambda: client.generate(model=MODEL, options=options, prompt=QUESTION, images=[DATA]).response)


def langchain():
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI
    common, key = {"model": MODEL, "temperature": 0}, {"api_key": "none", "max_retries": 0}
    chats = {"openai": ChatOpenAI(base_url=V1, max_tokens=TOKENS, **common, **key),
             "openai, responses": ChatOpenAI(base_url=V1, max_tokens=TOKENS, use_responses_api=True, **common, **key),
             "anthropic": ChatAnthropic(base_url=BASE, max_tokens=TOKENS, **common, **key),
             "ollama": ChatOllama(base_url=BASE, num_predict=TOKENS, **common)}
    image = {"type": "image", "base64": DATA, "mime_type": "image/png"}
    looked = [HumanMessage(QUESTION), AIMessage("", tool_calls=[{"id": "a", "name": "look", "args": {}}]), ToolMessage([image], tool_call_id="a")]

    def text_of(message):
        return message.text if isinstance(message.text, str) else message.text()
    for name, chat in chats.items():
        place = "line" if name == "ollama" else "user"
        yield shows(f"image_url ({name})", lambda chat=chat: text_of(chat.invoke([HumanMessage(CHAT[0]["content"])])), place)
        yield shows(f"an image block ({name})", lambda chat=chat: text_of(chat.invoke([HumanMessage([image, {"type": "text", "text": QUESTION}])])), place)
        if name != "ollama":
            yield shows(f"an image in a tool's result ({name})", lambda chat=chat: text_of(chat.invoke(looked)), "tool")


def pydantic_ai():
    from pydantic_ai import Agent, BinaryContent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.ollama import OllamaProvider
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(base_url=V1, api_key="none")
    models = {"chat": OpenAIChatModel(MODEL, provider=provider), "responses": OpenAIResponsesModel(MODEL, provider=provider),
              "ollama": OpenAIChatModel(MODEL, provider=OllamaProvider(base_url=V1, api_key="none")),
              "anthropic": AnthropicModel(MODEL, provider=AnthropicProvider(base_url=BASE, api_key="none"))}
    picture = BinaryContent(base64.b64decode(DATA), media_type="image/png")
    for name, model in models.items():
        agent = Agent(model, model_settings={"temperature": 0, "max_tokens": TOKENS})
        yield shows(f"BinaryContent ({name})", lambda agent=agent: agent.run_sync([picture, QUESTION]).output)


def openai_agents():
    import openai
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
    set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=V1, api_key="none", max_retries=0)
    for name, model in {"responses": OpenAIResponsesModel(MODEL, client), "chat": OpenAIChatCompletionsModel(MODEL, client)}.items():
        agent = Agent(name="one", model=model, model_settings=ModelSettings(temperature=0, max_tokens=TOKENS))

        async def answer(agent=agent):
            return (await Runner.run(agent, INPUT)).final_output
        yield shows(f"input_image ({name})", answer)


def litellm():
    import litellm
    litellm.suppress_debug_info = True
    for name, place in {"openai": V1, "hosted_vllm": V1, "lm_studio": V1, "ollama_chat": BASE, "ollama": BASE, "anthropic": BASE}.items():
        def complete(name=name, place=place):
            return litellm.completion(model=f"{name}/{MODEL}", api_base=place, api_key="none", messages=CHAT, temperature=0, max_tokens=TOKENS,
                                      max_retries=0).choices[0].message.content
        yield shows(f"image_url ({name})", complete, "heading" if name == "ollama" else "user")


def huggingface_hub():
    import huggingface_hub
    client = huggingface_hub.InferenceClient(base_url=V1, api_key="none", timeout=60)
    yield shows("image_url", lambda: client.chat_completion(model=MODEL, messages=CHAT, temperature=0, max_tokens=TOKENS).choices[0].message.content)


NAMES = {"pydantic_ai": "pydantic-ai", "openai_agents": "openai-agents"}  # as their tables have them
run(NAMES.get(CLIENT, CLIENT), globals()[CLIENT]())
