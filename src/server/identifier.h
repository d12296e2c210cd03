#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace megatron::server {

// Returns the prefix followed by 24 random hexadecimal digits.
std::string random_identifier(std::string_view prefix);
// Seed of a request that gives none.
uint64_t random_seed();

}  // namespace megatron::server
