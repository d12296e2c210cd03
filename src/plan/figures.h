// Formats a plan's numbers for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace megatron::plan {

inline constexpr const char* kUnknown = "n/a";

std::string count_text(int64_t count);     // "768", "1.54k", "7.09M", "124M", "175B"
std::string bytes_text(double bytes);      // "0 B", "512 B", "1.54 kB", "498 MB"
std::string flops_text(double flops);      // "817 GFLOP"
std::string seconds_text(double seconds);  // "84 ms", "2.31 s", "3m05s", "2h07m", "18d09h"
std::string amount_text(int64_t count, const std::string& one,
                        const std::string& plural = "s");  // "1 rank", "2 ranks"
std::string share_text(double share);  // "4.2%"; "<0.1%" for smaller positive shares; "114 x"
std::string text_or_unknown(const std::optional<double>& seconds);

// Returns the columns of UTF-8 text, whose letters must be one column wide.
size_t columns(const std::string& text);
std::string left(const std::string& text, size_t width);   // pads on the right; never truncates
std::string right(const std::string& text, size_t width);  // pads on the left

}  // namespace megatron::plan
