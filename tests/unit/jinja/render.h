#pragma once

#include <string>

#include "base/json.h"
#include "jinja/template.h"

namespace megatron::jinja {

// Rendered text, or "line N: reason" if the template fails.
inline std::string rendered(const std::string& source, const std::string& variables = "{}",
                            const Limits& limits = {}) {
  Variables given;
  const Json json = Json::parse(variables);  // must outlive the loop over it
  for (const auto& [name, value] : json.as_object()) given.emplace_back(name, Value::from(value));
  try {
    return Template::parse(source, "test").render(given, limits).text;
  } catch (const TemplateError& error) {
    return "line " + std::to_string(error.line()) + ": " + error.reason();
  }
}

}  // namespace megatron::jinja
