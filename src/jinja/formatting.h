// Python's three kinds of formatting: `format % values`, format(value, spec) and str.format().
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "jinja/budget.h"
#include "jinja/value.h"

namespace megatron::jinja {

// values: a tuple, a dict for "%(name)s", or one value.
std::string percent_format(std::string_view format, const Value& values, Budget& budget);

// spec: [[fill]align][sign][z][#][0][width][grouping][.precision][type]
std::string format_value(const Value& value, std::string_view spec, Budget& budget);

// Returns the field that "{0}" or "{name}" names.
using FieldLookup = std::function<Value(const std::string& name)>;
std::string format_fields(std::string_view format, const FieldLookup& lookup, Budget& budget);

// Pads `text` to `width` code points with `fill` (UTF-8).
enum class Align { left, right, center };
std::string aligned(std::string_view text, int64_t width, std::string_view fill, Align align,
                    Budget& budget);

}  // namespace megatron::jinja
