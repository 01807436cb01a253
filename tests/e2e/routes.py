"""What the server answers, read from where it says so: each path and method, and each field that a request may have.

ENDPOINTS has for each of them a good request, out of which the hostile suite makes odd ones. test_hostile.py fails where a
route or a field of the server's is not in it."""
import re

from harness import ROOT

MODEL = "odd"  # fills gaps and ranks, too
MESSAGES = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
TOOL = {"type": "function", "function": FUNCTION}
CUSTOM = {"type": "custom", "name": "move", "description": "moves", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"up\" | \"down\""}}
CALLS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "x"},
         {"role": "assistant", "content": None, "reasoning_content": "a", "tool_calls": [
             {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"x\"}"}},
             {"id": "2", "type": "custom", "custom": {"name": "move", "input": "up"}}]},
         {"role": "tool", "tool_call_id": "1", "content": "y"}, *MESSAGES]
SAMPLING = {"temperature": 1, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "repeat_penalty": 1.1,
            "seed": 1, "stop": ["x"], "n": 1, "stream": False, "ignore_eos": False, "return_progress": True, "prompt_progress": True, "priority": 1,
            "stream_options": {"include_usage": True}, "logit_bias": {"5": 1}, "typical_p": 0.9, "top_n_sigma": 1, "xtc_probability": 0.5, "xtc_threshold": 0.1,
            "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": [","], "mirostat": 2,
            "mirostat_tau": 5, "mirostat_eta": 0.1, "repetition_penalty": 1.1, "repeat_last_n": 64, "min_tokens": 1, "stop_token_ids": [5], "bad_words": ["x"], "lora": [{"id": 0, "scale": 1}]}
FORMS = {"grammar": "root ::= \"a\"", "grammar_lazy": False, "ebnf": "root ::= \"a\"", "regex": "a+", "json_schema": {"type": "integer"},
         "guided_json": {"type": "integer"}, "guided_grammar": "start: \"a\"", "guided_regex": "a+", "guided_choice": ["a"],
         "structured_outputs": {"json": {"type": "integer"}, "grammar": "start: \"a\"", "regex": "a", "choice": ["a"], "json_object": True},
         "structural_tag": {"type": "structural_tag"}, "functions": [FUNCTION], "function_call": "auto",
         "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}, "schema": {}, "grammar": "root ::= \"a\"", "value": {}, "pattern": "a"}}
OPTIONS = {"num_predict": 2, "num_ctx": 64, "temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0, "repeat_last_n": 8, "repeat_penalty": 1.1,
           "presence_penalty": 0, "frequency_penalty": 0, "seed": 1, "stop": ["x"], "typical_p": 0.9, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1}
OLLAMA = {"model": MODEL, "name": None, "stream": False, "truncate": True, "logprobs": True, "top_logprobs": 1, "prompt_progress": True,
          "template": "{{ messages }}", "format": {"type": "integer"}, "think": False, "keep_alive": "5m", "options": OPTIONS, "images": []}
INFILL = {"model": MODEL, "input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": [{"filename": "a.c", "text": "d"}], "n_predict": 2,
          "max_tokens": 2, **SAMPLING, **FORMS}
