#include "tokenizers/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace megatron::tokenizers {
namespace {

// NFC of the characters of Unicode 9; later characters are left as they stand, as the tables of
// Hugging Face's tokenizers leave them, so that ids stay the same.
class Nfc final : public Normalizer {
 public:
  Nfc() {
    UErrorCode status = U_ZERO_ERROR;
    known_ = icu::UnicodeSet(u"[:age=9.0:]", status);
    known_.freeze();
    nfc_ = icu::Normalizer2::getNFCInstance(status);
    MG_CHECK(U_SUCCESS(status), "ICU's normalisation data cannot be read: {}", u_errorName(status));
  }

  std::string_view normalize(std::string_view text, std::string& buffer) const override {
    const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (std::all_of(text.begin(), text.end(), ascii)) return text;
    MG_CHECK(text.size() < (size_t{1} << 31),
             "a text of {} bytes is too long to normalise; the limit is 2 GB", text.size());
    UErrorCode status = U_ZERO_ERROR;
    const icu::FilteredNormalizer2 filtered(*nfc_, known_);
    const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
    if (filtered.isNormalizedUTF8(piece, status) && U_SUCCESS(status)) return text;
    std::string result;
    icu::StringByteSink<std::string> sink(&result);
    filtered.normalizeUTF8(0, piece, sink, nullptr, status);
    MG_CHECK(U_SUCCESS(status), "NFC of a text of {} bytes failed: {}", text.size(),
             u_errorName(status));
    buffer.swap(result);
    return buffer;
  }

 private:
  icu::UnicodeSet known_;
  const icu::Normalizer2* nfc_ = nullptr;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}

  std::string_view normalize(std::string_view text, std::string& buffer) const override {
    std::string other;
    for (const auto& step : steps_) {
      text = step->normalize(text, other);
      if (text.data() != other.data()) continue;
      buffer.swap(other);
      text = buffer;
    }
    return text;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Json& settings) {
  if (settings.is_null()) return nullptr;
  const std::string& type = settings["type"].as_string();
  if (type == "NFC") return std::make_unique<Nfc>();
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const Json& step : settings["normalizers"].as_array()) {
      if (auto made = make_normalizer(step)) steps.push_back(std::move(made));
    }
    return std::make_unique<NormalizerSequence>(std::move(steps));
  }
  fail("normalizer '{}' is not supported; supported are NFC and Sequence", type);
}

}  // namespace megatron::tokenizers
