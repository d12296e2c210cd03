// Texts with places for values: Python's `text % values` and text.format(...).
#pragma once

#include "jinja/budget.h"
#include "jinja/call.h"
#include "jinja/value.h"

namespace megatron::jinja {

// values: a tuple of all, a dict for %(name)s, or the only value.
Value format_percent(const Value& text, const Value& values, Budget& budget);
// call: the text, then its arguments. {}, {0}, {name}, with .attribute, [key], !r, !s and :spec.
Value format_braces(Call& call);

}  // namespace megatron::jinja
