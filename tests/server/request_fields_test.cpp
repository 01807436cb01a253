#include "app/generate/request_fields.h"

#include <gtest/gtest.h>

#include <set>

#include "app/anthropic/messages.h"
#include "app/openai/request.h"
#include "app/openai/responses.h"
#include "app/server/ollama_request.h"

namespace millrace::server {
namespace {

using generate::FieldUse;
using generate::RequestField;
using generate::RequestKind;

constexpr RequestKind kAll[] = {RequestKind::chat,
                                RequestKind::completion,
                                RequestKind::infill,
                                RequestKind::native_completion,
                                RequestKind::response,
                                RequestKind::message,
                                RequestKind::embedding,
                                RequestKind::rerank,
                                RequestKind::ollama_generate,
                                RequestKind::ollama_chat,
                                RequestKind::ollama_options,
                                RequestKind::ollama_embed};

/// The least that is a request.
Json least(RequestKind kind) {
  const Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  switch (kind) {
    case RequestKind::message:
      return {{"model", "m"}, {"messages", messages}, {"max_tokens", 1}};
    case RequestKind::response:
    case RequestKind::embedding:
    case RequestKind::ollama_embed:
      return {{"model", "m"}, {"input", "Hi"}};
    case RequestKind::rerank:
      return {{"model", "m"}, {"query", "q"}, {"documents", {"d"}}};
    case RequestKind::chat:
    case RequestKind::ollama_chat:
      return {{"model", "m"}, {"messages", messages}};
    default:
      return {{"model", "m"}, {"prompt", "Hi"}};
  }
}

Status parse_response(const Json& body) {
  MR_RETURN_IF_ERROR(openai::parse_link(body).status());
  return openai::parse_response(body).status();
}

Status parse_ollama(RequestKind kind, const Json& body) {
  MR_RETURN_IF_ERROR(ollama_model(body).status());
  if (kind == RequestKind::ollama_chat) return parse_ollama_chat(body, {}).status();
  if (kind == RequestKind::ollama_generate) return parse_ollama_generate(body, {}).status();
  MR_RETURN_IF_ERROR(parse_ollama_embed(body, "input").status());
  return parse_ollama_embed(body, "prompt").status();
}

Status parse(RequestKind kind, const Json& body) {
  switch (kind) {
    case RequestKind::chat:
      return openai::parse_chat(body).status();
    case RequestKind::completion:
      return openai::parse_completion(body).status();
    case RequestKind::infill:
      return openai::parse_infill(body).status();
    case RequestKind::native_completion:
      return openai::parse_native_completion(body).status();
    case RequestKind::response:
      return parse_response(body);
    case RequestKind::message:
      return anthropic::parse(body, true).status();
    case RequestKind::embedding:
      return openai::parse_embeddings(body).status();
    case RequestKind::rerank:
      return openai::parse_rerank(body).status();
    default:
      return parse_ollama(kind, body);
  }
}

Status parse_with(RequestKind kind, const std::string& name, const Json& value) {
  if (kind == RequestKind::ollama_options) {
    Json body = least(RequestKind::ollama_generate);
    body["options"] = {{name, value}};
    return parse(RequestKind::ollama_generate, body);
  }
  Json body = least(kind);
  body[name] = value;
  return parse(kind, body);
}

std::vector<Json> lines(std::string_view text) {
  std::vector<Json> all = {nullptr};
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    all.push_back(Json::parse(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

/// What thinks, is read by the templates' side, which takes more than one kind of value.
bool is_about_thoughts(const std::string& name) {
  static const std::set<std::string> all = {"reasoning_effort", "reasoning",       "think",
                                            "thinking",         "enable_thinking", "chat_template_kwargs"};
  return all.contains(name);
}

/// A field is read where some value of a wrong kind is refused by its name.
bool is_read(RequestKind kind, const std::string& name) {
  for (const Json& wrong : {Json{{"wrong", 1}}, Json(-12345.5), Json("wrong"), Json::array({Json::array()})}) {
    const Status status = parse_with(kind, name, wrong);
    if (!status.ok() && status.message().find(name) != std::string::npos) return true;
  }
  return false;
}

TEST(RequestFields, EachIsReadRefusedByNameOrWithoutEffect) {
  for (const RequestKind kind : kAll) {
    std::string before;
    for (const RequestField& field : generate::fields_of(kind)) {
      const std::string name = field.name, where = fmt::format("{} {}", generate::name_of(kind), name);
      EXPECT_LT(before, name) << where << " stands there twice, or out of order";
      before = name;
      if (field.use == FieldUse::supported) {
        EXPECT_TRUE(is_about_thoughts(name) || is_read(kind, name)) << where;
        continue;
      }
      EXPECT_FALSE(std::string_view(field.says).empty()) << where;
      for (const Json& neutral : lines(field.neutral))
        EXPECT_TRUE(parse_with(kind, name, neutral).ok()) << where << ": " << neutral;
      const Status status = parse_with(kind, name, {{"asks", "for something"}});
      if (field.use == FieldUse::ignored) {
        EXPECT_TRUE(status.ok()) << where << ": " << status.message();
      } else {
        EXPECT_EQ(status.code(), Code::unsupported) << where;
        EXPECT_EQ(status.message().find(name + ": "), 0u) << where << ": " << status.message();
      }
    }
  }
}

TEST(RequestFields, UnknownOnesAreNoErrorHoweverMany) {
  for (const RequestKind kind : kAll) {
    EXPECT_TRUE(parse_with(kind, "no_such_field", 1).ok()) << generate::name_of(kind);
    Json body = least(kind == RequestKind::ollama_options ? RequestKind::ollama_generate : kind);
    for (int i = 0; i < 3000; ++i) body.emplace(fmt::format("x{}", i), i);
    EXPECT_TRUE(generate::check_fields(kind, body).ok());
  }
}

}  // namespace
}  // namespace millrace::server
