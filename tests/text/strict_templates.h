// Chat templates of our own with the rules of published families, each of which refuses what breaks them.
#pragma once

#include <string>

namespace millrace::text::test {

/// Qwen3.5's rules: one system message, at the beginning; a user's message somewhere; arguments as objects.
inline const std::string kStrictQwen = R"J(
{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(asked=false) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.asked = true %}{%- endif %}{%- endfor %}
{%- if not ns.asked %}{{- raise_exception('No user query found in messages.') }}{%- endif %}
{%- for m in messages %}
  {%- if m.role == 'system' %}
    {%- if not loop.first %}{{- raise_exception('System message must be at the beginning.') }}{%- endif %}
    {{- '<|im_start|>system\n' + m.content + '<|im_end|>\n' }}
  {%- elif m.role == 'user' %}{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}
  {%- elif m.role == 'assistant' %}
    {{- '<|im_start|>assistant\n' }}
    {%- if m.reasoning_content %}{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{%- endif %}
    {{- m.content }}
    {%- for call in m.tool_calls %}
      {{- '<tool_call>\n<function=' + call.function.name + '>\n' }}
      {%- for key, value in call.function.arguments | items %}{{- '<parameter=' + key + '>\n' + (value if value is string else value | tojson) + '\n</parameter>\n' }}{%- endfor %}
      {{- '</function>\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- elif m.role == 'tool' %}{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
  {%- else %}{{- raise_exception('Unexpected message role.') }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- else %}{{- '<think>\n' }}{%- endif %}{%- endif %})J";

/// Gemma 3's: user and assistant in turn, a system message at the beginning alone, no tools.
inline const std::string kStrictGemma = R"J({{ bos_token }}
{%- if messages[0].role == 'system' -%}
  {%- set first = messages[0].content + '\n\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set first = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif -%}
  {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') + m.content | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%})J";

/// Mistral's: turns alternate, calls and results left out of account; ids of nine letters and digits; no content beside
/// calls; arguments as objects.
inline const std::string kStrictMistral = R"J({{- bos_token }}
{%- if messages[0].role == 'system' %}{%- set said = messages[0].content %}{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for m in rest %}
  {%- if m.role == 'user' or (m.role == 'assistant' and m.tool_calls is not defined) %}
    {%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}
    {%- set ns.index = ns.index + 1 %}
  {%- endif %}
{%- endfor %}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for m in rest %}
  {%- if m.role == 'user' %}{{- '[INST]' + (said + '\n\n' if loop.last and said is defined else '') + m.content + '[/INST]' }}
  {%- elif m.tool_calls is defined and m.tool_calls is not none %}
    {{- '[TOOL_CALLS][' }}
    {%- for call in m.tool_calls %}
      {%- if call.id is not defined or call.id | length != 9 %}{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}
      {{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + ', "id": "' + call.id + '"}' }}
      {%- if not loop.last %}{{- ', ' }}{%- endif %}
    {%- endfor %}
    {{- ']' + eos_token }}
  {%- elif m.role == 'assistant' %}{{- ' ' + m.content + eos_token }}
  {%- elif m.role == 'tool' %}
    {%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}
    {{- '[TOOL_RESULTS]{"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
  {%- else %}{{- raise_exception('Only user and assistant roles are supported, with the exception of an initial optional system message!') }}
  {%- endif %}
{%- endfor %})J";

/// Llama 3.1's: one call a message, nothing beside it.
inline const std::string kStrictLlama = R"J({{- bos_token }}
{%- if messages[0].role == 'system' %}{%- set said = messages[0].content %}{%- set messages = messages[1:] %}{%- else %}{%- set said = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' + said }}{%- if tools %}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- endif %}{{- '<|eot_id|>' }}
{%- for m in messages %}
  {%- if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}
    {%- if m.role == 'system' %}{{- raise_exception('system messages come first') }}{%- endif %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
  {%- elif 'tool_calls' in m %}
    {%- if m.tool_calls | length != 1 %}{{- raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}
    {%- set call = m.tool_calls[0].function %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|eot_id|>' }}
  {%- else %}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %})J";

/// gpt-oss's: results need a call before them, only the first call of a message is written, and a call has either
/// content or a thought. Later system messages are left out. An effort is told.
inline const std::string kStrictHarmony = R"J(
{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort if reasoning_effort is defined else 'medium') + '<|end|>' }}
{%- if messages[0].role == 'developer' or messages[0].role == 'system' %}{{- '<|start|>developer<|message|>' + messages[0].content + '<|end|>' }}{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}
{%- if tools %}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- endif %}
{%- set ns = namespace(name=none) %}
{%- for m in rest %}
  {%- if m.role == 'assistant' %}
    {%- if 'tool_calls' in m %}
      {%- if m.content and m.thinking %}{{- raise_exception('Cannot pass both content and thinking in an assistant message with tool calls!') }}{%- endif %}
      {%- if m.content or m.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + (m.content or m.thinking) + '<|end|>' }}{%- endif %}
      {%- set call = m.tool_calls[0].function %}
      {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' + call.arguments | tojson + '<|call|>' }}
      {%- set ns.name = call.name %}
    {%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{%- set ns.name = none %}
    {%- endif %}
  {%- elif m.role == 'tool' %}
    {%- if ns.name is none %}{{- raise_exception('Message has tool role, but there was no previous assistant message with a tool call!') }}{%- endif %}
    {{- '<|start|>functions.' + ns.name + ' to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}
  {%- elif m.role == 'user' %}{{- '<|start|>user<|message|>' + m.content + '<|end|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %})J";

/// MiniMax-M3's: instructions in a message of their own, arguments as elements (lists as <item>s, members by their
/// keys, none of null), results in one message behind calls, every answer behind a thought or the end of one.
inline const std::string kStrictMinimax = R"J(
{%- set ns = ']<]minimax[>[' %}
{%- macro elements(value) %}
  {%- if value is mapping %}{%- for key, one in value.items() if one is not none %}{{- ns }}<{{ key }}>{{- elements(one) }}{{- ns }}</{{ key }}>{%- endfor %}
  {%- elif value is iterable and value is not string %}{%- for one in value %}{{- ns }}<item>{{- elements(one) }}{{- ns }}</item>{%- endfor %}
  {%- elif value is boolean %}{{- value | tojson }}
  {%- elif value is not none %}{{- value }}
  {%- endif %}
{%- endmacro %}
{%- set said = none %}{%- set rest = messages %}
{%- if messages[0].role in ['system', 'developer'] %}{%- set said = messages[0].content %}{%- set rest = messages[1:] %}{%- endif %}
{{- ']~!b[]~b]system\nThinking: ' ~ (thinking_mode if thinking_mode in ['enabled', 'disabled'] else 'adaptive') ~ '[e~[\n' }}
{{- ']~b]developer\n' ~ (said or 'Help.') }}{%- if tools %}{%- for tool in tools %}{{- '<tool>' ~ tool.function | tojson ~ '</tool>' }}{%- endfor %}{{- '<invoke name="f">' }}{%- endif %}{{- '[e~[\n' }}
{%- set last = namespace(call=none) %}
{%- for m in rest %}
  {%- if m.role == 'assistant' %}
    {{- ']~b]ai\n' }}{%- if m.reasoning_content %}{{- '<mm:think>' ~ m.reasoning_content }}{%- endif %}{{- '</mm:think>' ~ (m.content or '') }}
    {%- set last.call = none %}
    {%- if m.tool_calls %}
      {{- ns ~ '<tool_call>\n' }}
      {%- for call in m.tool_calls %}{{- ns ~ '<invoke name="' ~ call.function.name ~ '">' }}{{- elements(call.function.arguments) }}{{- ns ~ '</invoke>\n' }}{%- endfor %}
      {{- ns ~ '</tool_call>' }}{%- set last.call = m.tool_calls[-1].function.name %}
    {%- endif %}
    {{- '[e~[\n' }}
  {%- elif m.role == 'tool' %}
    {%- if last.call is none %}{{- raise_exception('Message has tool role, but there was no previous assistant message with a tool call!') }}{%- endif %}
    {%- if loop.first or rest[loop.index0 - 1].role != 'tool' %}{{- ']~b]tool' }}{%- endif %}
    {{- '\n<response>' ~ m.content ~ '</response>' }}
    {%- if loop.last or rest[loop.index0 + 1].role != 'tool' %}{{- '[e~[\n' }}{%- endif %}
  {%- elif m.role == 'user' %}{{- ']~b]user\n' ~ m.content ~ '[e~[\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- ']~b]ai\n' }}{%- if thinking_mode == 'enabled' %}{{- '<mm:think>' }}{%- elif thinking_mode == 'disabled' %}{{- '</mm:think>' }}{%- endif %}{%- endif %})J";

struct StrictTemplate {
  const char* name;
  const std::string& jinja;
};
inline const StrictTemplate kStrictTemplates[] = {{"Qwen3.5", kStrictQwen},    {"Gemma 3", kStrictGemma},
                                                  {"Mistral", kStrictMistral}, {"Llama 3.1", kStrictLlama},
                                                  {"gpt-oss", kStrictHarmony}, {"MiniMax-M3", kStrictMinimax}};

}  // namespace millrace::text::test
