#include "jinja/call.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::jinja {

Parameters::Parameters(const Call& call, std::string_view function,
                       std::initializer_list<std::string_view> names, size_t required)
    : function_(function), names_(names.begin(), names.end()), values_(names.size()) {
  MG_CHECK(call.positional.size() <= names.size(),
           "{}() takes at most {} arguments but {} were given", function, names.size(),
           call.positional.size());
  for (size_t i = 0; i < call.positional.size(); ++i) values_[i] = &call.positional[i];
  for (const auto& [name, value] : call.keyword) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    MG_CHECK(found != names_.end(), "{}() got an unexpected keyword argument '{}'", function, name);
    const auto at = static_cast<size_t>(found - names_.begin());
    MG_CHECK(values_[at] == nullptr, "{}() got multiple values for argument '{}'", function, name);
    values_[at] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    MG_CHECK(values_[i] != nullptr, "{}() missing the required argument '{}'", function, names_[i]);
  }
}

int64_t Parameters::whole(size_t i, int64_t initial) const {
  if (!given(i)) return initial;
  MG_CHECK(values_[i]->is_whole(), "{}(): '{}' must be an integer, not {}", function_, names_[i],
           values_[i]->type_name());
  return values_[i]->as_whole();
}

const std::string& Parameters::text(size_t i) const {
  MG_CHECK(given(i) && values_[i]->is_text(), "{}(): '{}' must be str, not {}", function_,
           names_[i], given(i) ? values_[i]->type_name() : "missing");
  return values_[i]->bytes();
}

}  // namespace megatron::jinja
