#include "tokenizers/sentence_piece/sentence_piece_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/sentence_piece/sentence_piece_map.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kLongestPiece = 8000, kMaximumNested = 64;
constexpr size_t kMaximumPieces = size_t{1} << 22;

// A field of a protocol buffer's message.
struct WireField {
  uint64_t number = 0;
  enum Type { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 } type = varint;
  uint64_t value = 0;         // for varint, fixed64 and fixed32
  std::string_view text;      // for bytes
  size_t begin = 0, end = 0;  // position in the message
};

// Reads a message's fields from front to back. `offset`: where it begins in the file.
class WireReader {
 public:
  WireReader(std::string_view message, size_t offset) : message_(message), offset_(offset) {}

  std::optional<WireField> next() {
    if (at_ == message_.size()) return std::nullopt;
    WireField field;
    field.begin = at_;
    const uint64_t tag = read_varint();
    field.number = tag >> 3;
    field.type = static_cast<WireField::Type>(tag & 7);
    check(field.number > 0 && field.number < (uint64_t{1} << 29), "a field has an invalid number");
    switch (field.type) {
      case WireField::varint: field.value = read_varint(); break;
      case WireField::fixed64: field.value = read_fixed(8); break;
      case WireField::fixed32: field.value = read_fixed(4); break;
      case WireField::bytes: field.text = read_bytes(read_varint()); break;
      default: check(false, "a field has a type that models do not use");
    }
    field.end = at_;
    return field;
  }

  size_t offset_of(const WireField& field) const { return offset_ + field.end - field.text.size(); }
  void check_type(const WireField& field, WireField::Type type) const {
    MG_CHECK(field.type == type,
             "offset {}: field {} has wire type {} instead of {}; this is not a SentencePiece "
             "model, or it is damaged",
             offset_ + field.begin, field.number, static_cast<int>(field.type),
             static_cast<int>(type));
  }

 private:
  void check(bool holds, std::string_view reason) const {
    MG_CHECK(holds,
             "offset {}: {}; this is not a SentencePiece model, or it is damaged or truncated: "
             "download it again",
             offset_ + at_, reason);
  }
  uint64_t read_varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      check(at_ < message_.size(), "a number is truncated");
      const auto byte = static_cast<unsigned char>(message_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    check(false, "a number has more than 64 bits");
    return 0;
  }
  std::string_view read_bytes(uint64_t size) {
    check(size <= message_.size() - at_, "a field is longer than the message that contains it");
    const std::string_view bytes = message_.substr(at_, size);
    at_ += size;
    return bytes;
  }
  uint64_t read_fixed(size_t size) {
    const std::string_view bytes = read_bytes(size);
    uint64_t value = 0;
    std::memcpy(&value, bytes.data(), size);
    return value;
  }

  std::string_view message_;
  size_t offset_, at_ = 0;
};

SentencePieceModel::Piece parse_piece(std::string_view message, size_t offset) {
  SentencePieceModel::Piece piece;
  WireReader reader(message, offset);
  while (const auto field = reader.next()) {
    if (field->number == 1) {
      reader.check_type(*field, WireField::bytes);
      piece.text = field->text;
    } else if (field->number == 2) {
      reader.check_type(*field, WireField::fixed32);
      float score = 0;
      const auto bits = static_cast<uint32_t>(field->value);
      std::memcpy(&score, &bits, 4);
      piece.score = static_cast<double>(score);
    } else if (field->number == 3) {
      reader.check_type(*field, WireField::varint);
      piece.type = static_cast<int32_t>(field->value);
    }
  }
  MG_CHECK(!piece.text.empty() && piece.text.size() <= kLongestPiece,
           "offset {}: a piece has {} bytes; it must have 1 to {}", offset, piece.text.size(),
           kLongestPiece);
  MG_CHECK(piece.text.find('\0') == std::string_view::npos, "offset {}: a piece has a zero byte",
           offset);
  check_utf8(piece.text, fmt::format("the piece at offset {}", offset));
  MG_CHECK(std::isfinite(piece.score) && std::abs(piece.score) < 1e30,
           "the piece '{}' at offset {} has the score {}; it must lie within +-1e30", piece.text,
           offset, piece.score);
  MG_CHECK(piece.type >= SentencePieceModel::kNormal && piece.type <= SentencePieceModel::kByte,
           "the piece '{}' at offset {} has type {}; types are 1 to 6", piece.text, offset,
           piece.type);
  return piece;
}

