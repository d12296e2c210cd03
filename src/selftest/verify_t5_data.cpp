#include "selftest/verify_t5_data.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/sha256.h"
#include "data/t5_dataset.h"
#include "selftest/sentence_case.h"

namespace megatron::selftest {
namespace {

// Megatron-LM's masks of attention, which are made of padded tokens: those with id 0 are neither
// attended to nor attend.
class AttentionMask {
 public:
  using Tokens = std::vector<int64_t>;

  // causal: no query sees a later key.
  AttentionMask(const Tokens& queries, const Tokens& keys, bool causal)
      : shape_{1, 1, std::ssize(queries), std::ssize(keys)} {
    for (size_t q = 0; q < queries.size(); ++q)
      for (size_t k = 0; k < keys.size(); ++k)
        masked_.push_back(queries[q] < 1 || keys[k] < 1 || (causal && k > q) ? 1 : 0);
  }

  std::string difference(const Json& expected) const {
    const std::string shape = first_difference(shape_, integers_of(expected["shape"]));
    if (!shape.empty()) return "shape: " + shape;
    const std::string count = difference_of(std::ranges::count(masked_, 1), expected["masked"]);
    if (!count.empty()) return "number of masked elements: " + count;
    return data::sha256_hex(masked_) == expected["sha256"].as_string() ? "" : "another SHA-256";
  }

 private:
  std::vector<int64_t> shape_;
  std::string masked_;
};

// mask: {"ones": n, "prefix": true}, or its elements.
std::string mask_difference(int64_t length, const Json& mask) {
  if (mask.is_array()) {
    std::vector<int64_t> own(mask.as_array().size(), 0);
    std::fill_n(own.begin(), std::min(length, std::ssize(own)), 1);
    return first_difference(own, integers_of(mask));
  }
  return mask["prefix"].as_bool() ? difference_of(length, mask["ones"]) : "ones do not come first";
}

struct T5 {
  using Dataset = data::T5Dataset;
  using Blend = data::T5Blend;
  using Padded = data::PaddedT5Sample;
  static constexpr std::array kFields = {"text_enc", "text_dec", "labels",   "loss_mask",
                                         "enc_mask", "dec_mask", "truncated"};

  static data::T5DatasetConfig config(const Json& request) {
    auto config = common_config<data::T5DatasetConfig>(request);
    config.decoder_length = request["sequence_length_decoder"].as_integer();
    return config;
  }
  static auto build(const data::BlendList& list, const SentenceData::Opened& opened,
                    const data::T5DatasetConfig& config, data::Split split,
                    std::optional<int64_t> samples) {
    return data::build_t5_examples(list, data::t5_tokens(opened.tokens, *opened.tokenizer), config,
                                   split, samples);
  }
  static std::vector<std::pair<std::string, int64_t>> facts(const Dataset&) { return {}; }
  static std::optional<std::string> difference(const Padded& own, std::string_view field,
                                               const Json& value) {
    const auto list = [&](const std::vector<int64_t>& values) {
      return first_difference(values, integers_of(value));
    };
    if (field == "text_enc") return list(own.text_enc);
    if (field == "text_dec") return list(own.text_dec);
    if (field == "labels") return list(own.labels);
    if (field == "loss_mask") return mask_difference(own.decoder_length, value);
    if (field == "enc_mask") return mask_difference(own.encoder_length, value);
    if (field == "dec_mask") return mask_difference(own.decoder_length, value);
    if (field == "truncated") return difference_of(int64_t{own.truncated}, value);
    if (field == "local_masks") return attention_difference(own, value);
    return {};
  }
  static std::string attention_difference(const Padded& own, const Json& masks) {
    const std::pair<const char*, AttentionMask> all[] = {
        {"encoder", AttentionMask(own.text_enc, own.text_enc, false)},
        {"decoder", AttentionMask(own.text_dec, own.text_dec, true)},
        {"encoder_decoder", AttentionMask(own.text_dec, own.text_enc, false)}};
    for (const auto& [name, mask] : all)
      if (const std::string difference = mask.difference(masks[name]); !difference.empty())
        return fmt::format("{}: {}", name, difference);
    return "";
  }
};

}  // namespace

bool has_t5_dataset(const std::string& directory) {
  return has_cases(directory, "sequence_length_decoder");
}

Report verify_t5_dataset(const std::string& directory) {
  Report report(fmt::format("{}: T5 data sets", directory));
  compare_sentence_cases<T5>(directory, report);
  return report;
}

}  // namespace megatron::selftest
