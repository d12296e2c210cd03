// Base64 (RFC 4648, with padding), the encoding of bytes in TikToken files and precompiled
// character maps.
#pragma once

#include <string>
#include <string_view>

namespace megatron::tokenizers {

// Appends the decoded bytes of `text`; returns false if it is malformed.
bool append_base64(std::string_view text, std::string& bytes);
std::string to_base64(std::string_view bytes);

}  // namespace megatron::tokenizers
