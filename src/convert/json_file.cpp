#include "convert/json_file.h"

#include <span>

#include "modelfile/file_io.h"

namespace millrace::convert {

Status write_json(const std::string& path, const nlohmann::json& value) {
  const std::string text = value.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::create(path));
  MR_RETURN_IF_ERROR(file.write_at(0, std::as_bytes(std::span(text.data(), text.size()))));
  return file.sync();
}

}  // namespace millrace::convert
