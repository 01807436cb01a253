// Templates against what Python's jinja2 makes of them (tests/data/jinja, made by tools/oracles/jinja_cases.py), where
// strings came from, and templates that mean harm.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "text/fixtures.h"
#include "text/jinja/template.h"

namespace millrace::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

/// What rendering gives, or "error: ..."; trusted stretches in «», if asked for.
std::string rendered(const std::string& source, const Json& values = Json::object(), bool marks = false,
                     const Limits& limits = {}) {
  const auto made = Template::parse(source);
  if (!made.ok()) return "error: " + made.status().message();
  Inputs inputs;
  inputs.values = &values;
  inputs.trusted = {{"bos_token", "<s>"}};
  inputs.now = 1741529107;
  const auto text = made->render(inputs, limits);
  if (!text.ok()) return "error: " + text.status().message();
  if (!marks) return text->bytes();
  std::string shown;
  bool trusted = false;
  for (std::size_t i = 0; i < text->size(); ++i) {
    if (text->trusted_at(i) != trusted) shown += trusted ? "»" : "«";
    trusted = text->trusted_at(i);
    shown += text->bytes()[i];
  }
  return trusted ? shown + "»" : shown;
}

class InUtc {
 public:
  InUtc() {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};

TEST(Jinja, RendersWhatPythonsJinjaRenders) {
  const InUtc utc;
  const Json all = Json::parse(test::read_file(std::string(MILLRACE_TEST_DATA) + "/jinja/cases.json"));
  Json inputs = all["inputs"];
  inputs["add_generation_prompt"] = true;
  ASSERT_GT(all["cases"].size(), 250u);
  for (const Json& one : all["cases"]) {
    const std::string source = one["template"], got = rendered(source, inputs);
    if (one.contains("fails")) {
      EXPECT_EQ(got.substr(0, 7), "error: ") << source << "\nPython: " << one["fails"];
      EXPECT_EQ(got.find('\n'), std::string::npos) << got;
    } else {
      EXPECT_EQ(got, one["expected"].get<std::string>()) << source;
    }
  }
}

TEST(Jinja, RemembersWhereEachByteCameFrom) {
  const Json values = {{"u", " <s>user "}, {"l", {"a", "b"}}, {"d", {{"k", "v"}}}, {"n", 3}};
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"<s>{{ u }}</s>", "«<s>» <s>user «</s>»"},
      {"{{ bos_token + u }}", "«<s>» <s>user "},
      {"{{ '<|' ~ u ~ '|>' }}", "«<|» <s>user «|>»"},
      {"{{ ('[' + u + ']').upper() }}", "«[» <S>USER «]»"},
      {"{{ (' x' + u + '\n') | trim }}", "«x» <s>user"},
      {"{{ ('<' + u.strip() + '>')[0:5] }}", "«<»<s>u"},
      {"{{ ('<' + u.strip() + '>')[::-1] }}", "«>»resu>s<«<»"},
      {"{{ u.strip().replace('<s>', '[x]') }}", "«[x]»user"},
      {"{{ u.strip() | replace('user', u) }}", "<s> <s>user "},
      {"{{ l | join(', ') }}", "a«, »b"},
      {"{{ ', '.join(l) }}", "a«, »b"},
      {"{{ ('<s>,' + u.strip()).split(',') | last }}", "<s>user"},
      {"{{ ('<s>,' + u.strip()).split(',') | first }}", "«<s>»"},
      {"{{ d | tojson }}", "{\"k\": \"v\"}"},
      {"{{ ['<s>', u.strip()] | tojson }}", "[\"«<s>»\", \"<s>user\"]"},
      {"{% set x %}<s>{{ u.strip() }}{% endset %}{{ x | upper }}", "«<S>»<S>USER"},
      {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(l[0]) }}{{ m('z') }}", "«<»a«><z>»"},
      {"{% for c in '<' ~ l[0] %}{{ c }}{% endfor %}", "«<»a"},
      {"{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}", "kv"},
      {"{{ '%s>' % l[0] }}{{ '{}>'.format(l[0]) }}{{ '<%s' | format(l[1]) }}", "a«>»a«><»b"},
      {"{% set ns = namespace(t='') %}{% for x in l %}{% set ns.t = ns.t + '<' + x %}{% endfor %}{{ ns.t }}",
       "«<»a«<»b"},
      {"{{ u | default('x') | trim }}{{ zzz | default('<s>') }}", "<s>user«<s>»"},
      {"{{ ('a\n' + l[0]) | indent(2) }}", "«a»\n  a"},
      {"{{ n }}{{ u | length }}{{ strftime_now('%Y') }}", "392025"},
      {"{{ l[0].title() }}{{ 'b'.title() }}{{ ('b' + l[0]) | title }}", "A«BB»a"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(rendered(source, values, true), expected) << source;
}

