// TikToken files: byte-pair encoding over bytes, in which the rank of a merge is that of the
// resulting bytes, after a regular expression has split the text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizers/codec.h"

namespace megatron::tokenizers {

// Returns the expression that a value of Megatron-LM's --tiktoken-pattern names.
std::optional<std::string> tik_token_pattern(std::string_view name);  // "v1", "v2"

// Megatron-LM's form: special tokens take the first ids, followed by the ids of the file.
struct TikTokenOptions {
  std::string pattern = "v2";  // a name known to tik_token_pattern
  int64_t special_count = 1000;
  // The first special tokens; the others are <SPECIAL_i>. <unk>, <s>, </s>, <mask>, <pad>, <cls>
  // and <sep> must be among them.
  std::vector<std::string> special_tokens = {"<unk>", "<s>",   "</s>", "<mask>",
                                             "<pad>", "<cls>", "<sep>"};
  // Number of special tokens and tokens of the file; the file's surplus tokens are dropped.
  int64_t vocabulary_size = 131072;
};

// Reads a JSON list of {"rank": 0, "token_bytes": base64, "token_str": ...} in order, the 256 bytes
// first. Throws Error (without the file's name) naming the entry and the problem.
std::unique_ptr<Codec> make_tik_token_list(std::string_view json, const TikTokenOptions& options);

// Lines "<base64> <rank>". settings: {"pat_str": expression, "special_tokens": {name: id}}, and
// maybe "bos_token", "eos_token", "pad_token". Throws Error naming the line and what is wrong.
std::unique_ptr<Codec> make_tik_token(std::string_view lines, const Json& settings);

// True if a file's first line has the base64 form.
bool begins_as_tik_token(std::string_view text);

}  // namespace megatron::tokenizers
