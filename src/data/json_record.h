// One line of a file of JSON lines, read in the same way as by Python's json.loads.
//
// Beyond the JSON standard these are accepted: numbers of any size (infinite if they exceed a
// double), NaN, Infinity and -Infinity, repeated keys, of which the last counts, and escapes of
// lone surrogates: \ud83d without the second half of a pair. Data sets crawled from the web contain
// all of them, mostly under keys that nobody reads. A lone surrogate becomes three bytes that are
// not UTF-8, which check_text() finds when a text is read.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "base/json.h"

namespace megatron::data {

// Throws Error naming `origin` and the position if json.loads would also refuse the line.
Json parse_record(std::string_view line, std::string_view origin);

// The same without a message; `end`: offset up to which the line could be read.
struct ReadRecord {
  std::optional<Json> value;
  size_t end = 0;
};
ReadRecord read_record(std::string_view line);

// Throws Error naming `what` (such as the text's key) and the escape if the text holds a lone
// surrogate.
void check_text(std::string_view text, std::string_view what);

}  // namespace megatron::data
