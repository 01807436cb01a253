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

/// DeepSeek-V3.2 (its model card's "encoding"): a question ends where the answer's thought begins, or ends where the
/// model does not think or the question is an old one; so do the results of an answer's calls, which stand in one
/// block.
constexpr std::string_view kDeepSeek32 = R"J(
{%- set thinks = thinking if thinking is defined else enable_thinking if enable_thinking is defined else false %}
{%- set said = namespace(system='', last=-1, open=false) %}
{%- for m in messages %}
  {%- if m.role == 'system' %}{%- set said.system = said.system ~ ('\n\n' if said.system) ~ (m.content or '') %}
  {%- elif m.role != 'assistant' and m.role != 'tool' %}{%- set said.last = loop.index0 %}
  {%- endif %}
{%- endfor %}
{{- bos_token ~ said.system }}
{%- if tools %}
  {{- '\n\n## Tools\n\nYou have access to a set of tools you can use to answer the user\'s question.\nYou can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="$FUNCTION_NAME">\n<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>\n...\n</｜DSML｜invoke>\n<｜DSML｜invoke name="$FUNCTION_NAME2">\n...\n</｜DSML｜invoke>\n</｜DSML｜function_calls>\n\n' }}
  {{- 'String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).\n\nIf the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:\n\n<｜DSML｜function_calls>\n...\n</｜DSML｜function_calls>\n\n<function_results>\n...\n</function_results>\n\n<think>...thinking about results</think>\n\nHere are the functions available in JSONSchema format:\n<functions>\n' }}
  {%- for tool in tools %}{{- tool.function | tojson ~ '\n' }}{%- endfor %}
  {{- '</functions>\n' }}
{%- endif %}
{%- for m in messages %}
  {%- set goes_on = add_generation_prompt or not loop.last %}
  {%- if m.role == 'assistant' %}
    {%- if thinks and loop.index0 > said.last %}{{- (m.reasoning_content or '') ~ '</think>' }}{%- endif %}
    {{- m.content or '' }}
    {%- if m.tool_calls %}
      {{- '\n\n<｜DSML｜function_calls>\n' }}
      {%- for call in m.tool_calls %}
        {{- '<｜DSML｜invoke name="' ~ call.function.name ~ '">\n' }}
        {%- for key, value in call.function.arguments.items() %}
          {{- ('' if loop.first else '\n') ~ '<｜DSML｜parameter name="' ~ key ~ '" string="' ~ ('true">' ~ value if value is string else 'false">' ~ value | tojson) ~ '</｜DSML｜parameter>' }}
        {%- endfor %}
        {{- '\n</｜DSML｜invoke>\n' }}
      {%- endfor %}
      {{- '</｜DSML｜function_calls>' }}
    {%- endif %}
    {{- eos_token }}
  {%- elif m.role == 'tool' %}
    {{- ('' if said.open else '\n\n<function_results>') ~ '\n<result>' ~ (m.content or '') ~ '</result>' }}
    {%- set said.open = not loop.last and messages[loop.index].role == 'tool' %}
    {%- if not said.open %}
      {{- '\n</function_results>' ~ ('\n\n' ~ ('<think>' if thinks and loop.index0 > said.last else '</think>') if goes_on else '') }}
    {%- endif %}
  {%- elif m.role != 'system' %}
    {{- '<｜User｜>' ~ (m.content or '') ~ ('<｜Assistant｜>' ~ ('<think>' if thinks and loop.index0 == said.last else '</think>') if goes_on else '') }}
  {%- endif %}
{%- endfor %})J";

}  // namespace

std::string_view default_template(const modelfile::Model& model) {
  const auto architecture = model.get_string("general.architecture");
  if (!architecture.ok()) return {};
  const std::string_view own = *architecture == "deepseek4"    ? kDeepSeek4
                               : *architecture == "deepseek32" ? kDeepSeek32
                                                               : std::string_view();
  if (own.empty()) return {};
  const auto tokens = model.get_strings("tokenizer.ggml.tokens");
  const bool can = tokens.ok() && std::find(tokens->begin(), tokens->end(), "<｜Assistant｜>") != tokens->end();
  return can ? own : std::string_view();
}

}  // namespace millrace::text
