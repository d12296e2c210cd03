// Fields of a JSON object of the API, read strictly: type and range.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "server/api_error.h"

namespace megatron::server {

// An unsupported field, with the value that has no effect, by default false, 0, "", or an empty
// list or object.
struct Unsupported {
  Unsupported(const char* field) : name(field) {}
  Unsupported(const char* field, Json changes_nothing)
      : name(field), neutral(std::move(changes_nothing)) {}

  std::string_view name;
  Json neutral;
};

// A null field counts as absent. All functions throw ApiError 400 naming the field, its value and
// the accepted values.
class Parameters {
 public:
  // path: path of the object in the request, prepended to the names of its fields, e.g.
  // "stream_options."
  explicit Parameters(const Json& object, std::string path = "");

  const Json* find(std::string_view name) const;  // null if absent
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most) const;
  std::optional<double> number(std::string_view name, double least, double most) const;
  std::optional<std::string> text(std::string_view name) const;
  const Json::Array* array(std::string_view name) const;
  std::optional<Parameters> object(std::string_view name) const;

  // Throws ApiError for a field whose value would change the answer.
  void refuse(std::initializer_list<Unsupported> fields) const;

  // The field's name in errors.
  std::string name_of(std::string_view name) const { return path_ + std::string(name); }
  [[noreturn]] void fail(std::string_view name, const std::string& message) const;

 private:
  const Json& object_;
  std::string path_;
};

// Returns a value shortened for error messages.
std::string shown(const Json& value);

// Parses the body of a request. Throws ApiError 400 if it is not a single JSON object in UTF-8.
Json parse_body(std::string_view body);

}  // namespace megatron::server
