#include "server/identifier.h"

#include <fmt/core.h>

#include <random>

namespace megatron::server {

std::string random_identifier(std::string_view prefix) {
  std::random_device device;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, device(), device(), device());
}

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace megatron::server
