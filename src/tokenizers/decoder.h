// Decoders convert tokens back to text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizers/codec.h"

namespace megatron::tokenizers {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Runs one step, which converts tokens to parts of the text (possibly fewer) for the next step.
  virtual void run(std::vector<std::string>& parts) const = 0;
  // True if the text is the lossy UTF-8 of all tokens' concatenated bytes.
  virtual bool is_bytewise() const { return false; }
  virtual Joining joining() const { return Joining::by_neighbors; }
  // Appends the bytes of a token that follows others; not called if joining() is by_neighbors.
  virtual void append_bytes(std::string_view token, std::string& bytes) const;

  std::string decode(const std::vector<std::string_view>& tokens) const;
};

// From "decoder" of tokenizer.json: null (tokens joined by a space), ByteLevel, WordPiece,
// Metaspace, BPEDecoder, ByteFallback, Fuse, Strip, Replace, CTC, Sequence. Throws Error naming any
// other type.
std::unique_ptr<Decoder> make_decoder(const Json& settings);

}  // namespace megatron::tokenizers
