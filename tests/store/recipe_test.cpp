#include "app/store/recipe.h"

#include <gtest/gtest.h>

namespace millrace::store {
namespace {

using nlohmann::json;

TEST(Recipe, TakesNumbersInTheirBoundsAlone) {
  EXPECT_EQ(*parameter_value("temperature", "0.5"), json(0.5));
  EXPECT_EQ(*parameter_value("num_ctx", "4096"), json(4096));
  EXPECT_EQ(*parameter_value("num_predict", "-1"), json(-1));
  for (const auto& [name, text] : {std::pair{"temperature", "nan"},
                                   {"temperature", "inf"},
                                   {"temperature", "-inf"},
                                   {"temperature", "1e400"},
                                   {"top_p", "-nan"},
                                   {"top_p", "1.5"},
                                   {"repeat_penalty", "0"},
                                   {"num_ctx", "4611686018427387904"},
                                   {"num_ctx", "9223372036854775807"},
                                   {"num_ctx", "-1"},
                                   {"num_ctx", "1.5"}}) {
    const auto value = parameter_value(name, text);
    ASSERT_FALSE(value.ok()) << name << " " << text;
    EXPECT_NE(value.status().message().find(name), std::string::npos) << value.status().message();
  }
}

TEST(Recipe, ChecksParametersOfAClient) {
  const auto good = check_parameters({{"temperature", 1}, {"num_ctx", 2048.0}, {"stop", "END"}, {"use_mmap", true}});
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ((*good)["num_ctx"].dump(), "2048");
  EXPECT_EQ((*good)["stop"], json::array({"END"}));
  for (const char* text :
       {"7", "[]", "null", R"({"temperature":"hot"})", R"({"temperature":7e9})", R"({"top_k":1.5})", R"({"stop":[1]})",
        R"({"stop":{}})", R"({"nonsense":1})", R"({"use_mmap":1})", R"({"temperature":[[]]})"})
    EXPECT_FALSE(check_parameters(json::parse(text)).ok()) << text;
}

TEST(Recipe, ChecksMessages) {
  EXPECT_TRUE(
      check_messages(json::parse(R"([{"role":"user","content":"Hi"},{"role":"assistant","content":""}])")).ok());
  EXPECT_TRUE(check_messages(json::array()).ok());
  for (const char* text : {"7", "{}", "[7]", "[null]", R"([{"role":"user"}])", R"([{"role":7,"content":"x"}])",
                           R"([{"role":"user","content":[]}])", R"([{"role":"boss","content":"x"}])"})
    EXPECT_FALSE(check_messages(json::parse(text)).ok()) << text;
}

TEST(Recipe, PassesOverWhatOnlyOllamaCanDo) {
  const auto recipe =
      parse_recipe("FROM base\nRENDERER qwen3-coder\nPARSER qwen3-coder\nREQUIRES 0.14.0\nSYSTEM Be brief.\n");
  ASSERT_TRUE(recipe.ok()) << recipe.status().message();
  EXPECT_EQ(recipe->from, "base");
  EXPECT_EQ(recipe->system, "Be brief.");
  EXPECT_NE(parse_recipe("FROM base\nRENDERERS x\n").status().message().find("line 2"), std::string::npos);
}

TEST(Recipe, HasAdapters) {
  const std::string text = "FROM base\nADAPTER ./a.gguf\nADAPTER \"my folder/peft\"\n";
  const auto recipe = parse_recipe(text);
  ASSERT_TRUE(recipe.ok()) << recipe.status().message();
  ASSERT_EQ(recipe->adapters.size(), 2u);
  EXPECT_EQ(recipe->adapters[0].path, "./a.gguf");
  EXPECT_EQ(recipe->adapters[1].path, "my folder/peft");
  EXPECT_EQ(parse_recipe(to_text(*recipe))->adapters[1].path, "my folder/peft");
  EXPECT_NE(parse_recipe("FROM base\nADAPTER\n").status().message().find("line 2"), std::string::npos);
}

TEST(Recipe, RefusesTemplatesThatCannotBeRead) {
  EXPECT_TRUE(check_template("{% for m in messages %}{{ m.content }}{% endfor %}").ok());
  EXPECT_TRUE(check_template("").ok());
  EXPECT_TRUE(check_template("{{ .Prompt }}").ok());
  EXPECT_FALSE(check_template("{{ .Prompt }}{{ .Tools }}").ok());
  EXPECT_FALSE(check_template("{% for m in messages %}{{ m.content").ok());
}

}  // namespace
}  // namespace millrace::store
