#include "tokenizers/sentence_piece/sentence_piece.h"

#include <sentencepiece_processor.h>

#include <limits>

#include "base/error.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/sentence_piece/sentence_piece_model.h"

namespace megatron::tokenizers {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

class SentencePiece final : public Codec {
 public:
  SentencePiece(SentencePieceModel model, const SentencePieceOptions& options)
      : bytes_(std::move(model.bytes)),
        options_(options),
        longest_text_(std::numeric_limits<int32_t>::max() / model.longest_replacement - 16) {
    try {
      check(processor_.LoadFromSerializedProto(bytes_));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail("the SentencePiece library rejects the model: {}", error.what());
    }
  }

  void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids,
              std::vector<Range>* offsets) const override {
    MG_CHECK(offsets == nullptr,
             "token offsets are available for a tokenizer.json only, not for SentencePiece models");
    MG_CHECK(text.size() <= longest_text_,
             "a text of {} bytes is too long for this SentencePiece model; the limit is {}: "
             "split it",
             text.size(), longest_text_);
    append_end(options.add_special_tokens && options_.add_bos, processor_.bos_id(), ids);
    std::vector<int> found;
    check(processor_.Encode(text, &found));
    ids.insert(ids.end(), found.begin(), found.end());
    append_end(options.add_special_tokens && options_.add_eos, processor_.eos_id(), ids);
  }
  bool accepts_invalid_utf8() const override { return true; }
  JoinedTexts join(std::span<const int32_t> first, std::span<const int32_t> second) const override {
    JoinedTexts joined;
    const auto add = [&](std::span<const int32_t> text, int32_t type, size_t& begin) {
      append_end(options_.add_bos, processor_.bos_id(), joined.ids);
      begin = joined.size();
      joined.ids.insert(joined.ids.end(), text.begin(), text.end());
      append_end(options_.add_eos, processor_.eos_id(), joined.ids);
      joined.types.resize(joined.size(), type);
    };
    add(first, 0, joined.first);
    add(second, 1, joined.second);
    return joined;
  }

  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::vector<int> known;
    known.reserve(ids.size());
    for (const int32_t id : ids) {
      if (contains(id)) known.push_back(id);
    }
    std::string text;
    check(processor_.Decode(known, &text));
    return text;
  }
  Joining joining() const override;
  void append_bytes(int32_t id, std::string& bytes) const override;

  int32_t size() const override { return processor_.GetPieceSize(); }
  std::optional<int32_t> find(std::string_view token) const override {
    const int id = processor_.PieceToId(token);
    if (!contains(id) || processor_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }
  bool contains(int32_t id) const override { return id >= 0 && id < size(); }
  bool is_special(int32_t id) const override { return contains(id) && processor_.IsControl(id); }
  std::string token(int32_t id) const override { return processor_.IdToPiece(id); }

  std::optional<int32_t> role(std::string_view name) const override {
    const int id = name == "bos"   ? processor_.bos_id()
                   : name == "eos" ? processor_.eos_id()
                   : name == "pad" ? processor_.pad_id()
                   : name == "unk" ? processor_.unk_id()
                                   : -1;
    if (id < 0) return std::nullopt;
    return id;
  }

  std::vector<File> files() const override { return {{"tokenizer.model", bytes_}}; }

 private:
  static void append_end(bool wanted, int id, std::vector<int32_t>& ids) {
    if (wanted && id >= 0) ids.push_back(id);
  }
  static void check(const sentencepiece::util::Status& status) {
    MG_CHECK(status.ok(), "the SentencePiece library reports: {}", status.message());
  }

  Processor processor_;
  std::string bytes_;
  SentencePieceOptions options_;
  size_t longest_text_;
};

constexpr std::string_view kSpace = "\xe2\x96\x81";

// The library does not expose which spaces its model drops.
Joining SentencePiece::joining() const {
  const auto decoded = [&](const std::vector<std::string>& pieces) {
    std::string text;
    check(processor_.Decode(pieces, &text));
    return text;
  };
  const std::string space(kSpace);
  const std::string one = decoded({space}), two = decoded({space, space});
  if (one == " " && two == "  ") return Joining::plain;
  if (one.empty() && two == " ") return Joining::first_space;
  return one.empty() && two.empty() ? Joining::leading_spaces : Joining::by_neighbors;
}

void SentencePiece::append_bytes(int32_t id, std::string& bytes) const {
  const std::string& piece = processor_.IdToPiece(id);
  if (processor_.IsControl(id)) return;
  if (processor_.IsUnknown(id)) {
    bytes += decode({&id, 1}, false);
  } else if (processor_.IsByte(id)) {
    bytes += static_cast<char>(byte_of_token(piece));
  } else {
    for (size_t at = 0; at < piece.size();) {
      const bool is_space = std::string_view(piece).substr(at).starts_with(kSpace);
      bytes += is_space ? ' ' : piece[at];
      at += is_space ? kSpace.size() : 1;
    }
  }
}

}  // namespace

std::unique_ptr<Codec> make_sentence_piece(std::string_view bytes,
                                           const SentencePieceOptions& options) {
  return std::make_unique<SentencePiece>(parse_sentence_piece(bytes), options);
}

bool removes_extra_spaces(std::string_view bytes) {
  return parse_sentence_piece(bytes).removes_extra_spaces;
}

}  // namespace megatron::tokenizers
