#include "tokenizers/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/utf8.h"
#include "tokenizers/special_tokens.h"
#include "tokenizers/tokenizer_file.h"

namespace megatron::tokenizers {

namespace fs = std::filesystem;

Tokenizer::Tokenizer(std::unique_ptr<Codec> codec, const std::string& directory)
    : codec_(std::move(codec)),
      special_tokens_(std::make_unique<SpecialTokens>(find_special_tokens(directory, *codec_))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& path) {
  const TokenizerFile file = read_tokenizer_file(path);
  std::unique_ptr<Codec> codec = make_codec(file);
  try {
    return Tokenizer(std::move(codec), file.directory());
  } catch (const Error& error) {
    fail("{}: {}", file.path, error.what());
  }
}

void Tokenizer::encode(std::string_view text, bool add_special_tokens,
                       std::vector<int32_t>& ids) const {
  codec_->encode(text, {.add_special_tokens = add_special_tokens}, ids, nullptr);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  encode(text, add_special_tokens, ids);
  return ids;
}

std::string Tokenizer::token(int32_t id) const {
  MG_CHECK(codec_->contains(id), "id {} has no token; the vocabulary's ids are 0 to {}", id,
           vocabulary_size() - 1);
  return codec_->token(id);
}

std::optional<int32_t> Tokenizer::eod() const { return special_tokens_->eod; }
std::optional<int32_t> Tokenizer::bos() const { return special_tokens_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return special_tokens_->eos; }
std::optional<int32_t> Tokenizer::pad() const { return special_tokens_->pad; }
std::optional<int32_t> Tokenizer::cls() const { return special_tokens_->cls; }
std::optional<int32_t> Tokenizer::sep() const { return special_tokens_->sep; }
std::optional<int32_t> Tokenizer::mask() const { return special_tokens_->mask; }

std::vector<Codec::File> Tokenizer::files() const {
  std::vector<Codec::File> files = codec_->files();
  const Json config = write_tokenizer_config(*special_tokens_, *codec_);
  files.push_back({"tokenizer_config.json", config.dump(2) + "\n"});
  return files;
}

void Tokenizer::save(const std::string& directory) const {
  for (const Codec::File& file : files())
    write_file((fs::path(directory) / file.name).string(), file.content);
}

DecodeStream::DecodeStream(const Tokenizer& tokenizer, bool skip_special)
    : codec_(&tokenizer.codec()), skip_special_(skip_special) {}

std::string DecodeStream::push(int32_t id) {
  if (!codec_->contains(id) || (skip_special_ && codec_->is_special(id))) return "";
  if (!codec_->is_bytewise()) {
    ids_.push_back(id);
    return emit_whole();
  }
  codec_->append_bytes(id, pending_);
  std::string text;
  pending_.erase(0, append_lossy(pending_, false, text));
  return text;
}

std::string DecodeStream::emit_whole() {
  std::string all = codec_->decode(ids_, false);
  if (all.ends_with("\xef\xbf\xbd") || all.size() <= given_) return "";
  std::string piece = all.substr(given_);
  given_ = all.size();
  forget(all);
  return piece;
}

// Keeps only the last ids of a long stream, provided that their text is a suffix of the whole text.
void DecodeStream::forget(std::string_view all) {
  constexpr size_t kLong = 256, kKept = 64;
  if (ids_.size() < kLong) return;
  const std::span<const int32_t> last = std::span<const int32_t>(ids_).last(kKept);
  const std::string text = codec_->decode(last, false);
  if (!all.ends_with(text)) return;
  given_ = text.size();
  ids_.assign(last.begin(), last.end());
}

std::string DecodeStream::finish() {
  std::string text;
  if (codec_->is_bytewise()) {
    append_lossy(pending_, true, text);
  } else {
    const std::string all = codec_->decode(ids_, false);
    text = all.substr(std::min(given_, all.size()));
  }
  pending_.clear();
  ids_.clear();
  given_ = 0;
  return text;
}

}  // namespace megatron::tokenizers
