// Filters, tests and members of values that templates can name. The first positional argument of
// each is the value it is applied to.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/objects.h"

namespace megatron::jinja {

struct NamedNative {
  std::string_view name;
  Native native;
};

// These throw Error, which lists the known names, if there is none of that name.
Native find_filter(std::string_view name);
Native find_test(std::string_view name);  // returns a boolean
bool has_filter(std::string_view name);
Native find_in(std::span<const NamedNative> natives,
               std::string_view name);  // null if there is none

std::span<const NamedNative> text_filters();
std::span<const NamedNative> number_filters();
std::span<const NamedNative> sequence_filters();
std::span<const NamedNative> text_methods();

// Returns a method or another member of a value that is no object, or none if it has no such
// member.
std::optional<Value> member_of(const Value& value, std::string_view name, Budget& budget);
// True if Python's value has the method and it would change the value.
bool is_mutating(const Value& value, std::string_view name);

// Looks up a path such as "a.b.0" in `value`, as the parameter `attribute` of filters does.
Value attribute_path(const Value& value, const Value& path, Budget& budget);

// Helpers shared by methods and filters.
Values pairs_of(const Value& dict, Budget& budget);
std::string subject(Call& call);  // the value as text; its length is charged to the budget
Value wordwrap(Call& call);       // the filter
std::vector<std::string_view> split_lines(std::string_view text, Budget& budget,
                                          bool with_ends = false);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t most, Budget& budget);
std::string centered(std::string_view text, int64_t width, std::string_view fill, Budget& budget);
std::string strip_text(const std::string& text, const Parameters& p, bool left, bool right,
                       Budget& budget);  // p: the text, optionally the letters to strip

}  // namespace megatron::jinja
