#include "server/parameters.h"

#include <cmath>

#include "base/shorten.h"

namespace megatron::server {
namespace {

bool changes_nothing(const Json& value, const Json& neutral) {
  if (!neutral.is_null())
    return value.is_number() && neutral.is_number() ? value.as_number() == neutral.as_number()
                                                    : value == neutral;
  if (value.is_bool()) return !value.as_bool();
  if (value.is_number()) return value.as_number() == 0;
  if (value.is_string()) return value.as_string().empty();
  if (value.is_array()) return value.as_array().empty();
  return value.is_null() || value.as_object().empty();
}

}  // namespace

std::string shown(const Json& value) {
  constexpr size_t kMax = 40;
  const std::string text =
      value.is_string() || value.is_number() || value.is_bool() || value.is_null() ? value.dump()
      : value.is_array()                                                           ? "a list"
                                                                                   : "an object";
  return cut_short(text, kMax);
}

Parameters::Parameters(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  MG_ASSERT(object.is_object());
}

void Parameters::fail(std::string_view name, const std::string& message) const {
  throw invalid_request(name_of(name) + " " + message, name_of(name));
}

const Json* Parameters::find(std::string_view name) const {
  const Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<bool> Parameters::boolean(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) fail(name, "is " + shown(*value) + "; it must be true or false");
  return value->as_bool();
}

std::optional<int64_t> Parameters::integer(std::string_view name, int64_t least,
                                           int64_t most) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const bool whole =
      value->is_integer() || (value->is_number() && std::abs(value->as_number()) < 9e15 &&
                              std::floor(value->as_number()) == value->as_number());
  const int64_t found = whole ? value->as_integer() : 0;
  if (!whole || found < least || found > most) {
    const std::string range =
        most == INT64_MAX ? (least == INT64_MIN ? std::string(" of 64 bits")
                                                : fmt::format(" of 64 bits, {} or more", least))
                          : fmt::format(" from {} to {}", least, most);
    fail(name, fmt::format("is {}; it must be an integer{}", shown(*value), range));
  }
  return found;
}

std::optional<double> Parameters::number(std::string_view name, double least, double most) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->as_number() >= least && value->as_number() <= most)) {
    fail(name, fmt::format("is {}; it must be a number from {} to {}", shown(*value), least, most));
  }
  return value->as_number();
}

std::optional<std::string> Parameters::text(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(name, "is " + shown(*value) + "; it must be a string");
  return value->as_string();
}

const Json::Array* Parameters::array(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) fail(name, "is " + shown(*value) + "; it must be a list");
  return &value->as_array();
}

std::optional<Parameters> Parameters::object(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail(name, "is " + shown(*value) + "; it must be an object");
  return Parameters(*value, name_of(name) + ".");
}

void Parameters::refuse(std::initializer_list<Unsupported> fields) const {
  for (const auto& [name, neutral] : fields) {
    const Json* value = find(name);
    if (value != nullptr && !changes_nothing(*value, neutral))
      fail(name, "is " + shown(*value) + ", which this server does not support; leave it out");
  }
}

Json parse_body(std::string_view body) {
  if (body.empty()) throw invalid_request("the body is empty; it must be a JSON object");
  Json json;
  try {
    json = Json::parse(body, "the body");
  } catch (const Error& e) {
    throw invalid_request(std::string("the body is not valid JSON: ") + e.what(), "",
                          "invalid_json");
  }
  if (!json.is_object())
    throw invalid_request("the body is " + shown(json) + "; it must be a JSON object", "",
                          "invalid_json");
  return json;
}

}  // namespace megatron::server