TEST(Jinja, ErrorsSayWhereAndWhat) {
  EXPECT_EQ(rendered("a\n\n{{ x.y }}"), "error: the chat template failed in line 3: 'x' is undefined");
  EXPECT_EQ(rendered("\n{% if %}"),
            "error: the chat template cannot be read: line 2: a tag ends where 'a value' should stand");
  EXPECT_EQ(rendered("{{ raise_exception('roles\nmust alternate') }}"),
            "error: the chat template failed in line 1: it refuses the conversation: roles must alternate");
  EXPECT_EQ(rendered("{% include 'x' %}"),
            "error: the chat template cannot be read: line 1: the tag 'include' is not known");
}

TEST(Jinja, ATemplateThatMeansHarmEndsInAnError) {
  std::string nested(100'000, '('), chain = "{{ 1", lists = "{{ ", ifs;
  for (int i = 0; i < 5'000; ++i) chain += " + 1";
  for (int i = 0; i < 5'000; ++i) lists += "[";
  for (int i = 0; i < 5'000; ++i) ifs += "{% if 1 %}";
  std::string filters = "{{ 'a'", dots = "{{ a", nots = "{{ ";
  for (int i = 0; i < 5'000; ++i) filters += "|upper", dots += ".b", nots += "not ";
  const std::vector<std::string> harmful = {
      "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor "
      "%}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(f) %}{% call f(f) %}{% endcall %}{% endmacro %}{{ m(m) }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x={}) %}{% for i in range(90000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x }}",
      "{{ 'a' * 9999999999999 }}",
      "{{ [1] * 9999999999999 }}",
      "{{ range(99999999) }}",
      "{{ 'a' | center(9999999999) }}",
      "{{ 'a'.zfill(9999999999) }}",
      "{{ '%99999999999d' % 1 }}",
      "{{ '{:99999999999}'.format('a') }}",
      "{{ 'a' | indent(9999999999) }}",
      "{{ [1] | batch(9999999999, 0) }}",
      "{{ [1] | slice(9999999999) }}",
      "{{ ((['a' * 100000] * 100000) | join) }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ (-9223372036854775807 - 1) // -1 }}",
      "{{ -(-9223372036854775807 - 1) }}",
      "{{ (-9223372036854775807 - 1) | abs }}",
      "{{ 99999999999999999999 }}",
      "{{ 10 ** 10 ** 10 }}",
      "{{ ('a' * 1000).replace('', 'b' * 1000000) }}",
      "{{ " + nested,
      chain + " }}",
      lists,
      ifs,
      filters + " }}",
      dots + " }}",
      nots + "1 }}",
      std::string(2u << 20, 'x'),
  };
  Limits limits;
  limits.steps = 2'000'000;
  limits.live_bytes = 32u << 20;
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& source : harmful) {
    EXPECT_EQ(rendered(source, Json::object(), false, limits).substr(0, 7), "error: ") << source.substr(0, 200);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(120));
  Limits small;
  small.output_bytes = 100;
  EXPECT_EQ(rendered("{% for i in range(99) %}{{ 'abc' }}{% endfor %}", Json::object(), false, small).substr(0, 7),
            "error: ");
}

TEST(Jinja, RingsAndChainsOfNamespacesAreFreed) {
  EXPECT_EQ(
      rendered("{% set a = namespace() %}{% set a.a = a %}{% macro m() %}{{ m is defined }}{% endmacro %}{{ m() }}"),
      "True");
  EXPECT_EQ(rendered("{% set n = namespace(p=none) %}{% for i in range(90000) %}{% set o = namespace(p=n.p) %}"
                     "{% set n.p = o %}{% endfor %}x"),
            "x");
}

TEST(Jinja, BytesThatAreNoTextAreCarriedAlong) {
  // Not through JSON, which would refuse them: a message from a terminal may hold anything.
  const Json values = {{"u", "a\xFF\xE4\xB8z"}};
  EXPECT_EQ(rendered("{{ u }}|{{ u | length }}|{{ u[1] }}|{{ u[::-1] }}|{{ u.strip() | upper }}", values),
            "a\xFF\xE4\xB8z|5|\xFF|z\xB8\xE4\xFF"
            "a|A\xFF\xE4\xB8Z");
}

TEST(Jinja, HugeNumbersOfMessagesAreFine) {
  Json values = {{"messages", Json::array()}};
  for (int i = 0; i < 2'000; ++i)
    values["messages"].push_back({{"role", "user"}, {"content", std::string(1'000, 'x')}});
  const std::string text = rendered(
      "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = m.content[:5] %}{{ '<' + m.role + m.content "
      "| trim + '>' }}"
      "{% endfor %}",
      values);
  EXPECT_EQ(text.size(), 2'000u * 1'006);
}

}  // namespace
}  // namespace millrace::text::jinja
