#include "data/bert_tokens.h"

#include <array>
#include <string>
#include <utility>

#include "base/error.h"

namespace megatron::data {

BertTokens bert_tokens(const tokenizers::Tokenizer& tokenizer) {
  const std::array<std::pair<const char*, std::optional<int32_t>>, 4> needed = {
      {{"cls", tokenizer.cls()},
       {"sep", tokenizer.sep()},
       {"mask", tokenizer.mask()},
       {"pad", tokenizer.pad()}}};
  std::string missing;
  for (const auto& [name, id] : needed)
    if (!id) missing += fmt::format("{}{}_token", missing.empty() ? "" : ", ", name);
  MG_CHECK(missing.empty(),
           "BERT's samples need the special tokens [CLS], [SEP], [MASK] and [PAD], but the "
           "tokenizer has no {}: name it in tokenizer_config.json, or use a BERT tokenizer "
           "(--tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt)",
           missing);
  BertTokens tokens{.cls = *tokenizer.cls(),
                    .sep = *tokenizer.sep(),
                    .mask = *tokenizer.mask(),
                    .pad = *tokenizer.pad(),
                    .bos = {},
                    .eos = {},
                    .continues = {},
                    .special = {},
                    .present = {}};
  if (const auto bos = tokenizer.bos()) tokens.bos = *bos;
  if (const auto eos = tokenizer.eos()) tokens.eos = *eos;
  const auto size = static_cast<size_t>(tokenizer.vocabulary_size());
  tokens.continues.resize(size);
  tokens.special.resize(size);
  tokens.present.resize(size);
  for (size_t i = 0; i < size; ++i) {
    const auto id = static_cast<int32_t>(i);
    if (!tokenizer.codec().contains(id)) continue;
    tokens.present[i] = true;
    tokens.continues[i] = tokenizer.token(id).starts_with("##");
    tokens.special[i] = tokenizer.is_special(id);
  }
  for (const auto& [name, id] : needed) tokens.special[static_cast<size_t>(*id)] = true;
  return tokens;
}

}  // namespace megatron::data