RERANK = {"model": MODEL, "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True}
CHAT = {"model": MODEL, "messages": CALLS, "max_tokens": 2, "max_completion_tokens": 2, "logprobs": True, "top_logprobs": 1, "prompt_logprobs": 1, "parallel_tool_calls": False, "tools": [TOOL, CUSTOM],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}, "modalities": ["text"], "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False}, **SAMPLING, **FORMS}
# One pixel.
PICTURE = ("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")
SPOKEN = [{"role": "user", "content": "a"}, {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "b"}], "content": []},
          {"type": "function_call", "call_id": "1", "name": "look", "namespace": "n", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "c"}]},
          {"type": "item_reference", "id": "msg_1"}, {"type": "web_search_call", "action": {}, "status": "completed"}, {"type": "file_search_call"},
          {"type": "computer_call"}, {"type": "code_interpreter_call"}, {"type": "image_generation_call"}, {"type": "mcp_list_tools"},
          {"type": "shell_call", "call_id": "2", "action": {"commands": ["ls"]}}, {"type": "shell_call_output", "call_id": "2", "output": [
              {"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 1}}]},
          {"type": "apply_patch_call", "call_id": "3", "operation": {"type": "delete_file", "path": "a"}},
          {"type": "apply_patch_call_output", "call_id": "3", "status": "completed", "output": "c"}, {"type": "computer_call_output", "output": {}},
          {"type": "computer_call_output", "output": {"image_url": PICTURE}}, {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": PICTURE}]},
          *({"type": kind, "id": "5"} for kind in ("mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output", "program",
                                                   "program_output", "configuration_update", "additional_tools")),
          {"type": "mcp_call", "id": "4", "name": "look", "arguments": "{}", "output": "d"}, {"type": "compaction", "encrypted_content": "millrace-summary:YQ=="},
          {"role": "assistant", "content": [{"type": "output_text", "text": "d"}]}]
BLOCKS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "document", "title": "t", "context": "c", "source": {"type": "text", "data": "d"}}]},
          {"role": "assistant", "content": [{"type": "thinking", "thinking": "e"}, {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "x"}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "f"},
              {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE[22:], "url": "http://a/b"}},
              {"type": "tool_reference", "tool_name": "look"}, {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "g"}]}]}]},
          {"role": "assistant", "content": [{"type": "server_tool_use", "name": "web_search", "input": {}}, {"type": "web_search_tool_result", "content": []},
                                            {"type": "compaction", "content": "h"}]}, *MESSAGES]
