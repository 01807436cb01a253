// Values of JSON go without taking memory: this program can refuse its own thread all of `new`.
#include "base/json.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>

namespace {
thread_local bool refused = false;
}  // namespace

// A sanitizer has its own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const memory = refused ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace millrace {
namespace {

template <typename Json>
class JsonValues : public ::testing::Test {};
using Kinds = ::testing::Types<nlohmann::json, nlohmann::ordered_json>;
TYPED_TEST_SUITE(JsonValues, Kinds);

template <typename Json>
void destroy_without_memory(Json&& made) {
  {
    const Json value(std::move(made));
    refused = true;  // and a destructor that asks for memory ends this program
  }
  refused = false;
}

TYPED_TEST(JsonValues, GoWithoutMemory) {
  TypeParam wide = TypeParam::array();
  for (int i = 0; i < 3000; ++i) {
    TypeParam one = {
        {"a name that is no short string", {1, "a text that is no short string", nullptr, TypeParam::array()}},
        {"b", {{"c", {{"d", {TypeParam::object(), "e"}}, {"f", i}}}}}};
    wide.push_back(std::move(one));
  }
  EXPECT_EQ(wide.dump(), TypeParam::parse(wide.dump()).dump());
  destroy_without_memory(std::move(wide));
  destroy_without_memory(TypeParam("a text that is no short string"));
  destroy_without_memory(TypeParam::binary({1, 2, 3}));
  destroy_without_memory(TypeParam(7));
}

TYPED_TEST(JsonValues, GoWithoutStackForEachLevel) {
  constexpr int kLevels = 400'000;
  std::string text;
  for (int i = 0; i < kLevels; ++i) text += i % 3 == 0 ? R"({"a":[1,[[3]]],"b":)" : i % 3 == 1 ? R"([{"c":2},)" : "[";
  text += "null";
  for (int i = kLevels - 1; i >= 0; --i) text += i % 3 == 0 ? "}" : "]";
  TypeParam deep = TypeParam::parse(text);
  EXPECT_TRUE(deep.is_object());
  destroy_without_memory(std::move(deep));
}

TYPED_TEST(JsonValues, StayWhereTheyWereCopiedAndMoved) {
  const TypeParam value = TypeParam::parse(R"({"a":[[1,[2,{"b":"c"}]],{}],"d":{"e":[{"f":null}]}})");
  const std::string text = value.dump();
  {
    TypeParam copy = value, moved = std::move(copy);
    moved["a"].erase(0);
    moved["d"] = moved["a"];
  }
  EXPECT_EQ(value.dump(), text);
}

}  // namespace
}  // namespace millrace
