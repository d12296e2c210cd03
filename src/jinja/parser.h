// Template text to a tree. Throws TemplateError naming the line.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "jinja/ast.h"

namespace megatron::jinja {

struct Parsed {
  Body body;
  std::set<std::string> names;  // of all variables that are read somewhere
};

Parsed parse(std::string_view source, const std::string& name);

}  // namespace megatron::jinja
