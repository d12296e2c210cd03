// MD5 (Rivest, RFC 1321): shows whether a corpus is the one that a stored curve belongs to. Not for
// security.
#pragma once

#include <string>
#include <string_view>

namespace megatron {

std::string md5_hex(std::string_view text);  // 32 lower-case hexadecimal digits

}  // namespace megatron
