// POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them.
#include "server/endpoints.h"
#include "server/parameters.h"

namespace megatron::server {
namespace {

std::string required(const Parameters& p, std::string_view name) {
  const std::optional<std::string> value = p.text(name);
  if (!value || value->empty()) p.fail(name, "is missing");
  if (value->find('\0') != value->npos) p.fail(name, "contains a zero byte");
  return *value;
}

HttpAnswer success(const std::string& name, std::string_view what) {
  return {.content_type = "text/plain; charset=utf-8",
          .body = fmt::format("Success: LoRA adapter '{}' {} successfully.", name, what)};
}

}  // namespace

HttpAnswer load_adapter(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  const std::string name = required(p, "lora_name"), path = required(p, "lora_path");
  api.adapters.load({.name = name, .directory = path}, p.boolean("load_inplace").value_or(false));
  return success(name, "added");
}

HttpAnswer unload_adapter(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const std::string name = required(Parameters(body), "lora_name");
  api.adapters.unload(name);
  return success(name, "removed");
}

}  // namespace megatron::server
