#include "text/default_template.h"

#include <algorithm>

namespace millrace::text {

namespace {

/// DeepSeek-V4 (its model card's "encoding"): a turn of the user's has questions and results, a blank line apart; every
/// answer comes behind a thought, or behind the end of one where the model does not think or the thought is an old one.
/// Thoughts of earlier turns stay where there are tools.
constexpr std::string_view kDeepSeek4 = R"J(
{%- set thinks = thinking if thinking is defined else enable_thinking if enable_thinking is defined else false %}
{%- set said = namespace(system='', last=-1, open=false) %}
{%- for m in messages %}
  {%- if m.role == 'system' %}{%- set said.system = said.system ~ ('\n\n' if said.system) ~ (m.content or '') %}
  {%- elif m.role != 'assistant' %}{%- set said.last = loop.index0 %}
  {%- endif %}
{%- endfor %}
{{- bos_token ~ said.system }}
{%- if tools %}
  {{- ('\n\n' if said.system) ~ '## Tools\n\nYou have access to a set of tools to help answer the user\'s question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="$TOOL_NAME">\n<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>\n...\n</｜DSML｜invoke>\n<｜DSML｜invoke name="$TOOL_NAME2">\n...\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>\n\n' }}
  {{- 'String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.\n\nIf thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.\n\nOtherwise, output directly after </think> with tool calls or final response.\n\n### Available Tool Schemas\n\n' }}
  {%- for tool in tools %}{{- tool.function | tojson ~ '\n' }}{%- endfor %}
  {{- '\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n' }}
{%- endif %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {%- set said.open = false %}
    {{- '<｜Assistant｜>' }}
    {%- if thinks and (tools or loop.index0 > said.last) %}{{- '<think>' ~ (m.reasoning_content or '') }}{%- endif %}
    {{- '</think>' ~ (m.content or '') }}
    {%- if m.tool_calls %}
      {{- '\n\n<｜DSML｜tool_calls>\n' }}
      {%- for call in m.tool_calls %}
        {{- '<｜DSML｜invoke name="' ~ call.function.name ~ '">\n' }}
        {%- for key, value in call.function.arguments.items() %}
          {{- '<｜DSML｜parameter name="' ~ key ~ '" string="' ~ ('true">' ~ value if value is string else 'false">' ~ value | tojson) ~ '</｜DSML｜parameter>\n' }}
        {%- endfor %}
        {{- '</｜DSML｜invoke>\n' }}
      {%- endfor %}
      {{- '</｜DSML｜tool_calls>' }}
    {%- endif %}
    {{- eos_token }}
  {%- elif m.role != 'system' %}
    {{- '\n\n' if said.open else '<｜User｜>' }}
    {%- set said.open = true %}
    {{- '<tool_result>' ~ (m.content or '') ~ '</tool_result>' if m.role == 'tool' else m.content or '' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜>' ~ ('<think>' if thinks else '</think>') }}{%- endif %})J";

}  // namespace

std::string_view default_template(const modelfile::Model& model) {
  const auto architecture = model.get_string("general.architecture");
  if (!architecture.ok() || *architecture != "deepseek4") return {};
  const auto tokens = model.get_strings("tokenizer.ggml.tokens");
  return tokens.ok() && std::find(tokens->begin(), tokens->end(), "<｜Assistant｜>") != tokens->end()
             ? kDeepSeek4
             : std::string_view();
}

}  // namespace millrace::text
