// Filters of numbers.
#include <array>
#include <cmath>

#include "base/error.h"
#include "jinja/builtins.h"
#include "jinja/numbers.h"
#include "jinja/operators.h"

namespace megatron::jinja {
namespace {

Value to_int(Call& call) {
  const Parameters p(call, "int", {"value", "default", "base"}, 1);
  check_defined(*p[0]);
  const Value initial = p.given(1) ? *p[1] : Value::integer(0);
  if (p[0]->is_whole()) return positive(*p[0]);
  if (p[0]->is_real()) return truncated(p[0]->as_number()).value_or(initial);
  if (!p[0]->is_text()) return initial;
  call.budget.spend_bytes(p[0]->bytes().size());
  if (const auto whole = read_integer(p[0]->bytes(), p.whole(2, 10))) return *whole;
  const auto real = read_real(p[0]->bytes());
  return real ? truncated(*real).value_or(initial) : initial;
}

Value to_float(Call& call) {
  const Parameters p(call, "float", {"value", "default"}, 1);
  check_defined(*p[0]);
  if (p[0]->is_number()) return Value::real(p[0]->as_number());
  const auto real = p[0]->is_text() ? read_real(p[0]->bytes()) : std::nullopt;
  if (real) return Value::real(*real);
  return p.given(1) ? *p[1] : Value::real(0);
}

Value absolute(Call& call) {
  const Parameters p(call, "abs", {"x"}, 1);
  check_defined(*p[0]);
  MG_CHECK(p[0]->is_number(), "bad operand type for abs(): '{}'", p[0]->type_name());
  return absolute_value(*p[0]);
}

Value round_number(Call& call) {
  const Parameters p(call, "round", {"value", "precision", "method"}, 1);
  const std::string method = p.text(2, "common");
  MG_CHECK(method == "common" || method == "ceil" || method == "floor",
           "method must be common, ceil or floor");
  const Value& value = *p[0];
  check_defined(value);
  MG_CHECK(value.is_number(), "type {} doesn't define __round__ method", value.type_name());
  const int64_t places = p.whole(1, 0);
  if (method == "common") return rounded(value, places);
  const Value scale =
      calculate(Operator::power, Value::integer(10), Value::integer(places), call.budget);
  const Value scaled = calculate(Operator::multiply, value, scale, call.budget);
  Value whole = positive(scaled);
  if (scaled.is_real()) {
    const double number = scaled.as_number();
    MG_CHECK(std::isfinite(number), "cannot convert float {} to integer",
             std::isnan(number) ? "NaN" : "infinity");
    whole = *truncated(method == "ceil" ? std::ceil(number) : std::floor(number));
  }
  return calculate(Operator::divide, whole, scale, call.budget);
}

Value filesizeformat(Call& call) {
  const Parameters p(call, "filesizeformat", {"value", "binary"}, 1);
  check_defined(*p[0]);
  const auto read = p[0]->is_text()     ? read_real(p[0]->bytes())
                    : p[0]->is_number() ? std::optional(p[0]->as_number())
                                        : std::nullopt;
  MG_CHECK(read.has_value(), "filesizeformat: a {} is not a number of bytes", p[0]->type_name());
  const bool binary = p.flag(1, false);
  const double base = binary ? 1024 : 1000;
  if (*read == 1) return Value::text("1 Byte");
  if (*read < base) return Value::text(fmt::format("{} Bytes", std::trunc(*read)));
  double unit = base * base;
  constexpr std::string_view prefixes = "kMGTPEZY";
  size_t i = 0;
  for (; i + 1 < prefixes.size() && *read >= unit; ++i) unit *= base;
  const char prefix = binary && i == 0 ? 'K' : prefixes[i];
  return Value::text(fmt::format("{:.1f} {}{}", base * *read / unit, prefix, binary ? "iB" : "B"));
}

constexpr std::array kNumberFilters = {
    NamedNative{"abs", absolute},       NamedNative{"filesizeformat", filesizeformat},
    NamedNative{"float", to_float},     NamedNative{"int", to_int},
    NamedNative{"round", round_number},
};

}  // namespace

std::span<const NamedNative> number_filters() { return kNumberFilters; }

}  // namespace megatron::jinja
