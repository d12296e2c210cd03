// Converts SentencePiece models to Hugging Face's pipeline of components, as transformers (5.24)
// does.
#pragma once

#include <string>
#include <vector>

#include "tokenizers/definition.h"
#include "tokenizers/sentence_piece/sentence_piece_model.h"

namespace megatron::tokenizers {

// Returns the pieces as a BPE vocabulary without other components, for classes that create their
// own. A piece's merges are all ways to split it in two; pieces with smaller ids come first.
Definition piece_vocabulary(const SentencePieceModel& model);

// Returns the model with its own settings, so that it encodes like the SentencePiece library.
// Pieces of a BPE model merge by score, and only normal pieces do; user-defined pieces are split
// off first. names: names of the pieces by id. prefix_everywhere: the space before a text is also
// put before text that follows an added token.
Definition pipeline_of(const SentencePieceModel& model, const std::vector<std::string>& names,
                       bool prefix_everywhere);

}  // namespace megatron::tokenizers
