#include "server/adapters.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "server/api_error.h"

namespace megatron::server {

AdapterModule read_adapter_module(const std::string& text) {
  constexpr std::string_view kForms =
      R"(it takes NAME=DIR or {"name": "NAME", "path": "DIR", "base_model_name": "BASE"})";
  AdapterModule module;
  if (!text.starts_with('{')) {
    const size_t at = text.find('=');
    MG_CHECK(at != text.npos && at > 0 && at + 1 < text.size(), "--lora-modules has '{}'; {}", text,
             kForms);
    return {.name = text.substr(0, at), .directory = text.substr(at + 1)};
  }
  const Json object = Json::parse(text, "--lora-modules");
  for (const auto& [key, value] : object.as_object()) {
    std::string* const member = key == "name"              ? &module.name
                                : key == "path"            ? &module.directory
                                : key == "base_model_name" ? &module.parent
                                                           : nullptr;
    MG_CHECK(member != nullptr, "--lora-modules has the key '{}' in {}; {}", key, text, kForms);
    if (value.is_null() && member == &module.parent) continue;
    MG_CHECK(value.is_string(), "--lora-modules has {} for {} in {}; {}", value.dump(), key, text,
             kForms);
    *member = value.as_string();
  }
  MG_CHECK(!module.name.empty() && !module.directory.empty(),
           "--lora-modules has {} without {}; {}", text, module.name.empty() ? "name" : "path",
           kForms);
  return module;
}

Adapters::Adapters(const TextModel& base, AdapterOptions options)
    : base_(base), options_(std::move(options)) {
  for (const AdapterModule& module : options_.modules) load(module, false);
}

std::shared_ptr<const TextModel> Adapters::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const TextModel>> Adapters::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const TextModel>> models;
  for (const auto& [name, model] : by_name_) models.push_back(model);
  return models;
}

bool Adapters::empty() const {
  const std::lock_guard lock(mutex_);
  return by_name_.empty();
}

void Adapters::require_enabled() const {
  if (options_.load) return;
  throw ApiError(404, "invalid_request_error",
                 "this server has no adapters by name; start it with --enable-lora");
}

void Adapters::require_free(const std::string& name, bool in_place) const {
  if (name.empty())
    throw invalid_request("lora_name is empty; give the adapter a name", "lora_name");
  if (name == base_.name())
    throw invalid_request(fmt::format("'{}' is the name of the model itself", name), "lora_name");
  const std::lock_guard lock(mutex_);
  const bool used = by_name_.contains(name);
  if (used && !in_place)
    throw invalid_request(
        fmt::format("the adapter '{}' is loaded already; unload it, or set load_inplace to true to "
                    "replace it",
                    name),
        "lora_name");
  if (!used && std::ssize(by_name_) >= options_.most)
    throw invalid_request(
        fmt::format("{} adapters are loaded, the most of this server (--max-loras); unload one",
                    by_name_.size()),
        "lora_name");
}

void Adapters::load(const AdapterModule& module, bool in_place) {
  const std::string& name = module.name;
  require_enabled();
  const std::lock_guard one(loading_);
  require_free(name, in_place);
  const std::shared_ptr<const inference::Adapter> adapter = options_.load(module.directory);
  auto model = std::make_shared<const TextModel>(
      base_.with_adapter(name, module.parent.empty() ? base_.name() : module.parent, adapter));
  {
    const std::lock_guard lock(mutex_);
    by_name_[name] = std::move(model);
  }
  log::info("the adapter '{}' is loaded ({} bytes)", name, adapter->bytes());
}

void Adapters::unload(const std::string& name) {
  require_enabled();
  const std::lock_guard lock(mutex_);
  if (by_name_.erase(name) > 0) return;
  throw ApiError(404, "invalid_request_error",
                 fmt::format("the adapter '{}' cannot be found", name), "lora_name",
                 "model_not_found");
}

}  // namespace megatron::server
