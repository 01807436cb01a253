"""llm, a command of a terminal, by its own models over OpenAI's API and by llm-ollama."""
import json
import pathlib
import tempfile

from cases import ANSWER, BASE, MODEL, QUESTION, SCHEMA, V1, passes, ran, run

HOME = pathlib.Path(tempfile.mkdtemp())
(HOME / "extra-openai-models.yaml").write_text(f"- model_id: here\n  model_name: {MODEL}\n  api_base: {V1}\n  supports_schema: true\n  supports_tools: true\n")
ENV = {"LLM_USER_PATH": str(HOME), "OLLAMA_HOST": BASE}
OLLAMA = f"ollama/{MODEL}:latest"
COLD = {"here": ["-o", "temperature", "0"], OLLAMA: ["-o", "temperature", "0"]}


def llm(*words, asked=None):
    return ran("llm", *words, env=ENV, asked=asked)


def rows_of(name, model):
    cold = COLD[model]
    return [
        passes(f"a prompt ({name})", lambda: llm(QUESTION, "-m", model, *cold), lambda text: text.strip() == ANSWER),
        passes(f"without a stream ({name})", lambda: llm(QUESTION, "-m", model, *cold, "--no-stream"), lambda text: text.strip() == ANSWER),
        passes(f"a system prompt ({name})", lambda: llm(QUESTION, "-m", model, *cold, "-s", "Be brief."), lambda text: text.strip()),
        passes(f"a conversation ({name})", lambda: (llm(QUESTION, "-m", model, *cold), llm("-c", QUESTION, *cold)), lambda told: told[1].strip()),
        passes(f"a schema ({name})", lambda: llm(QUESTION, "-m", model, *cold, "--schema", json.dumps(SCHEMA)), lambda text: set(json.loads(text)) == {"city", "count"}),
    ]


ROWS = [
    passes("models", lambda: llm("models"), lambda text: "here" in text and OLLAMA in text),
    passes("ollama models", lambda: llm("ollama", "models"), lambda text: f"{MODEL}:latest" in text),
    passes("a tool", lambda: llm(QUESTION, "-m", "here", *COLD["here"], "--functions", "def weather(city: str) -> str:\n  'The weather of a city'\n  return 'Sunny.'"), lambda text: text.strip()),
    passes("logs", lambda: llm("logs", "-n", "1", "--json"), lambda text: json.loads(text)[0]["response"]),
]
if __name__ == "__main__":
    run("llm", rows_of("openai", "here"), rows_of("llm-ollama", OLLAMA), ROWS)
