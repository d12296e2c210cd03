// SentencePiece models as Hugging Face's pipeline of components, as transformers (5.24) reads them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/definition.h"
#include "tokenizers/sentence_piece/sentence_piece_model.h"

namespace megatron::tokenizers {

// The pieces as a vocabulary of BPE without other components, for classes that make their own. A
// piece's merges are all ways to divide it in two; pieces with smaller ids come first.
Definition piece_vocabulary(const SentencePieceModel& model);

// The model with its own settings, so that it encodes like the SentencePiece library. Pieces of a
// BPE model merge by score, and only normal ones do; user-defined pieces are cut out first.
// names: names of the pieces by id. prefix_everywhere: the space before a text is put before what
// follows an added token, too.
Definition pipeline_of(const SentencePieceModel& model, const std::vector<std::string>& names,
                       bool prefix_everywhere);

}  // namespace megatron::tokenizers
