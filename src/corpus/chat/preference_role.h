// The part that a token's log-probability has in a loss over preferences.
#pragma once

namespace megatron::corpus {

// HostBatch::targets of a data set of preferences. A chosen and a rejected completion, each after
// its own copy of the prompt, are two documents of one row, one after the other. `none` for
// padding and for prompts that the loss does not read.
enum class PreferenceRole {
  none,
  chosen,           // a token of the chosen (or desirable) completion
  rejected,         // a token of the rejected (or undesirable) completion
  chosen_prompt,    // a token of the prompt before a chosen completion
  rejected_prompt,  // a token of the prompt before a rejected completion
  mismatched        // a token of another example's completion after this prompt (KTO's KL term)
};

}  // namespace megatron::corpus