CLAUDE = {"model": MODEL, "messages": BLOCKS, "max_tokens": 2, "system": [{"type": "text", "text": "b"}],
          "tools": [{"name": "look", "description": "looks", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
          "stop_sequences": ["x"], "thinking": {"type": "disabled"}, "output_config": {"format": {"type": "json_schema", "schema": {"type": "integer"}}},
          "output_format": {"type": "json_schema", "schema": {}}, "temperature": 1, "top_k": 3, "top_p": 0.9, "stream": False}

# A GET's fields stand in its query. "NAME", "ID" and "FILE" of a path are fields of the same name.
ENDPOINTS = {
    "POST /v1/chat/completions": CHAT,
    "POST /v1/completions": {"model": MODEL, "prompt": "a", "max_tokens": 2, "echo": True, "suffix": None, "logprobs": 1, "prompt_logprobs": 1, **SAMPLING, **FORMS},
    "POST /v1/responses": {"model": MODEL, "input": SPOKEN, "max_output_tokens": 2, "instructions": "b", "tools": [CUSTOM, {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]}],
                           "tool_choice": "auto", "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "stream": False, "store": True,
                           "previous_response_id": None, "truncation": "auto", "include": ["message.output_text.logprobs"], "top_logprobs": 1, "background": False, "conversation": None, "prompt": None, "temperature": 1, "top_p": 1},
    "POST /v1/responses/input_tokens": {"model": MODEL, "input": SPOKEN, "tools": [CUSTOM], "store": True},
    "POST /v1/responses/compact": {"model": MODEL, "input": MESSAGES, "instructions": "b"},
    "GET /v1/responses/ID": {"ID": "resp_1", "stream": "true", "starting_after": "1"},
    "GET /v1/responses/ID/input_items": {"ID": "resp_1", "limit": "1", "order": "asc", "after": "x"},
    "DELETE /v1/responses/ID": {"ID": "resp_1"},
    "POST /v1/messages": CLAUDE,
    "POST /v1/messages/count_tokens": {name: CLAUDE[name] for name in ("model", "messages", "system", "tools", "tool_choice", "thinking")},
    "POST /v1/embeddings": {"model": MODEL, "input": ["a"], "encoding_format": "float", "dimensions": 8},
    "POST /v1/rerank": RERANK,
    "POST /rerank": RERANK,
    "GET /v1/models": {},
    "GET /v1/models/NAME": {"NAME": MODEL},
    "POST /api/chat": {**OLLAMA, "messages": [*CALLS, {"role": "tool", "tool_name": "look", "content": "a", "images": [PICTURE], "thinking": "b"}], "tools": [TOOL]},
    "POST /api/generate": {**OLLAMA, "prompt": "a", "system": "b", "raw": False, "suffix": None},
    "POST /api/embed": {"model": MODEL, "input": ["a"], "truncate": True, "dimensions": 4, "keep_alive": "5m", "options": {"num_ctx": 64}},
    "POST /api/embeddings": {"model": MODEL, "prompt": "a", "truncate": True, "dimensions": 4, "keep_alive": "5m", "options": {"num_ctx": 64}},
    "POST /api/show": {"model": MODEL, "verbose": True},
    "GET /api/tags": {},
    "GET /api/ps": {},
    "GET /api/version": {},
    "POST /api/pull": {"model": "hf.co/someone/tiny-GGUF:Q4_K_M", "stream": False, "insecure": True},
    "DELETE /api/delete": {"model": "made"},
    "POST /api/copy": {"source": MODEL, "destination": "made"},
    "POST /api/create": {"model": "made", "from": MODEL, "stream": False, "system": "a", "template": "{{ messages }}", "license": "b", "parameters": OPTIONS,
                         "messages": MESSAGES, "modelfile": f"FROM {MODEL}\nPARAMETER temperature 0\n", "files": {}, "adapters": {}, "quantize": "q4_0"},
    "GET /api/blobs/NAME": {"NAME": "sha256:" + "0" * 64},
    "POST /api/blobs/NAME": {"NAME": "sha256:" + "0" * 64},
    "POST /tokenize": {"model": MODEL, "content": "a", "prompt": "a", "add_special": True, "add_special_tokens": True, "parse_special": True, "with_pieces": True},
    "POST /detokenize": {"model": MODEL, "tokens": [1, 2]},
    "POST /apply-template": {"model": MODEL, "messages": CALLS, "tools": [TOOL], "tool_choice": "auto"},
    "POST /infill": INFILL,
    "POST /completion": {"model": MODEL, "prompt": "a", "n_predict": 2, "max_tokens": 2, **SAMPLING, **FORMS},
    "GET /tokenizer_info": {"model": MODEL},
    "GET /props": {"model": MODEL},
    "GET /slots": {"model": MODEL},
    "GET /lora-adapters": {"model": MODEL},
    "POST /lora-adapters": {"id": 0, "scale": 1},
    "GET /health": {},
    "GET /v1/health": {},
    "GET /metrics": {},
    "GET /api/millrace/live": {"history": "1"},
    "GET /api/millrace/suggestions": {},
    "POST /api/millrace/fit": {"model": MODEL},
    "POST /api/millrace/search": {"query": "tiny"},
    "GET /": {},
    "GET /page/FILE": {"FILE": "main.js"},
}


def answered():
    """Each route that src/app/server adds, as "POST /api/chat" or "GET /v1/models/NAME"."""
    routes = set()
    for source in (ROOT / "src/app/server").glob("*.cpp"):
        for verb, raw, plain in re.findall(r'http\.(Get|Post|Put|Patch|Delete)(?:Stream)?\((?:R"\((/.*?)\)"|(?:fmt::format\()?"(/[^"]*)")', source.read_text()):
            path = (raw or plain).replace("(.+)", "NAME").replace("([^/]+)", "ID").replace("{}", "FILE")
            routes.add(f"{verb.upper()} {path}")
    return routes


def read_fields():
    """The names of all fields that requests' readers look for, by their file."""
    names = {}
    for path in ("openai/request.cpp", "openai/response_input.cpp", "openai/form.cpp", "anthropic/messages.cpp", "anthropic/tools.cpp", "server/ollama_request.cpp", "server/ollama_store.cpp",
                 "server/native_api.cpp", "server/responses_api.cpp"):
        source = (ROOT / "src/app" / path).read_text()
        found = re.findall(r'\b(?:find|has|text|texts|flag|integer|number|contains|word|get_param_value)\((?:\*?\w+, )?"(\w+)"', source)
        for listed in re.findall(r"for \(const char\* \w+ :\s*\{([^}]*)\}", source):
            found += re.findall(r'"(\w+)"', listed)
        for listed in re.findall(r"(?:forms|Form \w+)\[\] = \{(.*?)\};", source, re.S):
            found += re.findall(r'\{"(\w+)",', listed)
        names[path] = set(found)
    return names


def words_of(value):
    """The names of all members and all texts, however deep."""
    if isinstance(value, dict):
        return set(value).union(*map(words_of, value.values()))
    return set().union(*map(words_of, value)) if isinstance(value, list) else {value}
