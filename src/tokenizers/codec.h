// Interface for encoding text to ids and decoding ids to text, with one implementation per kind of
// tokenizer file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

struct EncodeOptions {
  bool add_special_tokens = false;  // adds the tokenizer's special tokens around the text
  // Recognizes special tokens in the text; false: they are plain text.
  bool find_special_tokens = true;
};

// Rule by which the bytes of tokens (append_bytes) are joined to a text.
enum class Joining : uint8_t {
  by_neighbors,        // a token's text depends on its neighbours
  plain,               // texts are concatenated
  first_space,         // ... without one leading space of the text
  leading_spaces,      // ... without all leading spaces of the text
  first_token_spaces,  // ... without all spaces of the first token (Metaspace)
};

// Two texts as one input, with the tokens that a tokenizer puts around and between them.
struct JoinedTexts {
  std::vector<int32_t> ids;
  std::vector<int32_t> types;    // token type id of each
  size_t first = 0, second = 0;  // indices at which the tokens of the texts begin
  size_t size() const { return ids.size(); }

  // The types for a model with so many of them: none if it has fewer than two. Throws Error naming
  // a type that the model has not.
  std::vector<int32_t> types_of_model(int64_t token_types) const;
};

// Const members may be called by many threads at once.
class Codec {
 public:
  virtual ~Codec() = default;

  // Appends the ids of `text` and, unless `offsets` is null, the range of code points that each
  // token represents ([0, 0) for special tokens added around the text). Throws Error for text that
  // it cannot encode (invalid UTF-8, unless accepts_invalid_utf8) and if it does not provide
  // offsets.
  virtual void encode(std::string_view text, const EncodeOptions& options,
                      std::vector<int32_t>& ids, std::vector<Range>* offsets) const = 0;
  virtual bool accepts_invalid_utf8() const { return false; }
  // Joins the tokens of two texts, each encoded without special tokens. By default one follows the
  // other, with the types 0 and 1. Throws Error if the tokenizer's file does not say how.
  virtual JoinedTexts join(std::span<const int32_t> first, std::span<const int32_t> second) const;

  // Skips ids without a token and, with skip_special, special tokens.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const = 0;
  // True if the text of ids is the lossy UTF-8 of their concatenated bytes.
  virtual bool is_bytewise() const { return false; }
  virtual Joining joining() const { return is_bytewise() ? Joining::plain : Joining::by_neighbors; }
  // Appends the bytes of a token that follows others; not called if joining() is by_neighbors.
  virtual void append_bytes(int32_t id, std::string& bytes) const;

  virtual int32_t size() const = 0;  // the largest id plus one
  virtual std::optional<int32_t> find(std::string_view token) const = 0;
  virtual bool contains(int32_t id) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  virtual std::string token(int32_t id) const = 0;  // as spelt in its file

  // The roles of tokens that the tokenizer's own file names: "eos", "bos", "pad", "eod", ...
  virtual std::optional<int32_t> role(std::string_view name) const;

  // "bos_token" and other names with the contents of their tokens, if the files next to the
  // tokenizer, which have these names, are part of it; otherwise null.
  virtual const std::vector<std::pair<std::string, std::string>>* named_tokens() const {
    return nullptr;
  }

  // A file that a directory needs so that the tokenizer can be opened again.
  struct File {
    std::string name, content;
  };
  virtual std::vector<File> files() const = 0;
  // Name of the transformers class that opens these files; "" for none.
  virtual std::string hugging_face_class() const { return "PreTrainedTokenizerFast"; }
};

// A codec that runs the components of tokenizer.json in order.
struct Definition;
std::unique_ptr<Codec> make_pipeline(Definition definition);

}  // namespace megatron::tokenizers
