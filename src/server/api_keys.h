// API keys, which clients send as "Authorization: Bearer KEY".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::server {

class ApiKeys {
 public:
  // file: path from --api-key-file, with one key per line; blank lines and lines that begin with #
  // are ignored. variable: the value of MEGATRON_API_KEY, one additional key. Throws Error if the
  // file has no key.
  static ApiKeys read(const std::optional<std::string>& file,
                      const std::optional<std::string>& variable);
  ApiKeys() = default;
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool empty() const { return keys_.empty(); }  // if empty, every client is accepted
  // header: value of the Authorization header. The running time reveals nothing about the keys
  // except their lengths.
  bool allow(std::string_view header) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace megatron::server
