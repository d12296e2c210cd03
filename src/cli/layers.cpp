#include "cli/layers.h"

#include <fmt/core.h>

#include <utility>

namespace megatron::cli {

void Layers::add(FunctionRef<void()> set) {
  std::vector<Field>& all = fields_.all();
  std::vector<bool> before;
  for (Field& field : all) before.push_back(std::exchange(field.given, false));
  set();
  for (const Field& field : all) {
    if (!field.given || (field.is_switch && field.get() == "false")) continue;
    for (const Field::Replaced& other : field.replaces)
      if (other.when(field)) give_way(other.name, field, before);
  }
  for (size_t i = 0; i < all.size(); ++i) all[i].given = all[i].given || before[i];
}

void Layers::give_way(const std::string& name, const Field& to, std::vector<bool>& before) {
  Field& field = *fields_.find(name);
  const auto at = static_cast<size_t>(&field - &fields_.all()[0]);
  if (field.given || !before[at]) return;
  const std::string value = field.get(), where = field.where;
  field.unset();
  before[at] = false;
  if (field.get() == value) return;
  notes_.push_back(field.is_switch
                       ? fmt::format("{}: {} gives way to --{}", where, name, to.name)
                       : fmt::format("{}: {} {} gives way to --{}", where, name, value, to.name));
}

}  // namespace megatron::cli
