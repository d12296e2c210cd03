// Base64 (RFC 4648, with padding), in which TikToken's files and precompiled character maps hold
// bytes.
#pragma once

#include <string>
#include <string_view>

namespace megatron::tokenizers {

// Appends the bytes that `text` stands for; false where it is malformed.
bool append_base64(std::string_view text, std::string& bytes);
std::string to_base64(std::string_view bytes);

}  // namespace megatron::tokenizers
