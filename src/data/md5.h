// MD5 (Rivest, RFC 1321): names cache files after what they hold. Not for security.
#pragma once

#include <string>
#include <string_view>

namespace megatron::data {

std::string md5_hex(std::string_view text);  // 32 lower-case hexadecimal digits

}  // namespace megatron::data
