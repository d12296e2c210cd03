// The filters and tests of Jinja by name. A filter's first positional argument is the value.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/call.h"

namespace megatron::jinja {

Native find_filter(std::string_view name);  // null where there is none
Native find_test(std::string_view name);    // gives a boolean

struct NamedNative {
  std::string_view name;
  Native native;
};
std::span<const NamedNative> text_filters();
std::span<const NamedNative> sequence_filters();
std::span<const NamedNative> selecting_filters();
std::span<const NamedNative> scalar_filters();

// Python's textwrap: lines of at most `width` letters, cut at spaces and, where on_hyphens, behind
// hyphens within words; a longer word is cut where `long_words`.
std::vector<std::string> wrap_line(std::string_view line, int64_t width, bool long_words,
                                   bool on_hyphens, Budget& budget);

// The value of "a.b.0" in `value`, as the parameter `attribute` of filters finds it.
Value attribute_path(const Value& value, const Value& path, Budget& budget);

}  // namespace megatron::jinja
