// Characters of troff: named glyphs, and the markers that stand for what has no character of its
// own while a page is read.
#pragma once

#include <string>
#include <string_view>

namespace megatron::data::troff {

inline constexpr char kHardSpace = '\x01';  // a space at which no line ends
inline constexpr char kJoin = '\x02';       // \c: the next text follows without a space
inline constexpr char kZero =
    '\x03';  // \&: nothing, but what follows it is no macro and no delimiter

// UTF-8 of a glyph name: "bu", "em", "'e", "u00E9". Empty when it is not known.
std::string glyph(std::string_view name);

int display_width(std::string_view text);  // code points; a hard space counts, other markers do not
std::string without_markers(std::string_view text);

}  // namespace megatron::data::troff
