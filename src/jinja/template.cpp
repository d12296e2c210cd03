#include "jinja/template.h"

#include "jinja/interpreter.h"
#include "jinja/parser.h"

namespace megatron::jinja {

struct Template::Impl {
  std::string name;
  Parsed parsed;
};

Template::Template(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Template Template::parse(std::string_view source, std::string name) {
  Parsed parsed = jinja::parse(source, name);
  return Template(std::make_unique<const Impl>(Impl{std::move(name), std::move(parsed)}));
}

bool Template::reads(const std::string& variable) const {
  return impl_->parsed.names.count(variable) > 0;
}

Rendering Template::render(const Variables& variables, const Limits& limits) const {
  Interpreter interpreter(impl_->name, variables, limits);
  return interpreter.render(impl_->parsed.body);
}

}  // namespace megatron::jinja
