#include "tokenizers/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/files.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/decoder.h"
#include "tokenizers/definition.h"
#include "tokenizers/model.h"
#include "tokenizers/normalizer.h"
#include "tokenizers/post_processor.h"
#include "tokenizers/pre_tokenizer.h"
#include "tokenizers/special_tokens.h"
#include "tokenizers/utf8.h"

namespace megatron::tokenizers {

struct Tokenizer::Impl {
  Definition definition;       // its vocabulary also has the added tokens
  std::vector<bool> in_model;  // by id
  std::vector<bool> special;   // by id
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<Model> model;
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;
  AddedTokens raw_tokens, normalized_tokens;
  std::map<int32_t, std::string> normalized_texts;  // of added tokens that the normaliser changes
  SpecialTokens special_tokens;

  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> idle;

  explicit Impl(Definition given);
  void add_tokens();
  void find_special(const std::string& directory) {
    special_tokens = find_special_tokens(directory, definition.vocabulary);
  }

  std::unique_ptr<Scratch> borrow();
  void give_back(std::unique_ptr<Scratch> scratch);
  void encode_raw(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode_normalized(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;
  bool is_special(int32_t id) const { return special[static_cast<size_t>(id)]; }
  std::string_view text_of(int32_t id) const {
    if (normalized_texts.empty()) return definition.vocabulary.text(id);
    const auto found = normalized_texts.find(id);
    return found == normalized_texts.end() ? definition.vocabulary.text(id) : found->second;
  }
  bool is_given_out(int32_t id, bool skip_special) const {
    return definition.vocabulary.contains(id) && !(skip_special && is_special(id));
  }
};

Tokenizer::Impl::Impl(Definition given) : definition(std::move(given)) {
  normalizer = make_normalizer(definition.member("normalizer"));
  pre_tokenizer = make_pre_tokenizer(definition.member("pre_tokenizer"));
  model = make_model(definition, pre_tokenizer && pre_tokenizer->byte_level());
  post_processor = make_post_processor(definition.member("post_processor"));
  decoder = make_decoder(definition.member("decoder"));
  add_tokens();
  for (const auto* ids : {&post_processor.before, &post_processor.after}) {
    for (const int32_t id : *ids) {
      MG_CHECK(definition.vocabulary.contains(id),
               "the post-processor adds id {}, which is no token", id);
    }
  }
}

void Tokenizer::Impl::add_tokens() {
  Vocabulary& vocabulary = definition.vocabulary;
  for (int32_t id = 0; id < vocabulary.size(); ++id) in_model.push_back(vocabulary.contains(id));
  std::string buffer;
  for (AddedToken& token : definition.added_tokens) {
    check_utf8(token.content, "an added token");
    if (const auto known = vocabulary.find(token.content)) {
      token.id = *known;
    } else {
      vocabulary.add(token.content, token.id);
    }
    const auto index = static_cast<size_t>(token.id);
    special.resize(std::max(special.size(), index + 1));
    if (token.special) special[index] = true;
    const bool changes = token.normalized && normalizer;
    const std::string_view text =
        changes ? normalizer->normalize(token.content, buffer) : token.content;
    if (text != token.content) normalized_texts.emplace(static_cast<int32_t>(token.id), text);
    (token.normalized ? normalized_tokens : raw_tokens)
        .add(text, static_cast<int32_t>(token.id), token);
  }
  MG_CHECK(vocabulary.count() > 0, "the vocabulary is empty");
  in_model.resize(static_cast<size_t>(vocabulary.size()));
  special.resize(static_cast<size_t>(vocabulary.size()));
}

std::unique_ptr<Scratch> Tokenizer::Impl::borrow() {
  {
    const std::lock_guard lock(mutex);
    if (!idle.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(idle.back());
      idle.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::Impl::give_back(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard lock(mutex);
  idle.push_back(std::move(scratch));
}

void Tokenizer::Impl::encode_raw(std::string_view text, Scratch& scratch,
                                 std::vector<int32_t>& ids) const {
  std::string buffer;
  const auto on_token = [&](int32_t id) { ids.push_back(id); };
  const auto on_normalized = [&](std::string_view rest) { encode_normalized(rest, scratch, ids); };
  raw_tokens.split(
      text,
      [&](std::string_view rest) {
        if (normalizer) rest = normalizer->normalize(rest, buffer);
        normalized_tokens.split(rest, on_normalized, on_token);
      },
      on_token);
}

void Tokenizer::Impl::encode_normalized(std::string_view text, Scratch& scratch,
                                        std::vector<int32_t>& ids) const {
  if (!pre_tokenizer) return model->encode(text, scratch, ids);
  pre_tokenizer->split(text, scratch.regex,
                       [&](std::string_view piece) { model->encode(piece, scratch, ids); });
}

Tokenizer::Tokenizer(Definition definition) : impl_(std::make_unique<Impl>(std::move(definition))) {
  impl_->find_special("");
}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& path) {
  namespace fs = std::filesystem;
  const bool is_directory = fs::is_directory(path);
  const fs::path directory = is_directory ? fs::path(path) : fs::path(path).parent_path();
  const std::string file = is_directory ? (directory / "tokenizer.json").string() : path;
  if (is_directory && !fs::exists(file) && fs::exists(directory / "merges.txt")) {
    return load_gpt2((directory / "vocab.json").string(), (directory / "merges.txt").string());
  }
  const std::string text = read_file(file);
  try {
    Tokenizer tokenizer(parse_definition(text));
    tokenizer.impl_->find_special(directory.empty() ? "." : directory.string());
    return tokenizer;
  } catch (const Error& error) {
    fail("{}: {}", file, error.what());
  }
}

Tokenizer Tokenizer::load_gpt2(const std::string& vocabulary_file, const std::string& merges_file) {
  const std::string vocabulary = read_file(vocabulary_file), merges = read_file(merges_file);
  try {
    Tokenizer tokenizer(parse_gpt2(vocabulary, merges));
    const std::string directory = std::filesystem::path(vocabulary_file).parent_path().string();
    tokenizer.impl_->find_special(directory.empty() ? "." : directory);
    return tokenizer;
  } catch (const Error& error) {
    fail("{}, {}: {}", vocabulary_file, merges_file, error.what());
  }
}

void Tokenizer::encode(std::string_view text, bool add_special_tokens,
                       std::vector<int32_t>& ids) const {
  check_utf8(text, "the text to encode");
  std::unique_ptr<Scratch> scratch = impl_->borrow();
  const PostProcessor& around = impl_->post_processor;
  if (add_special_tokens) ids.insert(ids.end(), around.before.begin(), around.before.end());
  impl_->encode_raw(text, *scratch, ids);
  if (add_special_tokens) ids.insert(ids.end(), around.after.begin(), around.after.end());
  impl_->give_back(std::move(scratch));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  encode(text, add_special_tokens, ids);
  return ids;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::vector<std::string_view> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (impl_->is_given_out(id, skip_special)) tokens.push_back(impl_->text_of(id));
  }
  return impl_->decoder->decode(tokens);
}

int32_t Tokenizer::vocabulary_size() const { return impl_->definition.vocabulary.size(); }

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  return impl_->definition.vocabulary.find(token);
}

std::string_view Tokenizer::token(int32_t id) const {
  const Vocabulary& vocabulary = impl_->definition.vocabulary;
  MG_CHECK(vocabulary.contains(id), "id {} has no token; the vocabulary's ids are 0 to {}", id,
           vocabulary.size() - 1);
  return impl_->text_of(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return impl_->definition.vocabulary.contains(id) && impl_->is_special(id);
}

std::optional<int32_t> Tokenizer::eod() const { return impl_->special_tokens.eod; }
std::optional<int32_t> Tokenizer::bos() const { return impl_->special_tokens.bos; }
std::optional<int32_t> Tokenizer::eos() const { return impl_->special_tokens.eos; }
std::optional<int32_t> Tokenizer::pad() const { return impl_->special_tokens.pad; }

std::string Tokenizer::to_json() const {
  return write_definition(impl_->definition, impl_->in_model);
}

void Tokenizer::save(const std::string& directory) const {
  const std::filesystem::path folder(directory);
  write_file((folder / "tokenizer.json").string(), to_json());
  const Json config = write_tokenizer_config(impl_->special_tokens, impl_->definition.vocabulary);
  write_file((folder / "tokenizer_config.json").string(), config.dump(2) + "\n");
}

DecodeStream::DecodeStream(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string DecodeStream::push(int32_t id) {
  const Tokenizer::Impl& impl = *tokenizer_->impl_;
  if (!impl.is_given_out(id, skip_special_)) return "";
  if (!impl.decoder->is_bytewise()) {
    ids_.push_back(id);
    return emit_whole();
  }
  impl.decoder->append_bytes(impl.text_of(id), pending_);
  std::string text;
  pending_.erase(0, append_lossy(pending_, false, text));
  return text;
}

std::string DecodeStream::emit_whole() {
  std::string all = tokenizer_->decode(ids_);
  if (all.ends_with("\xef\xbf\xbd") || all.size() <= given_) return "";
  std::string piece = all.substr(given_);
  given_ = all.size();
  return piece;
}

std::string DecodeStream::finish() {
  std::string text;
  if (tokenizer_->impl_->decoder->is_bytewise()) {
    append_lossy(pending_, true, text);
  } else {
    const std::string all = tokenizer_->decode(ids_);
    text = all.substr(std::min(given_, all.size()));
  }
  pending_.clear();
  ids_.clear();
  given_ = 0;
  return text;
}

}  // namespace megatron::tokenizers
