// The values of "format" in JSON schemas, as patterns.
#pragma once

#include <string>
#include <string_view>

namespace megatron::inference {

// Returns the pattern that a whole string of the format matches, or "" for an unknown format. Known
// formats: those of RFC 3339 (date-time, time and date, with years above 0 and without leap
// seconds; duration), email, hostname (up to 8 labels of up to 30 characters), ipv4, ipv6 (RFC
// 4291), uri (RFC 3986) and uuid.
std::string format_pattern(std::string_view format);
std::string known_formats();  // for messages

}  // namespace megatron::inference