void parse_trainer(std::string_view message, size_t offset, SentencePieceModel& model) {
  constexpr uint64_t kModelType = 3, kByteFallback = 35, kUnknownId = 40, kPadId = 43,
                     kUnknownSurface = 44, kUnknownPiece = 45, kPadPiece = 48;
  int64_t pad_id = -1;
  std::string surface, pad_piece;
  int64_t* const ids[] = {&model.unknown_id, &model.bos_id, &model.eos_id, &pad_id};
  std::string* const texts[] = {&surface, &model.unknown_piece, &model.bos_piece, &model.eos_piece,
                                &pad_piece};
  WireReader reader(message, offset);
  while (const auto field = reader.next()) {
    if (field->number == kModelType) {
      reader.check_type(*field, WireField::varint);
      MG_CHECK(field->value == 1 || field->value == 2,
               "the model's type is {} ({}); supported are 1 (Unigram) and 2 (BPE)", field->value,
               field->value == 3   ? "words"
               : field->value == 4 ? "characters"
                                   : "unknown");
      model.algorithm = static_cast<SentencePieceModel::Algorithm>(field->value);
    } else if (field->number == kByteFallback) {
      reader.check_type(*field, WireField::varint);
      model.byte_fallback = field->value != 0;
    } else if (field->number >= kUnknownId && field->number <= kPadId) {
      reader.check_type(*field, WireField::varint);
      *ids[field->number - kUnknownId] = static_cast<int32_t>(field->value);
    } else if (field->number >= kUnknownSurface && field->number <= kPadPiece) {
      reader.check_type(*field, WireField::bytes);
      check_utf8(field->text, field->number >= kUnknownPiece ? "the name of a special piece"
                                                             : "the text for unknown pieces");
      *texts[field->number - kUnknownSurface] = field->text;
    }
  }
}

// Returns the size of the longest replacement. model: null for the denormalizer.
size_t parse_normalizer(std::string_view message, size_t offset, SentencePieceModel* model) {
  constexpr uint64_t kMap = 2, kAddPrefix = 3, kRemoveExtraSpaces = 4, kEscapeSpaces = 5;
  size_t longest = 0;
  WireReader reader(message, offset);
  while (const auto field = reader.next()) {
    if (field->number == kMap) {
      reader.check_type(*field, WireField::bytes);
      longest = std::max(longest, check_normalization_map(field->text));
      if (model) model->normalization_map = field->text;
    } else if (field->number >= kAddPrefix && field->number <= kEscapeSpaces) {
      reader.check_type(*field, WireField::varint);
      if (!model) continue;
      bool& flag = field->number == kAddPrefix           ? model->adds_prefix
                   : field->number == kRemoveExtraSpaces ? model->removes_extra_spaces
                                                         : model->escapes_spaces;
      flag = field->value != 0;
    }
  }
  return longest;
}

// The library's search for user-defined pieces has room for this many pieces, each a prefix of the
// next.
void check_nesting(const SentencePieceModel& model) {
  std::vector<std::string_view> symbols, open;
  for (const auto& piece : model.pieces) {
    if (piece.type == SentencePieceModel::kUserDefined) symbols.push_back(piece.text);
  }
  std::ranges::sort(symbols);
  for (const std::string_view symbol : symbols) {
    while (!open.empty() && !symbol.starts_with(open.back())) open.pop_back();
    open.push_back(symbol);
    MG_CHECK(open.size() <= kMaximumNested,
             "more than {} user-defined pieces are each a prefix of the next, up to '{}'",
             kMaximumNested, symbol);
  }
}

void check_pieces(const SentencePieceModel& model) {
  MG_CHECK(!model.pieces.empty(), "there are no pieces; is this a SentencePiece model?");
  MG_CHECK(model.pieces.size() <= kMaximumPieces, "there are {} pieces; the limit is {}",
           model.pieces.size(), kMaximumPieces);
  std::unordered_set<std::string_view> seen(model.pieces.size());
  for (const auto& piece : model.pieces)
    MG_CHECK(seen.insert(piece.text).second, "the piece '{}' occurs twice", piece.text);
  check_nesting(model);
}

}  // namespace

bool begins_as_sentence_piece(std::string_view bytes) {
  // Field 1 of the model, whose field 1 is the piece's text.
  if (bytes.size() < 4 || bytes[0] != '\x0a') return false;
  const size_t size = static_cast<unsigned char>(bytes[1]);
  return size >= 3 && size < 0x80 && bytes[2] == '\x0a' &&
         static_cast<size_t>(static_cast<unsigned char>(bytes[3])) + 2 <= size;
}

SentencePieceModel parse_sentence_piece(std::string_view bytes) {
  constexpr uint64_t kPieces = 1, kTrainer = 2, kNormalizer = 3, kSelfTest = 4, kDenormalizer = 5;
  SentencePieceModel model;
  MG_CHECK(bytes.size() < (size_t{1} << 31), "the model has {} bytes; the limit is 2 GiB",
           bytes.size());
  model.bytes.reserve(bytes.size());
  WireReader reader(bytes, 0);
  while (const auto field = reader.next()) {
    if (field->number <= kDenormalizer) reader.check_type(*field, WireField::bytes);
    const size_t offset = reader.offset_of(*field);
    size_t longest = 0;
    if (field->number == kPieces) model.pieces.push_back(parse_piece(field->text, offset));
    if (field->number == kTrainer) parse_trainer(field->text, offset, model);
    if (field->number == kNormalizer) longest = parse_normalizer(field->text, offset, &model);
    if (field->number == kDenormalizer) longest = parse_normalizer(field->text, offset, nullptr);
    model.longest_replacement = std::max(model.longest_replacement, longest);
    if (field->number != kSelfTest)
      model.bytes.append(bytes.substr(field->begin, field->end - field->begin));
  }
  check_pieces(model);
  return model;
}

}  // namespace megatron::tokenizers
