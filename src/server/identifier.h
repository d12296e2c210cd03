#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace megatron::server {

// The prefix and 24 random hexadecimal digits.
std::string random_identifier(std::string_view prefix);
// For a request that gives no seed.
uint64_t random_seed();

}  // namespace megatron::server
