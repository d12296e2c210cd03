#include "tokenizers/normalizers/normalizer.h"

#include <vector>

#include "base/error.h"
#include "tokenizers/limits.h"
#include "tokenizers/normalizers/normalizer_kinds.h"

namespace megatron::tokenizers {
namespace {

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}

  void normalize(Text& text) const override {
    const size_t before = text.bytes().size();
    for (const auto& step : steps_) {
      step->normalize(text);
      check_growth(text.bytes().size(), before, "a Sequence of normalizers");
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> make_sequence(const Json& settings) {
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (const Json& step : settings["normalizers"].as_array()) {
    if (auto made = make_normalizer(step)) steps.push_back(std::move(made));
  }
  return std::make_unique<NormalizerSequence>(std::move(steps));
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Json& settings) {
  if (settings.is_null()) return nullptr;
  const std::string& type = settings["type"].as_string();
  if (type == "NFC") return make_normal_form(NormalForm::nfc);
  if (type == "NFD") return make_normal_form(NormalForm::nfd);
  if (type == "NFKC") return make_normal_form(NormalForm::nfkc);
  if (type == "NFKD") return make_normal_form(NormalForm::nfkd);
  if (type == "Lowercase") return make_lowercase();
  if (type == "StripAccents") return make_strip_accents();
  if (type == "Nmt") return make_nmt();
  if (type == "ByteLevel") return make_byte_level_letters();
  if (type == "Strip") return make_strip(settings);
  if (type == "Prepend") return make_prepend(settings);
  if (type == "Replace") return make_replace(settings);
  if (type == "Precompiled") return make_precompiled(settings);
  if (type == "BertNormalizer") return make_bert_normalizer(settings);
  if (type == "Sequence") return make_sequence(settings);
  fail(
      "normalizer '{}' is unknown; supported are BertNormalizer, ByteLevel, Lowercase, NFC, NFD, "
      "NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, Sequence, Strip and StripAccents",
      type);
}

}  // namespace megatron::tokenizers
