// Finds a filter by its name.
#include <array>

#include "base/error.h"
#include "jinja/builtins.h"

namespace megatron::jinja {
namespace {

constexpr std::array kTables = {text_filters, number_filters, sequence_filters};

// Filters of jinja2 that are not supported, with the reason.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kLeftOut = {{
    {"random", "chats are rendered deterministically"},
    {"pprint", "use tojson(indent=2)"},
    {"striptags", "use replace() or split()"},
    {"urlize", "the text is not HTML"},
}};

Native found(std::string_view name) {
  for (const auto table : kTables)
    if (const Native native = find_in(table(), name)) return native;
  return nullptr;
}

}  // namespace

Native find_in(std::span<const NamedNative> natives, std::string_view name) {
  for (const NamedNative& entry : natives)
    if (entry.name == name) return entry.native;
  return nullptr;
}

bool has_filter(std::string_view name) { return found(name) != nullptr; }

Native find_filter(std::string_view name) {
  if (const Native native = found(name)) return native;
  for (const auto& [left_out, reason] : kLeftOut)
    MG_CHECK(name != left_out, "filter '{}' is not supported: {}", name, reason);
  std::string names;
  for (const auto table : kTables)
    for (const NamedNative& filter : table()) names += std::string(filter.name) + ", ";
  fail("filter '{}' is not supported; supported are {}", name, names.substr(0, names.size() - 2));
}

}  // namespace megatron::jinja
