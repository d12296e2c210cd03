// Keys that clients show as "Authorization: Bearer KEY".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::server {

class ApiKeys {
 public:
  // file: of --api-key-file, a key a line; blank lines and those that begin with # are none.
  // variable: the value of MEGATRON_API_KEY, one key more. Throws Error for a file without a key.
  static ApiKeys read(const std::optional<std::string>& file,
                      const std::optional<std::string>& variable);
  ApiKeys() = default;
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool empty() const { return keys_.empty(); }  // then every client is let in
  // header: of Authorization. The time that it takes says nothing of the keys but their lengths.
  bool allow(std::string_view header) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace megatron::server
