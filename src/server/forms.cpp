#include "server/forms.h"

#include <utility>

#include "server/generation_parameters.h"

namespace megatron::server {
namespace {

struct FormFields {
  std::string_view schema, regex, choice;
};

// Returns null if none of the fields is given.
SharedGrammar read_fields(const Parameters& p, const TextModel& model, const FormFields& names) {
  const Json* schema = p.find(names.schema);
  const std::optional<std::string> pattern = p.text(names.regex);
  const Json::Array* choice = p.array(names.choice);
  const int given = (schema != nullptr ? 1 : 0) + (pattern ? 1 : 0) + (choice != nullptr ? 1 : 0);
  if (given > 1)
    p.fail(names.schema,
           fmt::format("{} and {} are mutually exclusive", names.regex, names.choice));
  Grammars& grammars = model.grammars();
  if (schema != nullptr) {
    return read_grammar(p, names.schema, [&] {
      return schema->is_string() ? grammars.json_schema(Json::parse(schema->as_string()), false)
                                 : grammars.json_schema(*schema, false);
    });
  }
  if (pattern) return read_grammar(p, names.regex, [&] { return grammars.regex(*pattern); });
  if (choice == nullptr) return nullptr;
  std::vector<std::string> texts;
  for (const Json& text : *choice) {
    if (!text.is_string() || text.as_string().empty())
      p.fail(names.choice, "contains " + shown(text) + "; it must contain non-empty strings");
    texts.push_back(text.as_string());
  }
  if (texts.empty()) p.fail(names.choice, "is empty; give at least one text");
  return read_grammar(p, names.choice, [&] { return grammars.choice(texts); });
}

}  // namespace

SharedGrammar read_form(const Parameters& p, const TextModel& model) {
  SharedGrammar form = read_fields(p, model, {"guided_json", "guided_regex", "guided_choice"});
  const std::optional<Parameters> outputs = p.object("structured_outputs");
  if (!outputs) return form;
  SharedGrammar other = read_fields(*outputs, model, {"json", "regex", "choice"});
  if (outputs->boolean("json_object").value_or(false)) {
    if (other) outputs->fail("json_object", "cannot be true together with json, regex or choice");
    other = read_grammar(*outputs, "json_object", [&] { return model.grammars().json_object(); });
  }
  outputs->refuse({"grammar", "structural_tag", "whitespace_pattern", "disable_any_whitespace",
                   "disable_additional_properties"});
  if (form && other) p.fail("structured_outputs", "cannot be used together with a field guided_*");
  return other ? other : form;
}

std::vector<inference::ToolSchema> tool_schemas(const Json::Array& tools, const std::string& only) {
  std::vector<inference::ToolSchema> schemas;
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    if (!only.empty() && function["name"].as_string() != only) continue;
    const Json *given = function.find("parameters"), *strict = function.find("strict");
    Json parameters = given != nullptr && given->is_object() ? *given : Json(Json::Object{});
    const bool takes_none = parameters.as_object().empty();
    if (!parameters.contains("type")) parameters.set("type", "object");
    if (takes_none) {
      parameters.set("properties", Json::Object{});
      parameters.set("additionalProperties", false);
    }
    schemas.push_back({function["name"].as_string(), std::move(parameters),
                       strict != nullptr && *strict == Json(true)});
  }
  return schemas;
}

HttpAnswer with_unenforced(HttpAnswer answer, const SharedGrammar& grammar) {
  if (grammar && !grammar->unenforced().empty())
    answer.headers.emplace_back("X-Unenforced-Keywords", unenforced_list(*grammar));
  return answer;
}

}  // namespace megatron::server
