// The chat templates of published models, rendered by this engine and by another (tools/oracles/jinja.mjs).
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/json.h"
#include "text/fixtures.h"
#include "text/jinja/template.h"

namespace millrace::text::jinja {
namespace {

TEST(PublishedTemplates, RenderAsElsewhere) {
  const char* path = std::getenv("MILLRACE_TEMPLATE_FIXTURES");
  if (path == nullptr) GTEST_SKIP() << "skipped: MILLRACE_TEMPLATE_FIXTURES names no output of tools/oracles/jinja.mjs";
  const auto all = nlohmann::ordered_json::parse(test::read_file(path), nullptr, false);
  ASSERT_TRUE(all.is_object() && all["cases"].size() > 20) << path;
  for (const auto& one : all["cases"]) {
    const auto made = Template::parse(one["template"].get<std::string>());
    ASSERT_TRUE(made.ok()) << one["name"] << ": " << made.status().message();
    Inputs inputs;
    inputs.values = &one["inputs"];
    const auto text = made->render(inputs);
    if (one.contains("fails")) {
      EXPECT_FALSE(text.ok()) << one["name"] << ": " << one["fails"] << "\n" << (text.ok() ? text->bytes() : "");
    } else {
      ASSERT_TRUE(text.ok()) << one["name"] << ": " << text.status().message();
      EXPECT_EQ(text->bytes(), one["expected"].get<std::string>()) << one["name"];
    }
  }
}

}  // namespace
}  // namespace millrace::text::jinja
