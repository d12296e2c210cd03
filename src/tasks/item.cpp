#include "tasks/item.h"

#include <cmath>

#include "base/error.h"
#include "base/shorten.h"
#include "base/text_parts.h"
#include "data/json_record.h"

namespace megatron::tasks {
namespace {

// Numbers that are not finite and lone surrogates cannot be written as JSON.
std::string shown(const Json& value) {
  if (value.is_number() && !std::isfinite(value.as_number()))
    return fmt::format("{}", value.as_number());
  try {
    return shortened(value.dump(), 100);
  } catch (const Error&) {
    return "a value with a lone surrogate or a number that is not finite";
  }
}

}  // namespace

Item::Item(std::string_view line, std::string place)
    : Item(data::parse_record(line, place), place) {}

Item::Item(Json json, std::string place) : json_(std::move(json)), place_(std::move(place)) {
  MG_CHECK(json_.is_object(), "{}: the line is {}, not a JSON object", place_, shown(json_));
}

void Item::refuse(std::string_view field, const std::string& why) const {
  fail("{}: field '{}' {}", place_, field, why);
}

const Json& Item::get(std::string_view field) const {
  const Json* value = json_.find(field);
  if (value == nullptr) refuse(field, "is missing");
  return *value;
}

const std::string& Item::text(std::string_view field) const {
  const Json& value = get(field);
  if (!value.is_string()) refuse(field, fmt::format("is {}; it must be a string", shown(value)));
  return checked(value, field);
}

const std::string& Item::checked(const Json& text, std::string_view field) const {
  data::check_text(text.as_string(), fmt::format("{}: field '{}'", place_, field));
  return text.as_string();
}

std::optional<std::string> Item::optional_text(std::string_view field) const {
  if (!has(field)) return {};
  return text(field);
}

std::vector<std::string> Item::texts(std::string_view field) const {
  const Json& value = get(field);
  if (!value.is_array() || value.as_array().empty())
    refuse(field, fmt::format("is {}; it must be a list of at least one string", shown(value)));
  std::vector<std::string> texts;
  for (const Json& one : value.as_array()) {
    if (!one.is_string())
      refuse(field, fmt::format("contains {}; it must be a list of strings", shown(one)));
    texts.push_back(checked(one, field));
  }
  return texts;
}

int64_t Item::integer(std::string_view field, int64_t least, int64_t most) const {
  const Json& value = get(field);
  if (!value.is_integer() || value.as_integer() < least || value.as_integer() > most)
    refuse(field,
           fmt::format("is {}; it must be a number from {} to {}", shown(value), least, most));
  return value.as_integer();
}

bool Item::boolean(std::string_view field) const {
  const Json& value = get(field);
  if (!value.is_bool()) refuse(field, fmt::format("is {}; it must be true or false", shown(value)));
  return value.as_bool();
}

int64_t Item::index(std::string_view field, size_t count) const {
  const Json& value = get(field);
  int64_t number = -1;
  if (value.is_integer()) {
    number = value.as_integer();
  } else if (value.is_string()) {
    number = parse_number<int64_t>(value.as_string()).value_or(-1);
  }
  if (number < 0 || number >= static_cast<int64_t>(count))
    refuse(field, fmt::format("is {}; it must be the index of a choice, from 0 to {}", shown(value),
                              count - 1));
  return number;
}

}  // namespace megatron::tasks
