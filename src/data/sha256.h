// SHA-256 (FIPS 180-4), as other systems' test vectors use it.
#pragma once

#include <string>
#include <string_view>

namespace megatron::data {

// Digest of the bytes, as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace megatron::data
