// Python's operators on values. Operations that Python refuses throw Error in its words; an
// undefined operand throws Error with its reason.
#pragma once

#include <string_view>

#include "jinja/budget.h"
#include "jinja/value.h"

namespace megatron::jinja {

enum class Operator { add, subtract, multiply, divide, floor_divide, modulo, power };

Value calculate(Operator op, const Value& left, const Value& right, Budget& budget);
Value negative(const Value& value);
Value positive(const Value& value);
std::string_view sign_of(Operator op);  // its name in messages

enum class Order { less, less_equal, greater, greater_equal, equal, not_equal, in, not_in };
bool compared(Order order, const Value& left, const Value& right, Budget& budget);
bool equal(const Value& left, const Value& right, Budget& budget);
void check_hashable(const Value& key, Budget& budget);
// Adds a member to a dict under construction; an existing key gets the new value.
void insert_member(std::vector<std::pair<Value, Value>>& members, const Value& key, Value value,
                   Budget& budget);

// x.name and x[key], looked up as in jinja2: a missing member is undefined.
Value attribute_of(const Value& value, std::string_view name, Budget& budget);
Value element_of(const Value& value, const Value& key, Budget& budget);
// x[begin:end:step]; an omitted part is none.
Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step,
               Budget& budget);

// Returns the elements that a loop over the value visits; an iterator is consumed.
Values elements_of(const Value& value, Budget& budget);
Value make_range(int64_t begin, int64_t end, int64_t step, Budget& budget);
int64_t length_of(const Value& value);
void check_defined(const Value& value);

}  // namespace megatron::jinja
