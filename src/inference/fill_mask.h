// Fills the masks in texts with the tokens that a masked language model predicts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "inference/request.h"
#include "models/model.h"
#include "tokenizers/tokenizer.h"

namespace megatron::inference {

// Throws Error naming the model and what to use instead, unless it predicts masked tokens.
void require_masked_model(const models::Model& model, std::string_view purpose);

// The mask token of a tokenizer. Throws Error if it has none.
int32_t mask_token(const tokenizers::Tokenizer& tokenizer);

// The request for the `top` most likely tokens at each mask of a text. Throws Error if the text has
// no mask.
Request fill_request(const tokenizers::Tokenizer& tokenizer, std::span<const int32_t> tokens,
                     int64_t top, uint64_t number = 0);

// Number of tokens given for each mask by default.
constexpr int64_t kUsualFillings = 5;

// A token in the place of a mask, and its probability.
struct Filling {
  double score = 0;
  int32_t token = 0;
  std::string text;      // of the token
  std::string sequence;  // the whole text with the token in the mask's place
};

// By mask, most likely first. Texts of one mask are without special tokens, those of several have
// them, and with them the other masks. alternatives: the request's result.
std::vector<std::vector<Filling>> fillings(const tokenizers::Tokenizer& tokenizer,
                                           std::span<const int32_t> tokens,
                                           std::span<const PromptAlternatives> alternatives);

// A list of objects with score, token, token_str and sequence; of several masks a list of such
// lists.
Json fillings_json(const std::vector<std::vector<Filling>>& of_masks);

}  // namespace megatron::inference
