#include "tokenizers/plain_codecs.h"

#include "base/error.h"
#include "base/text_parts.h"
#include "base/utf8.h"
#include "tokenizers/byte_level.h"

namespace megatron::tokenizers {
namespace {

constexpr int64_t kMaximumSize = (int64_t{1} << 31) - 1;

class NullCodec final : public Codec {
 public:
  NullCodec(int64_t size, int64_t eod)
      : size_(static_cast<int32_t>(size)), eod_(static_cast<int32_t>(eod)) {
    MG_CHECK(size > 0 && size <= kMaximumSize,
             "the vocabulary's size is {}; it must lie in [1, {}]", size, kMaximumSize);
    MG_CHECK(eod >= 0 && eod < size, "the end-of-document id is {}; it must lie in [0, {})", eod,
             size);
  }

  void encode(std::string_view text, const EncodeOptions&, std::vector<int32_t>& ids,
              std::vector<Range>* offsets) const override {
    constexpr std::string_view kSpace = " \t\r\n";
    for (size_t at = 0; (at = text.find_first_not_of(kSpace, at)) != text.npos;) {
      const size_t end = std::min(text.find_first_of(kSpace, at), text.size());
      const std::string_view word = text.substr(at, end - at);
      const auto id = find(word);
      MG_CHECK(id,
               "'{}' at offset {} is not a token id in [0, {}); NullTokenizer reads ids "
               "separated by spaces",
               shown(word), at, size_);
      ids.push_back(*id);
      if (offsets) offsets->push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(end)});
      at = end;
    }
  }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (!contains(id)) continue;
      if (!text.empty()) text += ' ';
      text += token(id);
    }
    return text;
  }

  int32_t size() const override { return size_; }
  std::optional<int32_t> find(std::string_view token) const override {
    const auto id = parse_number<int32_t>(token);
    return id && contains(*id) && token[0] != '-' ? id : std::nullopt;
  }
  bool contains(int32_t id) const override { return id >= 0 && id < size_; }
  bool is_special(int32_t) const override { return false; }
  std::string token(int32_t id) const override { return fmt::format("{}", id); }
  std::optional<int32_t> role(std::string_view name) const override {
    if (name != "eod") return std::nullopt;
    return eod_;
  }
  std::vector<File> files() const override { return {}; }
  std::string hugging_face_class() const override { return ""; }

 private:
  static std::string shown(std::string_view word) {
    std::string text;
    append_lossy(word.substr(0, 40), true, text);
    return text;
  }

  int32_t size_, eod_;
};

class ByteCodec final : public Codec {
 public:
  explicit ByteCodec(int64_t size) : size_(static_cast<int32_t>(size)) {
    MG_CHECK(size >= 256 && size <= kMaximumSize,
             "the vocabulary size of ByteTokenizer is {}; it must lie in [256, {}]", size,
             kMaximumSize);
  }

  void encode(std::string_view text, const EncodeOptions&, std::vector<int32_t>& ids,
              std::vector<Range>* offsets) const override {
    MG_CHECK(offsets == nullptr,
             "token offsets are not available for ByteTokenizer: each token "
             "is one byte");
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  bool accepts_invalid_utf8() const override { return true; }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string bytes, text;
    for (const int32_t id : ids) {
      if (contains(id)) append_bytes(id, bytes);
    }
    append_lossy(bytes, true, text);
    return text;
  }
  bool is_bytewise() const override { return true; }
  void append_bytes(int32_t id, std::string& bytes) const override {
    bytes += static_cast<char>(static_cast<unsigned char>(id));
  }

  int32_t size() const override { return size_; }
  std::optional<int32_t> find(std::string_view token) const override {
    const int byte =
        token.size() == 1 ? static_cast<unsigned char>(token[0]) : byte_of_token(token);
    if (byte < 0) return std::nullopt;
    return byte;
  }
  bool contains(int32_t id) const override { return id >= 0 && id < 256; }
  bool is_special(int32_t) const override { return false; }
  std::string token(int32_t id) const override {
    return byte_token(static_cast<unsigned char>(id));
  }
  std::optional<int32_t> role(std::string_view name) const override {
    if (name != "eod") return std::nullopt;
    return 0;
  }
  std::vector<File> files() const override { return {}; }
  std::string hugging_face_class() const override { return ""; }

 private:
  int32_t size_;
};

}  // namespace

std::unique_ptr<Codec> make_null_codec(int64_t size, int64_t eod) {
  return std::make_unique<NullCodec>(size, eod);
}

std::unique_ptr<Codec> make_byte_codec(int64_t size) { return std::make_unique<ByteCodec>(size); }

}  // namespace megatron::tokenizers
