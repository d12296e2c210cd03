#include "server/api_keys.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/files.h"

namespace megatron::server {
namespace {

bool equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference |=
        static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]));
  return difference == 0;
}

}  // namespace

ApiKeys ApiKeys::read(const std::optional<std::string>& file,
                      const std::optional<std::string>& variable) {
  ApiKeys keys;
  if (file) {
    constexpr size_t kMaxBytes = 1 << 20;
    std::istringstream lines(read_file(*file, kMaxBytes));
    for (std::string line; std::getline(lines, line);) {
      line.erase(line.find_last_not_of(" \t\r") + 1);
      line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
      if (!line.empty() && !line.starts_with('#')) keys.keys_.push_back(line);
    }
    MG_CHECK(!keys.empty(), "--api-key-file {} contains no key; write one per line", *file);
  }
  if (variable && !variable->empty()) keys.keys_.push_back(*variable);
  return keys;
}

bool ApiKeys::allow(std::string_view header) const {
  if (empty()) return true;
  constexpr std::string_view kScheme = "bearer ";
  const bool bearer =
      header.size() > kScheme.size() &&
      std::ranges::equal(header.substr(0, kScheme.size()), kScheme, [](char a, char b) {
        return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 'a' - 'A') : a) == b;
      });
  if (!bearer) return false;
  bool found = false;
  for (const std::string& key : keys_) found |= equal(key, header.substr(kScheme.size()));
  return found;
}

}  // namespace megatron::server
