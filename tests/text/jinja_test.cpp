// Templates against what Python's jinja2 makes of them (tests/data/jinja, made by tools/oracles/jinja_cases.py), where
// strings came from, and templates that mean harm.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

#include "base/json.h"
#include "environment.h"
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
    millrace::test::set_variable("TZ", "UTC");
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
      "{{ 2 ** 126 + 2 ** 126 }}",
      "{{ (0 - 2 ** 126 - 2 ** 126) // -1 }}",
      "{{ -(0 - 2 ** 126 - 2 ** 126) }}",
      "{{ (0 - 2 ** 126 - 2 ** 126) | abs }}",
      "{{ 999999999999999999999999999999999999999 }}",
      "{{ 1e300 | int }}",
      "{{ 'a' * 2 ** 100 }}",
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

/// Lends up to `most` bytes and remembers the highest sum lent.
class JinjaLender final : public WorkGrant {
 public:
  explicit JinjaLender(std::uint64_t most, int calls_off = -1) : most_(most), calls_off_(calls_off) {}
  bool take(std::uint64_t bytes) override {
    if (bytes > most_ - lent) return false;
    lent += bytes;
    return true;
  }
  void give_back(std::uint64_t bytes) noexcept override { lent -= bytes; }
  bool cancelled() const override { return calls_off_ >= 0 && asked_++ >= calls_off_; }
  std::uint64_t lent = 0;

 private:
  const std::uint64_t most_;
  const int calls_off_;
  mutable int asked_ = 0;
};

/// The most memory that this process had since the last call, in bytes; Linux counts it anew on request.
std::uint64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  std::uint64_t kib = 0;
  for (std::string word; status >> word;)
    if (word == "VmHWM:") status >> kib;
  std::ofstream("/proc/self/clear_refs") << "5";
  return kib << 10;
}

/// Each took many times the limit: what grew was counted when it was done, or never.
TEST(Jinja, MemoryIsCountedBeforeItIsTaken) {
  const std::vector<std::string> greedy = {
      "{{ ([1]*30000000)|length }}",
      "{{ ([1]*1000000 + [2]*1000000 + [3]*1000000)|length }}",
      "{{ (range(100000)|list * 200)|map('string')|list|length }}",
      "{{ ('a'*20000000).split('a')|length }}",
      "{{ ('\n'*20000000).splitlines()|length }}",
      "{{ ('ä'*5000000)[::-1]|length }}",
      "{{ ('ab'*9000000)|list|length }}",
      "{{ ([0]*1200000)|sort|length }}",
      "{{ ([0]*2000000)|map(attribute='x')|list|length }}",
      "{{ ([0]*2000000)|batch(1)|list|length }}",
      "{{ [1]|slice(3000000)|list|length }}",
      "{{ ([range]*2000000)|map('string')|list|length }}",
      "{{ (['x']*9000000)|join('yyyyyyyy')|length }}",
      "{{ ('x'*9000000)|replace('x','yyyyyyyy')|length }}",
      "{{ ('x\n'*900000)|indent(500)|length }}",
      "{{ ('%900000s'*100)|format(*([1]*100))|length }}",
      "{{ ('{:900000}'*100).format(*([1]*100))|length }}",
      "{% set ns=namespace(l=[]) %}{% for i in range(100000) %}{% for k in range(15) %}{% set ns.l=namespace(n=ns.l) %}"
      "{% endfor %}{% endfor %}",
      "{% set ns=namespace(l=[]) %}{% for i in range(90000) %}{% set ns.l = ns.l + [{}.y, range] %}{% endfor %}",
      "{% set k='k'*1000000 %}{% set ns=namespace(l=[]) %}{% for i in range(9000) %}{% set ns.l = ns.l + "
      "[namespace({k: 1}), k ~ i] %}{% endfor %}",
      "{% macro m(d, n) %}{% if n %}{{ m(d, n - 1, **d) }}{% endif %}{% endmacro %}{{ m({'k'*9000000: 1}, 500) }}",
      "{% for i in range(100000) %}{{ 'x' * 9000 }}{% endfor %}",
      "{% set x %}{% for i in range(100000) %}{{ 'x' * 9000 }}{% endfor %}{% endset %}",
      "{{ (['a' * 1000] * 100000) | tojson | length }}",
      "{{ ('\n' * 9000000) | tojson(ensure_ascii=true) | length }}",
  };
  Limits limits;
  limits.live_bytes = 48u << 20;
  for (const std::string& source : greedy) {
    (void)peak_memory();
    const std::uint64_t before = peak_memory();
    const std::string text = rendered(source, Json::object(), false, limits);
    const std::uint64_t after = peak_memory();
    EXPECT_LT(after - std::min(before, after), 80u << 20) << source << " " << text.substr(0, 100);
    const bool refused = text.find("MiB") != std::string::npos || text.find("steps") != std::string::npos ||
                         text.find("takes not more") != std::string::npos || text.find("takes no") != std::string::npos;
    EXPECT_TRUE(refused) << source << " " << text.substr(0, 100);
  }
}

TEST(Jinja, MemoryAndTimeAreGranted) {
  const auto made = Template::parse("{% set x = 'a' * 3000000 %}{{ x|length }}{% for i in range(90000) %}{% endfor %}");
  ASSERT_TRUE(made.ok());
  JinjaLender enough(64u << 20), little(1u << 20), called_off(64u << 20, 1);
  Limits limits;
  limits.grant = &enough;
  EXPECT_EQ(made->render({}, limits)->bytes(), "3000000");
  EXPECT_EQ(enough.lent, 0u);
  limits.grant = &little;
  EXPECT_EQ(made->render({}, limits).status().code(), Code::out_of_budget);
  EXPECT_EQ(little.lent, 0u);
  limits.grant = &called_off;
  EXPECT_EQ(made->render({}, limits).status().code(), Code::cancelled);
  EXPECT_EQ(called_off.lent, 0u);
}

TEST(Jinja, NumbersOfRequestsKeepTheirDigits) {
  const Json values = {{"n", 18446744073709551615u}, {"l", {{"maximum", 9223372036854775808u}}}};
  EXPECT_EQ(rendered("{{ n }} {{ l | tojson }} {{ n + 1 }}", values),
            "18446744073709551615 {\"maximum\": 9223372036854775808} 18446744073709551616");
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
