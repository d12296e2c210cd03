#include "tokenizers/decoder.h"

#include "base/error.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/utf8.h"

namespace megatron::tokenizers {
namespace {

class ByteLevelDecoder final : public Decoder {
 public:
  std::string decode(std::span<const std::string_view> tokens) const override {
    std::string bytes, text;
    for (const std::string_view token : tokens) append_bytes(token, bytes);
    append_lossy(bytes, true, text);
    return text;
  }
  bool is_bytewise() const override { return true; }
  void append_bytes(std::string_view token, std::string& bytes) const override {
    if (!append_bytes_of_letters(token, bytes)) bytes.append(token);
  }
};

class JoinDecoder final : public Decoder {
 public:
  std::string decode(std::span<const std::string_view> tokens) const override {
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) text += ' ';
      text.append(tokens[i]);
    }
    return text;
  }
};

}  // namespace

void Decoder::append_bytes(std::string_view token, std::string& bytes) const {
  bytes.append(token);
}

std::unique_ptr<Decoder> make_decoder(const Json& settings) {
  if (settings.is_null()) return std::make_unique<JoinDecoder>();
  const std::string& type = settings["type"].as_string();
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  fail("decoder '{}' is not supported; supported is ByteLevel", type);
}

}  // namespace megatron::tokenizers
