#include "inference/fill_mask.h"

#include <cmath>

#include "base/error.h"

namespace megatron::inference {

void require_masked_model(const models::Model& model, std::string_view purpose) {
  const models::ModelFacts& facts = model->facts();
  MG_CHECK(facts.two_sided,
           "the model is {} ({}), which predicts next tokens and no masked ones, and {} "
           "needs an encoder with a masked language model's head (BERT and the like); megatron "
           "generate continues texts",
           facts.encoder_layers > 0 ? "an encoder-decoder" : "a decoder", facts.family, purpose);
  MG_CHECK(!facts.headless,
           "the model ({}) has no head, as its class in config.json says, and {} needs one with a "
           "masked language model's head; megatron serve gives its embeddings (POST "
           "/v1/embeddings)",
           facts.family, purpose);
  MG_CHECK(facts.predicts_masked,
           "the model ({}) has a head of {} scores, and {} needs one with a masked language "
           "model's head; megatron serve gives the scores of texts (POST /v1/classify, /pooling)",
           facts.family, facts.score_labels, purpose);
}

int32_t mask_token(const tokenizers::Tokenizer& tokenizer) {
  MG_CHECK(tokenizer.mask().has_value(),
           "the tokenizer has no mask token (mask_token, such as [MASK]); use the encoder's own "
           "(--tokenizer-model)");
  return *tokenizer.mask();
}

Request fill_request(const tokenizers::Tokenizer& tokenizer, std::span<const int32_t> tokens,
                     int64_t top, uint64_t number) {
  const int32_t mask = mask_token(tokenizer);
  Request request{.number = number,
                  .prompt = {tokens.begin(), tokens.end()},
                  .max_tokens = 0,
                  .prompt_alternatives = top};
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] == mask) request.masked.push_back({static_cast<int32_t>(i), mask});
  MG_CHECK(!request.masked.empty(),
           "the text has no mask: write {} in the place of the token to predict",
           tokenizer.token(mask));
  return request;
}

std::vector<std::vector<Filling>> fillings(const tokenizers::Tokenizer& tokenizer,
                                           std::span<const int32_t> tokens,
                                           std::span<const PromptAlternatives> alternatives) {
  const int32_t mask = mask_token(tokenizer);
  std::vector<int32_t> text(tokens.begin(), tokens.end());
  std::vector<std::vector<Filling>> of_masks;
  for (size_t i = 0; i < text.size() && of_masks.size() < alternatives.size(); ++i) {
    if (tokens[i] != mask) continue;
    std::vector<Filling>& filled = of_masks.emplace_back();
    for (const Draw& draw : alternatives[of_masks.size() - 1].likely) {
      text[i] = draw.token;
      filled.push_back({.score = std::exp(draw.log_probability),
                        .token = draw.token,
                        .text = tokenizer.decode(std::span(&draw.token, 1)),
                        .sequence = tokenizer.decode(text, alternatives.size() == 1)});
    }
    text[i] = mask;
  }
  return of_masks;
}

Json fillings_json(const std::vector<std::vector<Filling>>& of_masks) {
  Json::Array all;
  for (const std::vector<Filling>& filled : of_masks) {
    Json::Array list;
    for (const Filling& f : filled)
      list.emplace_back(Json::Object{{"score", f.score},
                                     {"token", int64_t{f.token}},
                                     {"token_str", f.text},
                                     {"sequence", f.sequence}});
    all.emplace_back(std::move(list));
  }
  return of_masks.size() == 1 ? all[0] : Json(std::move(all));
}

}  // namespace megatron::inference
