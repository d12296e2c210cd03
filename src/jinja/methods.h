// Methods of texts, lists, tuples and dicts. Those that would change a value are unsafe, as in
// jinja2's immutable sandbox.
#pragma once

#include <optional>
#include <string_view>

#include "jinja/call.h"
#include "jinja/value.h"

namespace megatron::jinja {

std::optional<Value> method_of(const Value& value, std::string_view name);
bool is_unsafe(const Value& value, std::string_view name);

Native find_text_method(std::string_view name);  // null where there is none

// Pieces that filters use too.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t most, Budget& budget);
std::vector<std::string_view> split_words(std::string_view text);

}  // namespace megatron::jinja
