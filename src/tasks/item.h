// One line of a task file, with strictly checked fields.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace megatron::tasks {

class Item {
 public:
  // Throws Error naming `place` if the line is not a JSON object.
  Item(std::string_view line, std::string place);
  Item(Json json, std::string place);

  const std::string& place() const { return place_; }
  const Json& json() const { return json_; }
  bool has(std::string_view field) const { return json_.contains(field); }
  void set(std::string_view field, std::string text) { json_.set(field, std::move(text)); }

  // Each throws Error naming place and field if it is missing or of another type.
  const std::string& text(std::string_view field) const;
  std::vector<std::string> texts(std::string_view field) const;  // at least one
  int64_t integer(std::string_view field, int64_t least, int64_t most) const;
  bool boolean(std::string_view field) const;
  // A number below `count`, as a number or as text.
  int64_t index(std::string_view field, size_t count) const;
  std::optional<std::string> optional_text(std::string_view field) const;

  [[noreturn]] void refuse(std::string_view field, const std::string& why) const;

 private:
  const Json& get(std::string_view field) const;
  const std::string& checked(const Json& text, std::string_view field) const;

  Json json_;
  std::string place_;
};

}  // namespace megatron::tasks
