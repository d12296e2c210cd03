// Determines the kind of a tokenizer file, and which file of a directory is the tokenizer.
#pragma once

#include <memory>
#include <string>

#include "tokenizers/codec.h"

namespace megatron::tokenizers {

struct TokenizerFile {
  enum class Kind {
    hugging_face,    // tokenizer.json
    gpt2,            // vocab.json next to merges.txt
    sentence_piece,  // *.model
    tik_token,       // lines "<base64> <rank>"; Llama 3's tokenizer.model is one
    tik_token_list,  // Megatron-LM's JSON list
    bert             // vocab.txt
  };
  Kind kind = Kind::hugging_face;
  std::string path;
  std::string content;

  std::string directory() const;
};

// path: a file, whose kind is determined by its content, or a directory, in which the first of
// these is used: tokenizer.json; vocab.json and merges.txt; tokenizer.model, spiece.model or the
// only *.model; the only *.tiktoken; vocab.txt; the only *.json that is a TikToken list. Throws
// Error that says what was found.
TokenizerFile read_tokenizer_file(const std::string& path);
// True if `directory` has a tokenizer file. Does not throw for a missing one.
bool has_tokenizer_file(const std::string& directory);

// Makes the file's codec. It also uses the files next to it: merges.txt, tiktoken_config.json
// (pat_str, special_tokens), and those that transformers reads (transformers/directory.h). A
// SentencePiece model without such files is used as the SentencePiece library does, and puts its
// beginning-of-sequence token before texts that get special tokens. Throws Error naming the file.
std::unique_ptr<Codec> make_codec(const TokenizerFile& file);

}  // namespace megatron::tokenizers
