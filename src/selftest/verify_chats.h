// Compares chats as tokens with loss marks, and packed rows, with those of another system.
#pragma once

#include <string>
#include <vector>

#include "selftest/report.h"
#include "selftest/verify.h"

namespace megatron::selftest {

// directory: a tokenizer with a chat template and expected.json, a list with one object for each
// conversation of ../conversations.json:
//   rendered, generation_prompt   the text, and what it gains with a generation prompt
//   spans                         the assistant's text in it: code points [begin, end)
//   input_ids, assistant_mask     its tokens, and 1 for those that carry loss
//   truncated                     the mask of cut texts: {max_length, side, assistant_mask}
//   trl                           labels as TRL prepares them: {max_length, truncation_mode, and
//                                 labels, dropped or error}; with completion_begins, of a prompt
//                                 (all but the last message) and its completion
bool has_chats(const std::string& directory);
Report verify_chats(const std::string& directory);

// directory: packing.json, a list of {lengths, capacity, bfd, bfd_split, wrapped}: the rows, each
// as (document, begin, length) of its parts.
bool has_packing(const std::string& directory);
Report verify_packing(const std::string& directory);

// directory: packed.safetensors, rows of documents through the model ../models/policy:
//   input_ids, labels, position_ids [T]   documents end to end, each with positions from 0
//   log_probs [T-1]                       of each next token with a label; else 0
//   loss, grad.NAME                       mean loss, and gradients of the parameters
//   loss_dft, grad_dft.NAME               the same with each term times its probability
// One report per device.
std::vector<Report> verify_packed(const std::string& directory, const VerifyOptions& options);

}  // namespace megatron::selftest
