// Name, for error messages, of the part of a template that failed.
#pragma once

#include <string>

#include "jinja/ast.h"

namespace megatron::jinja {

// "filter 'int'", "operator +", "{% for %}". The expression is one within the statement; each may
// be null.
std::string construct_of(const Statement* statement, const Expression* expression);

}  // namespace megatron::jinja
