// MD5 (Rivest, RFC 1321), to check that a corpus is the one of a stored curve. Not for security.
#pragma once

#include <string>
#include <string_view>

namespace megatron {

std::string md5_hex(std::string_view text);  // 32 lower-case hexadecimal digits

}  // namespace megatron
