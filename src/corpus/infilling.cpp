#include "corpus/infilling.h"

#include <string>
#include <string_view>

#include "base/error.h"

namespace megatron::corpus {
namespace {

int64_t id_of(const Vocabulary& vocabulary, const std::string& token, std::string_view flag) {
  const auto id = vocabulary.tokenizer->token_id(token);
  MG_CHECK(id.has_value(),
           "--fim-data needs the token '{}' (--{}), which the tokenizer {} does not have: add it "
           "with --tokenizer-special-tokens, or name another with --{}",
           token, flag, vocabulary.directory, flag);
  return *id;
}

// The token that ends the documents of token files.
int64_t end_of_documents(const Vocabulary& vocabulary, const std::optional<std::string>& given) {
  MG_CHECK(vocabulary.eod >= 0,
           "--fim-data rearranges documents, but the tokenizer {} has no token for their end",
           vocabulary.directory);
  MG_CHECK(!given || vocabulary.tokenizer->token_id(*given) == vocabulary.eod,
           "--fim-eod-token is '{}', but the documents of this tokenizer end with '{}': leave the "
           "flag out, or tokenize the data with another tokenizer",
           *given, vocabulary.tokenizer->token(static_cast<int32_t>(vocabulary.eod)));
  return vocabulary.eod;
}

}  // namespace

std::shared_ptr<const data::Infilling> open_infilling(const settings::DataSettings& settings,
                                                      const Vocabulary& vocabulary) {
  const settings::InfillingSettings& s = settings.infilling;
  if (!s.fim_data) return nullptr;
  MG_CHECK(vocabulary.tokenizer != nullptr && !vocabulary.directory.empty(),
           "--fim-data cuts texts, but the tokenizer has no text: give --tokenizer-model");
  MG_CHECK(
      !settings.megatron_data_order,
      "--megatron-data-order makes the random draws of --fim-data depend on the order in which "
      "samples are read, so that a run depends on the ranks and on resuming: leave it out");
  MG_CHECK(s.split_sample.has_value() == s.fragment_rate.has_value(),
           "--fim-split-sample (the token between the fragments of a document) and "
           "--fim-fragment-rate (the share of them that is rearranged) belong together, but only "
           "--{} is given: give both or neither",
           s.split_sample ? "fim-split-sample" : "fim-fragment-rate");
  data::InfillingConfig config{
      .tokens = {.prefix = id_of(vocabulary, s.prefix_token, "fim-prefix-token"),
                 .middle = id_of(vocabulary, s.middle_token, "fim-middle-token"),
                 .suffix = id_of(vocabulary, s.suffix_token, "fim-suffix-token"),
                 .pad = id_of(vocabulary, s.pad_token, "fim-pad-token"),
                 .eod = end_of_documents(vocabulary, s.eod_token),
                 .split = {}},
      .rate = s.rate,
      .spm_rate = s.spm_rate,
      .fragment_rate = s.fragment_rate,
      .no_prefix = s.no_prefix.value_or("")};
  if (s.split_sample) config.tokens.split = id_of(vocabulary, *s.split_sample, "fim-split-sample");
  return std::make_shared<const data::Infilling>(vocabulary.tokenizer, std::move(config));
}

}  // namespace megatron::corpus
