"""openai-agents: over responses and over chat."""
import typing

import openai
import pydantic
from agents import Agent, GuardrailFunctionOutput, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, SQLiteSession, function_tool, handoff, input_guardrail, set_tracing_disabled
from cases import ANSWER, MODEL, PICTURE, QUESTION, V1, passes, refuses, run

set_tracing_disabled(True)
CLIENT = openai.AsyncOpenAI(base_url=V1, api_key="none", max_retries=0)
MODELS = {"responses": OpenAIResponsesModel(MODEL, CLIENT), "chat": OpenAIChatCompletionsModel(MODEL, CLIENT)}
SET = {"temperature": 0, "max_tokens": 200}


class City(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=12)]
    kind: typing.Literal["town", "village"]


@function_tool
def weather(city: typing.Annotated[str, pydantic.Field(max_length=12)]) -> str:
    """The weather of a city"""
    return "Sunny."


@input_guardrail
async def lets_pass(context, agent, asked):
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)


def agent(model, **fields):
    return Agent(**{"name": "one", "model": model, "model_settings": ModelSettings(**SET), **fields})


def streamed(model):
    async def whole():
        told = Runner.run_streamed(agent(model), QUESTION)
        events = [event.type async for event in told.stream_events()]
        return events, told.final_output
    return whole()


async def in_session(model):
    session = SQLiteSession("one")
    await Runner.run(agent(model), QUESTION, session=session)
    await Runner.run(agent(model), "And?", session=session)
    return await session.get_items()


def rows_of(name, model):
    required = ModelSettings(**SET, tool_choice="required")
    return [
        passes(f"run ({name})", lambda: Runner.run(agent(model), QUESTION), lambda told: told.final_output == ANSWER),
        passes(f"run_streamed ({name})", lambda: streamed(model), lambda told: told[1] == ANSWER and "raw_response_event" in told[0]),
        passes(f"instructions ({name})", lambda: Runner.run(agent(model, instructions="Be brief."), QUESTION), lambda told: told.final_output),
        passes(f"output_type ({name})", lambda: Runner.run(agent(model, output_type=City), QUESTION), lambda told: isinstance(told.final_output, City)),
        passes(f"a tool that must be called ({name})", lambda: Runner.run(agent(model, tools=[weather], model_settings=required), QUESTION), lambda told: "tool_call_output_item" in [item.type for item in told.new_items]),
        passes(f"stop_on_first_tool ({name})", lambda: Runner.run(agent(model, tools=[weather], model_settings=required, tool_use_behavior="stop_on_first_tool"), QUESTION), lambda told: told.final_output == "Sunny."),
        passes(f"a handoff ({name})", lambda: Runner.run(agent(model, handoffs=[handoff(agent(model, name="two"))], model_settings=required), QUESTION), lambda told: told.last_agent.name == "two"),
        passes(f"a guardrail ({name})", lambda: Runner.run(agent(model, input_guardrails=[lets_pass]), QUESTION), lambda told: told.final_output == ANSWER),
        passes(f"a session ({name})", lambda: in_session(model), lambda items: len(items) == 4),
        refuses(f"pictures ({name})", lambda: Runner.run(agent(model), [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE, "detail": "auto"}]}]), "image"),
    ]


OTHER = [passes("previous_response_id", lambda: Runner.run(agent(MODELS["responses"]), QUESTION, auto_previous_response_id=True), lambda told: told.last_response_id)]
if __name__ == "__main__":
    run("openai-agents", *[rows_of(*one) for one in MODELS.items()], OTHER)
