// Reads YAML files that people write.
#pragma once

#include <yaml-cpp/yaml.h>

#include <optional>
#include <string>

namespace megatron::settings {

// Returns the root of a file's content, which is one document; nothing if there is none. path: its
// name in messages. Throws Error naming file and line for what is not valid YAML or UTF-8, for
// a quote that is not closed, and for more than one document. Reading values of the node may throw
// YAML::Exception.
std::optional<YAML::Node> load_yaml(std::string content, const std::string& path);

}  // namespace megatron::settings
