// The adapters (LoRA) of a served model, by their names in requests.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/text_model.h"

namespace megatron::server {

// Loads the adapter in a directory for the model being served. Throws Error if it does not fit.
using LoadAdapter =
    std::function<std::shared_ptr<const inference::Adapter>(const std::string& directory)>;

struct AdapterModule {
  std::string name, directory;
  std::string parent;  // the base model's name in answers; "": that of the model being served
};
// Reads NAME=DIR, or a JSON object with name, path and base_model_name. Throws Error naming what is
// wrong with it.
AdapterModule read_adapter_module(const std::string& text);

struct AdapterOptions {
  LoadAdapter load;                         // null: requests cannot choose adapters
  std::vector<AdapterModule> modules = {};  // loaded at start
  int64_t most = 8;                         // loaded at once
};

// Thread-safe. A text keeps the adapter that it began with, also once the name is another one's.
class Adapters {
 public:
  // base: must outlive it. Loads options.modules.
  Adapters(const TextModel& base, AdapterOptions options);

  // The model under an adapter's name; null: there is none.
  std::shared_ptr<const TextModel> find(std::string_view name) const;
  std::vector<std::shared_ptr<const TextModel>> all() const;  // by name
  bool empty() const;

  // Throws ApiError: 404 if adapters are not enabled, 400 if the name is in use (in_place: by the
  // model itself) or too many are loaded; and what LoadAdapter throws.
  void load(const AdapterModule& module, bool in_place);
  void unload(const std::string& name);  // throws ApiError 404 without an adapter of this name

 private:
  void require_enabled() const;
  void require_free(const std::string& name, bool in_place) const;

  const TextModel& base_;
  const AdapterOptions options_;
  std::mutex loading_;

  mutable std::mutex mutex_;  // guards the member below
  std::map<std::string, std::shared_ptr<const TextModel>, std::less<>> by_name_;
};

}  // namespace megatron::server
