// Where variables live. A block with a scope of its own (loop, macro, with, ...) sees those around
// it and sets only its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace megatron::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
      for (const auto& [key, value] : scope->variables)
        if (key == name) return &value;
    }
    return nullptr;
  }

  void set(std::string_view name, Value value) {
    for (auto& [key, old] : variables) {
      if (key != name) continue;
      old = std::move(value);
      return;
    }
    variables.emplace_back(name, std::move(value));
  }
};

}  // namespace megatron::jinja
