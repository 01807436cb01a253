#include "text/jinja/template.h"

#include <algorithm>
#include <new>

#include "base/json.h"
#include "text/jinja/parser.h"
#include "text/jinja/run.h"

namespace millrace::text::jinja {

namespace {

/// The inputs that the template names, in the order of its names.
Values read_inputs(Meter& meter, const std::vector<std::string>& names, const Inputs& inputs) {
  Values values(names.size(), meter);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto trusted = std::find_if(inputs.trusted.begin(), inputs.trusted.end(),
                                      [&](const auto& entry) { return entry.first == names[i]; });
    if (trusted != inputs.trusted.end()) {
      values[i] = Value::string(&meter, trusted->second, true);
    } else if (inputs.values != nullptr && inputs.values->is_object()) {
      const auto found = inputs.values->find(names[i]);
      if (found != inputs.values->end()) values[i] = Value::from_json(meter, *found);
    }
  }
  return values;
}

}  // namespace

Template::Template(std::unique_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Expected<Template> Template::parse(std::string_view source) {
  try {
    return Template(std::make_unique<const Parsed>(jinja::parse(source)));
  } catch (const Trouble& trouble) {
    return error(Code::unsupported, "the chat template cannot be read: {}", trouble.message);
  }
}

Expected<MarkedText> Template::render(const Inputs& inputs, const Limits& limits) const {
  int line = 0;
  try {
    Meter meter(limits);
    Run run(meter, parsed_->names, read_inputs(meter, parsed_->names, inputs),
            inputs.now ? *inputs.now : std::time(nullptr));
    try {
      (void)exec_all(run, parsed_->body);
    } catch (const Trouble&) {
      line = run.line;
      throw;
    }
    return run.take_output();
  } catch (const Trouble& trouble) {
    return error(trouble.code, "the chat template failed in line {}: {}", line, trouble.message);
  } catch (const std::bad_alloc&) {
    return Status(Code::unavailable, "out of memory");
  }
}

bool Template::mentions(std::string_view name) const {
  return std::find(parsed_->names.begin(), parsed_->names.end(), name) != parsed_->names.end();
}

}  // namespace millrace::text::jinja
