#!/usr/bin/env python3
"""Writes tests/data/jinja/cases.json: templates, inputs and what Python's jinja2 makes of them.

jinja2 is set up the way transformers sets it up for chat templates; where it and other engines differ, it is right.
Needs python3-jinja2 (3.1).  Usage: tools/oracles/jinja_cases.py
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOW = datetime.datetime(2025, 3, 9, 14, 5, 7)


class Generation(jinja2.ext.Extension):
    """The generation tag, which marks what the model says and changes nothing."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


DATA = {
    "messages": [
        {"role": "system", "content": "Be kind.\n"},
        {"role": "user", "content": "  Hi <|im_end|> there "},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
        {"role": "user", "content": "Grüße, мир, 世界 👋"},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "description": "Adds \"two\"", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["number", "null"], "default": 1.5}},
        "required": ["a"]}}}],
    "d": {"b": 1, "a": {"items": [1, 2.0, None, True], "e": {}}, "c": "x", "items": "mine"},
    "l": [3, 1, 2], "e": [], "s": "Hello, World", "u": "Ünïcödé ẞß Ǆ", "n": None, "t": True, "f": False,
    "i": 7, "r": 2.5, "ws": " \t\n x y \u00a0\u2003", "lines": "a\nb\r\nc\n\nd\n",
    "people": [{"name": "Bo", "age": 30, "x": {"y": 1}}, {"name": "al", "age": 25, "x": {"y": 2}},
               {"name": "Cy", "age": 30}],
    "q": "it's \"q\" \\ \n\t\x01\u007f\u00e9\U0001f600",
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 | abs
-7 // 2, -7 % 3, 7 // -2, 7 % -3, 7 / 2, 2 ** 10, 2 ** 3 ** 2, 2 ** -1, -2 ** 2
7.5 // 2, -7.5 % 2, 1e3, 1e16, 1.5e-7, 0.1 + 0.2, 1_000, 100000000000000000000.0, 1e22
1 == 1.0, true == 1, '1' == 1, none == false, [1] == [1.0], (1,) == [1], {} == {}, {'a': 1} == {'a': 1.0}
1 < 2 < 3, 1 < 3 < 2, 'a' < 'b', [1, 2] < [1, 3], 1 != 2 != 1
not true, not 0, not '', not [], not none, not not 'a'
1 and 2, 0 and 2, 1 or 2, 0 or '', none or 'x', '' and undefined_name
'a' if t else 'b', 'a' if f, ('a' if f) is defined
'x' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'a'] ~ undefined_name
'a' 'b' "c"
'in' in 'within', 'x' not in 'abc', 1 in [1, 2], 'a' in d, 4 not in l, '' in ''
'ab' * 3, 3 * 'ab', [1, 2] * 2, 'a' * 0, 'a' * -1, (1, 2) * 2, true + true
'a' + 'b', [1] + [2], (1,) + (2,)
s[0], s[-1], s[1:4], s[:-3], s[::-1], s[::2], s[-3:], s[10:2], s[5:1:-1], s[100:], s[:100]
u[0], u[-1], u[2:5], u[::-1], u[1:8:3], u | length
l[0], l[-1], l[5], l[1:], l[::-1], l[:2], (l[5]) is defined, (1, 2, 3)[1:]
d.b, d['b'], d.a.e, d['a']['items'], d.zzz, d['zzz'], d['items'], d.get('q'), d.get('q', 5), d.get('c')
d.keys() | list, d.values() | list, d.a.items() | list, d | length, d | list
d.items() | list | length
messages[0].role, messages[-1]['role'], messages[1:] | length, messages[::-1][0].role
{'a': 1, 'b': [1, 2], 3: none}, {}, [], (), (1,), (1, 2)
{'a': 1, 'a': 2}
[1, 'a', 1.0, true, none, {'k': 'v'}, ('t',)]
'it\'s', "a\"b", 'a\nb', 'tab\there', '\x41\u00e9\U0001F600\101', '\q'
q
[q]
[1.0, 1e100, 1e-5, 123456789012345680.0, 0.0001, -0.0]
s.upper(), s.lower(), s.title(), s.capitalize(), s.swapcase(), 'they\'re bill-s'.title()
u.upper(), u.lower(), u.title(), u | upper, u | capitalize
s | upper, s | lower, 'hello world-foo (bar' | title, 'hELLO wORLD' | capitalize
ws.strip() | tojson, ws.lstrip() | tojson, ws.rstrip() | tojson, ws | trim | tojson
'xxabcxx'.strip('x'), 'xyabcyx'.strip('xy'), 'xxabc'.lstrip('x'), 'abcxx'.rstrip('x'), '..a..' | trim('.'), 'éaé'.strip('é')
'a,b,,c'.split(','), 'a b  c '.split(), 'a,b,c'.split(',', 1), 'a b c d'.split(none, 2), ''.split(','), ''.split(), ' a  b '.split(none, 1)
'a,b,c'.rsplit(',', 1), 'a b c'.rsplit(none, 1), 'abc'.split('b')[-1], 'a</think>b</think>c'.split('</think>')[-1]
lines.splitlines(), lines.splitlines(true), 'a\n\nb\n'.splitlines(), ''.splitlines()
s.startswith('Hell'), s.endswith('ld'), s.startswith(('x', 'H')), s.endswith(('x',)), s.startswith('')
s.replace('l', 'L'), s.replace('l', 'L', 1), s | replace('o', '0'), 'abc'.replace('', '-'), 'aaa'.replace('aa', 'b'), s | replace('l', 'LL', 2), 'éa'.replace('', '.')
s.find('o'), s.rfind('o'), s.find('zz'), s.index('W'), s.count('l'), u.find('d'), u.count(''), s.find(''), s.rfind('')
'a-b-c'.partition('-'), 'a-b-c'.rpartition('-'), 'abc'.partition('-'), 'abc'.rpartition('-')
'prefix-x'.removeprefix('prefix'), 'x.txt'.removesuffix('.txt'), 'abc'.removeprefix('x')
'12'.isdigit(), ''.isdigit(), 'a1'.isalnum(), 'ab'.isalpha(), ' \n'.isspace(), 'AB'.isupper(), 'ab1'.islower(), 'é'.isalpha()
'7'.zfill(3), '-7'.zfill(4), 'a'.center(4), 'ab'.center(5), 'a'.ljust(3) ~ '|', 'a'.rjust(3), 'abc' | center(7)
', '.join(['a', 'b']), ''.join([]), '-'.join('abc'), [1, 'a', none] | join('|'), people | join(', ', attribute='name'), 'abc' | join('.'), [] | join
'{} and {}'.format(1, 'x'), '{0}{1}{0}'.format('a', 'b'), '{n}'.format(n=3), '{:.2f}|{:>5}|{:<5}|{:^5}|{:03d}'.format(3.14159, 'a', 'b', 'c', 7), '{{}}'.format()
'%s-%d-%.2f' % ('a', 3, 1.5), '%s' % 'x', '%5s|%-5s|%05d' % ('a', 'b', 42), '%(k)s' % {'k': 'v'}, '%d%%' % 5, '%x' % 255, '%s %s' | format('a', 1)
tools | tojson
tools | tojson(indent=2)
tools[0] | tojson(indent=4)
tools[0].function.parameters | tojson(separators=(',', ':'))
d | tojson(sort_keys=true)
q | tojson, q | tojson(ensure_ascii=true)
[] | tojson(indent=2), {} | tojson(indent=2), {'a': []} | tojson(indent=2), [[1], {'b': {}}] | tojson(indent=1)
[1, 1.0, 2.5e10, 1e16, true, none, 'é'] | tojson, {1: 2, none: 3, true: 4, 1.5: 6} | tojson
(1, 2) | tojson, range(3) | list | tojson
l | sort, l | sort(reverse=true), ['b', 'A', 'c'] | sort, ['b', 'A', 'c'] | sort(case_sensitive=true), people | sort(attribute='age') | map(attribute='name') | list
d | dictsort | map('first') | list, {'B': 1, 'a': 2} | dictsort, {'B': 1, 'a': 2} | dictsort(true), {'x': 2, 'y': 1} | dictsort(by='value'), {'x': 2, 'y': 1} | dictsort(reverse=true)
l | first, l | last, l | min, l | max, l | sum, people | sum(attribute='age'), [] | first is defined, 'abc' | first, 'abc' | last
[[1], [2]] | sum(start=[])
l | reverse | list, 'abc' | reverse, (1, 2) | reverse | list
people | map(attribute='name') | list, people | map(attribute='x.y', default=0) | list, ['a', 'b'] | map('upper') | list, ['a', 'b'] | map('replace', 'a', 'z') | list
people | selectattr('age', 'eq', 30) | map(attribute='name') | list, people | selectattr('x') | list | length, people | rejectattr('x') | map(attribute='name') | list, people | selectattr('name', 'equalto', 'Bo') | list
[1, 2, 3, 4] | select('odd') | list, [1, 2, 3, 4] | reject('odd') | list, [0, 1, '', 'a'] | select | list, [1, 5, 3] | select('gt', 2) | list, [1, none] | select('none') | list
messages | selectattr('role', 'in', ['user', 'assistant']) | list | length
people | groupby('age') | map('last') | map('length') | list
[1, 2, 3, 4, 5] | batch(2) | list, [1, 2, 3] | batch(2, 0) | list, [1, 2, 3, 4, 5] | slice(3) | list, [1, 2, 3, 4] | slice(3, 'x') | list
['a', 'A', 'b', 'a'] | unique | list, ['a', 'A'] | unique(case_sensitive=true) | list, people | unique(attribute='age') | map(attribute='name') | list
undefined_name | default('x'), none | default('x'), '' | default('x', true), f | d('x'), '' | default('x'), undefined_name | default
'3' | int, '3.7' | int, 'x' | int, 'x' | int(5), 3.9 | int, -3.9 | int, true | int, ' 12 ' | int, '0x1f' | int(base=16), none | int
'3.5' | float, 'x' | float, 1 | float, 'x' | float(2.5), '1e3' | float
3.14159 | round(2), 2.5 | round, 3.5 | round, 7 | round, 3.7 | round(method='floor'), 3.2 | round(0, 'ceil'), 1234.5 | round(-2), 42 | round(-1), 2.675 | round(2)
n | select | list, n | reject('odd') | list, 0 | map('upper') | list, f | selectattr('x') | list, '' | rejectattr('x') | list, n | map('no_such_filter') | list, 0.0 | map(attribute='x') | list
5 | select | list
1e22 | int, -1e22 | int, '1e22' | int, '1e400' | int, 'nan' | int, '1_000' | int, '1_0.5' | float, '0b11' | int(base=2), '0o17' | int(base=8), '99999999999999999999' | int
18446744073709551615, 2 ** 100, -2 ** 63, 2 ** 64 - 1, (2 ** 65) // 3, (2 ** 65) % 7, (2 ** 65) / 4, -(2 ** 70) // 3, [2 ** 64], {'a': 2 ** 64} | tojson, '%d' % 2 ** 70, 2 ** 65 | abs, (2 ** 65 + 5) | round(-1), 2 ** 64 == 2.0 ** 64
9007199254740993 == 9007199254740992.0, 9007199254740993 > 9007199254740992.0, [9007199254740993, 9007199254740992.0] | min, 1 < 1.5, -1 > -1.5, 2 ** 100 > 1e30, 2 ** 100 < 1e31
'%.3d|%+d|%5.1f|%e|%G|%c|%c|%i|%u|%#x|%o|% d|%-6d|%06.2f|%r' % (5, 3, 2.25, 1234.5, 1e-10, 'a', 66, 3, 4, 255, 8, 3, 7, -2.5, 'q'), '%d' % 3.99, '%X' % 255
'{:,}|{:_}|{:+,.2f}|{:e}|{:g}|{:%}|{:x}|{:#x}|{:b}|{:c}'.format(1234567, 1234567, 1234.5, 12345.678, 1e10, 0.25, 255, 255, 5, 65)
'{:010,}|{:08,}|{:<8}|{:^8}|{:*>8}|{:=+8}|{: }|{:08.2f}|{:n}'.format(1234, 1234, 1, 2, 3, 4, 5, -3.14159, 12), '{:,}'.format(1234.5), '{:,}'.format(-999), '{:,}'.format(2 ** 70)
'{!r:>8}|{!s}'.format('x', 'y'), '{0[a]} {1[0]} {2.b}'.format({'a': 1}, [7], {'b': 3}), '{:{}}|{:{w}.{p}f}'.format('a', 5, 2.5, w=8, p=3)
'{:>5}|{}|{:d}'.format(true, true, true), '{:5}|{:.2}|{:>4}|{:05}'.format('abc', 'abc', 'é', 'a'), '{}|{:.3}|{:.3}|{:.3}|{:10}|{:.0f}|{:g}|{:.4}'.format(1e22, 1234567.0, 123.0, 3.0, 1.5, 2.5, 100000.0, 0.00001234)
'{:_x}|{:#b}|{:#o}|{:X}|{:G}|{:E}|{:F}|{:+}|{:-}'.format(65535 * 65536, 5, 8, 255, 1e-7, 1.0, 2.0, 1.5, -2), '{:.2%}|{:,.0f}|{:015,.2f}|{:#.3g}|{:<05}|{:^05}|{:=08d}|{:0=8}|{:x<4}'.format(0.12345, 1234567.5, 1234.5, 1.0, 7, 7, -7, -7, 'a')
'{:>5}'.format(n)
'{:,}'.format('a')
'{:d}'.format(1.5)
'{:.2}'.format(3)
'{:=5}'.format('a')
'%x' % 1.5
'{'.format(1)
-3 | abs, 3.5 | abs, 'abc' | length, [1, 2] | count, d | length
'a\nb\n\nc' | indent, 'a\nb' | indent(2, true), 'a\n\nb' | indent(2, blank=true), 'a\nb' | indent('> '), 'a\n' | indent(2), '' | indent
'one two three four' | truncate(10), 'one two three four' | truncate(10, true), 'short' | truncate(10), 'one two three four' | truncate(11, false, '…'), 'one two three four' | truncate(9, leeway=0)
'a b/c?d=é&' | urlencode ~ '|' ~ ('<a href="x">&\'</a>' | e | string) ~ '|' ~ ('<b>' | escape)
'<b>' | safe
'Hello big world, it\'s' | wordcount, 42 | string, none | string, [1] | string, 'a' | list, d.a | list, 'xyz' | list | last
d.a | items | list, undefined_name | items | list
undefined_name is defined, s is defined, d.x is defined, d.b is defined, undefined_name is undefined, messages[9] is defined
n is none, s is none, t is true, f is false, 1 is true, t is boolean, 1 is boolean, 1 is integer, true is integer, 1.0 is float, 1 is number, true is number, '1' is number
s is string, 1 is string, d is mapping, l is mapping, l is sequence, s is sequence, d is sequence, 1 is sequence, (1,) is sequence, undefined_name is sequence
l is iterable, s is iterable, 1 is iterable, none is iterable, d is iterable, range(2) is iterable
3 is odd, 3 is even, 6 is divisibleby 3, 6 is divisibleby(4), 'ABC' is upper, 'abc' is lower, 'aB' is upper, '1' is lower
3 is eq 3, 3 is equalto 3, 3 is ne 4, 3 is gt 2, 3 is lt 2, 3 is ge 3, 3 is le 2, 3 is sameas 3, 1 is in [1, 2], 'b' is in 'abc', 3 is not in [1]
s is not none, not s is none, s is string and t, s is defined and s is string or f, s is not string, 1 is not defined
range is callable, s is callable, 'upper' is filter, 'nope' is filter, 'odd' is test
range(5) | list, range(2, 5) | list, range(5, 0, -2) | list, range(0) | list, range(3) | length
dict(a=1, b='x'), dict({'a': 1}, b=2), dict([('a', 1)])
namespace(a=1).a, namespace({'x': 3}).x, namespace().zz is defined
strftime_now('%Y-%m-%d'), strftime_now('%d %b %Y'), strftime_now('%A, %H:%M')
(messages | last).content.split('</think>') | last
messages | map(attribute='role') | unique | list | join(',')
messages | selectattr('role', '==', 'user') | map(attribute='content') | map('trim') | join('\n')
d.a['items'] | map('string') | list
'a' < 'B', 'Z' < 'a', 'é' > 'z'
(1, 2) in [(1, 2)], 'k' in {'k': none}, 1 in {1: 2}
s.upper().lower().replace('h', 'j').title()
l | map('string') | map('length') | sum
[1, 2, 3][1:][0], 'abc'[1:][0], {'a': {'b': [5]}}.a.b[0], [[1, 2], [3]][0][1], {'a': 1}['a'], (1, 2).1 if false else l.0
d.b is defined and d.b == 1, d.zzz is defined and d.zzz.y
- 3, + 3, --3, 5 -3, 5-3, -i | abs
l | length > 2, l | length - 1, l|length-1 == 2, not l | length == 2
loop is defined, true is defined
[1,2,], {'a':1,}, (1,2,), range(1,) | list
true, True, false, False, none, None
undefined_name ~ '', [undefined_name] | length
'\\n'
s.copy is defined, d.copy() == d, l.index(1), l.count(1), (1, 1).count(1), l.copy()
'x'.join(d), d | join(','), d.keys() | join(',')
""".strip("\n").split("\n")

# What fails to render, one a line.
FAILURES = r"""
{{ undefined_name.x }}
{{ undefined_name + 'x' }}
{{ undefined_name() }}
{{ undefined_name.strip() }}
{{ d.zzz.y }}
{{ n.x.y }}
{{ 1 + 'a' }}
{{ 'a' + 1 }}
{{ 'a' + none }}
{{ 'a' in none }}
{{ 1 in 'a' }}
{{ none | length }}
{{ 1 | length }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ l < 1 }}
{{ 1 < 'a' }}
{{ s.nope() }}
{{ s() }}
{{ l.append(4) }}
{{ d.update({}) }}
{{ d.pop('b') }}
{{ raise_exception('no') }}
{{ undefined_name | tojson }}
{{ range | tojson }}
{{ [range] | tojson }}
{{ x | nope }}
{{ x is nope }}
{% for a in 3 %}{% endfor %}
{% for a in none %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% set d.x = 1 %}
{% set undefined_name.x = 1 %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}
{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}
{{ 'a'.split('') }}
{{ 'a'.split(1) }}
{{ 'a'.index('z') }}
{{ ', '.join([1]) }}
{{ '%d' % 'a' }}
{{ '%s %s' % 'a' }}
{{ 'a'.startswith(1) }}
{{ s[1:'a'] }}
{{ s[::0] }}
{{ [1, 'a'] | sort }}
{{ {[]: 1} }}
{{ -'a' }}
{{ 1.x.y }}
{{ {% }}
{{ }}
{{ a b }}
{{ 'a }}
{{ (1 }}
{{ 1 + }}
{{ a. }}
{{ a| }}
{% if %}{% endif %}
{% if a %}
{% for a in b %}
{% endif %}
{% endfor %}
{% else %}
{% nope %}
{% break %}
{% continue %}
{% set %}
{% set 1 = 2 %}
{% for in a %}{% endfor %}
{% macro %}{% endmacro %}
{% macro m(a=1, b) %}{% endmacro %}
{# never ends
{% raw %} never ends
{% if a }}{% endif %}
{{ a %}
{{ [1, 2 }}
{{ a ! b }}
{{ f(a=1, 2) }}
{{ a $ b }}
""".strip("\n").split("\n")

TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "trim blocks": "a\n{% if t %}\nb\n{% endif %}\nc\n",
    "lstrip blocks": "a\n   {% if t %}\n  b\n   {% endif %}  \nc",
    "lstrip not variables": "a\n   {{ i }}\n  b",
    "lstrip at start": "   {% if t %}x{% endif %}",
    "lstrip after variable": "{{ i }}   {% if t %}x{% endif %}",
    "lstrip after block without newline": "{% if t %}   {% if t %}x{% endif %}{% endif %}",
    "lstrip after block with newline": "{% if t %}\n   {% if t %}x{% endif %}{% endif %}",
    "no lstrip with plus": "a\n   {%+ if t %}x{% endif %}",
    "no trim with plus": "{% if t +%}\nx{% endif %}",
    "minus": "a  \n {%- if t -%} \n b \n {%- endif -%} \n c",
    "minus variables": "a \n {{- i -}} \n b",
    "minus left only": "a \n {{- i }} \n b",
    "plus variable": "{{+ i }}",
    "comments": "a\n  {# c #}\nb {#- c -#}  d{# {{ x }} #}e",
    "comment minus newline": "a\n{#- c #}\nb",
    "raw": "{% raw %}{{ x }}{% if %}{% endraw %}\nz",
    "raw newlines": "a\n  {% raw %}\n {{ x }} \n  {% endraw %}\nz",
    "raw minus": "a {%- raw -%} \n {{ x }} \n {%- endraw -%} \n z",
    "one newline at the end goes": "a\n\n",
    "crlf": "a\r\n{% if t %}\r\nb{% endif %}\rc\r\n",
    "braces": "{ {} }} %} #} {{ '}}' }} {{ '{{' }} {{ {'a': {'b': 1}} }} {{ {'a': {}}['a'] }}",
    "lone braces": "a { b } c {",
    "adjacent": "{{i}}{{s}}{%if t%}y{%endif%}",
    "if chain": "{% for x in [1,2,3] %}{% if x == 1 %}one{% elif x == 2 %}two{% else %}many{% endif %}{% endfor %}",
    "if tuple": "{% if (1, 2) %}a{% endif %}",
    "nested if": "{% if t %}{% if f %}a{% else %}b{% endif %}{% endif %}",
    "for else": "{% for x in e %}{{ x }}{% else %}none{% endfor %}{% for x in l %}{{ x }}{% else %}none{% endfor %}",
    "for else with break": "{% for x in l %}{% break %}{% else %}none{% endfor %}z",
    "for if": "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
    "for if else": "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "loop variables": "{% for x in l %}{{ loop.index }},{{ loop.index0 }},{{ loop.revindex }},{{ loop.revindex0 }},"
                      "{{ loop.first }},{{ loop.last }},{{ loop.length }},{{ loop.previtem }},{{ loop.nextitem }},"
                      "{{ loop.previtem is defined }};{% endfor %}",
    "loop cycle": "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "loop changed": "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}",
    "nested loops": "{% for x in [1, 2] %}{% for y in [3, 4] %}{{ x }}{{ y }}{{ loop.index }}{% endfor %}"
                    "{{ loop.index }};{% endfor %}",
    "for dict": "{% for k in d %}{{ k }}{% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "for string": "{% for c in u %}[{{ c }}]{% endfor %}",
    "for tuple literal": "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "for nested target": "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "for undefined": "{% for x in undefined_name %}a{% else %}b{% endfor %}",
    "break and continue": "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}"
                          "{% endif %}{{ x }}{% endfor %}",
    "break in if in for in for": "{% for a in [1, 2] %}{% for b in [1, 2, 3] %}{% if b == 2 %}{% break %}{% endif %}"
                                 "{{ a }}{{ b }} {% endfor %}{% endfor %}",
    "set in loop stays there": "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}",
    "set in if leaks": "{% if t %}{% set x = 1 %}{% endif %}{{ x }}",
    "loop variable gone": "{% for x in l %}{% endfor %}{{ x is defined }}",
    "namespace": "{% set ns = namespace(n=0, last=none) %}{% for x in l %}{% set ns.n = ns.n + x %}{% set ns.last = x %}"
                 "{% endfor %}{{ ns.n }}{{ ns.last }}",
    "namespace list": "{% set ns = namespace(a=[]) %}{% for x in l %}{% set ns.a = ns.a + [x] %}{% endfor %}{{ ns.a }}",
    "set tuple": "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}",
    "set block": "{% set x %}a{{ i }}\nb{% endset %}[{{ x }}]{{ x | length }}",
    "set block filter": "{% set x | upper | trim %} abc {% endset %}[{{ x }}]",
    "set block scope": "{% set y = 1 %}{% set x %}{% set y = 2 %}{{ y }}{% endset %}{{ x }}{{ y }}",
    "filter block": "{% filter upper %}abc{{ s }}{% endfilter %}",
    "filter block chain": "{% filter trim | replace('a', 'b') %}  aba {% endfilter %}",
    "with": "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a is defined }}{{ c is defined }}",
    "with outer values": "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "macro": "{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='z') }}"
             "{{ m(b=5, a=4) }}",
    "macro undefined argument": "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}",
    "macro default uses argument": "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}",
    "macro recursion": "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "macro sees globals": "{% macro m() %}{{ g }}{{ i }}{% endmacro %}{% set g = 5 %}{{ m() }}",
    "macro does not see locals": "{% macro m() %}{{ x is defined }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}",
    "macro varargs": "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}{{ m(1) }}",
    "macro attributes": "{% macro m(a, b) %}{% endmacro %}{{ m.name }}{{ m.arguments }}",
    "macro result is a string": "{% macro m() %} x {% endmacro %}{{ m() | trim | length }}{{ m() is string }}",
    "macro star": "{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], **{'c': 3}) }}",
    "macro set inside": "{% macro m() %}{% set x = 1 %}{{ x }}{% endmacro %}{{ m() }}{{ x is defined }}",
    "macro in macro": "{% macro a(x) %}<{{ x }}>{% endmacro %}{% macro b(x) %}{{ a(x) }}{{ a(x) }}{% endmacro %}{{ b(1) }}",
    "call": "{% macro m(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call m('p') %}body{{ i }}{% endcall %}",
    "call with arguments": "{% macro m(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}"
                           "{% call(x) m(l) %}[{{ x }}]{% endcall %}",
    "caller is defined": "{% macro m() %}{{ caller is defined }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}"
                         "{{ m() }}{% call m() %}x{% endcall %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
                  "{% endgeneration %}{% endif %}{% endfor %}",
    "block": "a{% block x %}b{% endblock %}c{% block y %}d{% endblock y %}",
    "bound method": "{% set f = s.upper %}{{ f() }}",
    "inline if in output": "{{ 'a' if i > 3 else 'b' if i > 1 else 'c' }}{{ ('x' if f else 'y') ~ 'z' }}",
    "keywords as keys": "{{ {'if': 1}['if'] }}{{ d.items is defined }}",
    "names with unicode": "{% set größe = 3 %}{{ größe }}",
    "escaped line end": "{{ 'a\\\nb' }}",
    "output of tuple": "{{ 1, 2 }}",
    "strings over lines": "{{ 'a\nb' }}{{ \"\n\" }}",
    "pipes and tests": "{{ l | map('string') | join is string }}{{ (l | first) is odd }}",
    "think": "{% set c = messages[2].content %}{% if '</think>' in c %}{{ c.split('</think>')[0].rstrip('\\n').split("
             "'<think>')[-1].lstrip('\\n') }}|{{ c.split('</think>')[-1].lstrip('\\n') }}{% endif %}",
    "alternation": "{% for m in messages[1:] %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
                   "{{ raise_exception('roles') }}{% endif %}{{ m.role[0] }}{% endfor %}",
    "typescript types": "{%- macro type(p) -%}{%- if p.type is string -%}{{ p.type }}{%- elif p.type is iterable -%}"
                        "{{ p.type | join(' | ') }}{%- endif -%}{%- endmacro -%}"
                        "{%- for t in tools %}\n// {{ t.function.description }}\ntype {{ t.function.name }} = (_: {\n"
                        "{%- for n, p in t.function.parameters.properties.items() %}\n"
                        "{{ n }}{% if n not in t.function.parameters.required %}?{% endif %}: {{ type(p) }}"
                        "{% if p.default is defined %}, // default: {{ p.default | tojson }}{% endif %}"
                        "{%- endfor %}\n}) => any;\n{%- endfor %}",
    "last index": "{% set ns = namespace(i=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
                  "{% set ns.i = loop.index0 %}{% endif %}{% endfor %}{{ ns.i }}",
    "empty": "",
    "only comment": "{# x #}",
    "only newline": "\n",
    "unicode text": "Grüße {{ u }} 世界",
    "zero": "{% for x in range(3) %}{{ x or 'zero' }}{% endfor %}",
    "shadowed input": "{% set s = 'new' %}{{ s }}{% set s = s + '!' %}{{ s }}",
    "shadowed global": "{% set range = 3 %}{{ range }}",
    "set self": "{% set x = x %}{{ x is defined }}",
    "autoescape": "{% autoescape false %}{{ '<' }}{% endautoescape %}",
}


def main():
    env = environment()
    cases = []

    def add(name, template):
        case = {"name": name, "template": template}
        try:
            case["expected"] = env.from_string(template).render(add_generation_prompt=True, **DATA)
        except Exception as trouble:  # whatever it is: the template fails
            case["fails"] = f"{type(trouble).__name__}: {trouble}"
        cases.append(case)

    for line in EXPRESSIONS:
        add(line, "{{ " + line + " }}")
    for line in FAILURES:
        add(line, line)
        if "fails" not in cases[-1]:
            print("renders, although it is listed as a failure:", line, "->", repr(cases[-1]["expected"]))
    for name, template in TEMPLATES.items():
        add(name, template)
        if "fails" in cases[-1]:
            print("fails:", name, cases[-1]["fails"])
    for case in cases[: len(EXPRESSIONS)]:
        if "fails" in case:
            print("fails:", case["template"], case["fails"])
    path = ROOT / "tests/data/jinja/cases.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "inputs": DATA,
                       "cases": cases}, ensure_ascii=False, indent=1)
    path.write_text(text + "\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
