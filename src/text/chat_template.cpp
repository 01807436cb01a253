#include "text/chat_template.h"

#include <utility>

#include "text/chatml.h"

namespace millrace::text {

// The one place that decides what renders a template: a full Jinja engine is tried here once there is one.
Expected<std::unique_ptr<ChatTemplate>> ChatTemplate::from_model(const modelfile::Model& model) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  if (!model.has(kKey)) {
    return error(Code::not_found, "the file has no chat template ({}): use --raw to give the prompt as it is", kKey);
  }
  MR_ASSIGN_OR_RETURN(const std::string jinja, model.get_string(kKey));
  MR_ASSIGN_OR_RETURN(ChatMlForm form, read_chatml(jinja));
  return std::unique_ptr<ChatTemplate>(std::make_unique<ChatMl>(std::move(form)));
}

}  // namespace millrace::text
