// Hugging Face's pipeline: added tokens are split off the text, the remaining parts are normalised,
// split into pieces and encoded by the model; the post-processor adds tokens around the result.
#include <algorithm>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/codec.h"
#include "tokenizers/decoder.h"
#include "tokenizers/definition.h"
#include "tokenizers/limits.h"
#include "tokenizers/models/model.h"
#include "tokenizers/normalizers/normalizer.h"
#include "tokenizers/post_processor.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"

namespace megatron::tokenizers {
namespace {

class Pipeline final : public Codec {
 public:
  explicit Pipeline(Definition definition);

  void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids,
              std::vector<Range>* offsets) const override;
  JoinedTexts join(std::span<const int32_t> first, std::span<const int32_t> second) const override {
    return post_processor_.join(first, second);
  }
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  bool is_bytewise() const override { return decoder_->is_bytewise(); }
  Joining joining() const override { return decoder_->joining(); }
  void append_bytes(int32_t id, std::string& bytes) const override {
    decoder_->append_bytes(text_of(id), bytes);
  }

  int32_t size() const override { return vocabulary_.size(); }
  std::optional<int32_t> find(std::string_view token) const override {
    return vocabulary_.find(token);
  }
  bool contains(int32_t id) const override { return vocabulary_.contains(id); }
  bool is_special(int32_t id) const override {
    return contains(id) && special_[static_cast<size_t>(id)];
  }
  std::string token(int32_t id) const override { return std::string(text_of(id)); }
  const NamedTokens* named_tokens() const override {
    return definition_.named_tokens ? &*definition_.named_tokens : nullptr;
  }
  std::vector<File> files() const override {
    return {{"tokenizer.json", write_definition(definition_)}};
  }

 private:
  // Destination of ids, and the part of the input that each covers.
  struct Output {
    std::vector<int32_t>& ids;
    std::vector<Range>* offsets;  // may be null
    // Text of each token if it differs from the vocabulary's; filled only with offsets.
    std::vector<std::string> spelt;
    std::vector<Range> ranges;  // ranges of a piece's tokens
    const EncodeOptions& options;
    size_t size = 0, normalized = 0;  // bytes of the text before and after normalization

    void add_token(int32_t id, TextView found) {
      ids.push_back(id);
      if (offsets) add_spelt(found.origin(0, found.bytes.size()), found.bytes);
    }
    void add_spelt(Range range, std::string_view spelling) {
      offsets->push_back(range);
      spelt.resize(offsets->size());
      spelt.back() = spelling;
    }
  };

  void add_tokens();
  std::unique_ptr<Scratch> borrow() const;
  void give_back(std::unique_ptr<Scratch> scratch) const;
  void encode_raw(TextView text, Scratch& scratch, Output& out) const;
  void encode_rest(TextView text, Scratch& scratch, Output& out) const;
  void encode_normalized(TextView text, Scratch& scratch, Output& out) const;
  void encode_piece(TextView piece, Scratch& scratch, Output& out) const;
  std::string_view text_of(int32_t id) const {
    const auto found = normalized_texts_.find(id);
    return found == normalized_texts_.end() ? vocabulary_.text(id) : found->second;
  }

  Definition definition_;
  Vocabulary vocabulary_;      // the model's tokens and the added ones
  std::vector<bool> special_;  // by id
  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<Model> model_;
  PostProcessor post_processor_;
  std::unique_ptr<Decoder> decoder_;
  AddedTokens raw_tokens_, normalized_tokens_;
  std::map<int32_t, std::string> normalized_texts_;  // of added tokens that normalization changes
  int64_t unknown_ = -1;                             // Unigram's token for unknown text

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

Pipeline::Pipeline(Definition definition)
    : definition_(std::move(definition)), vocabulary_(definition_.vocabulary) {
  for (const char* part : {"normalizer", "pre_tokenizer", "post_processor", "decoder"})
    check_components(definition_.member(part), part);
  normalizer_ = make_normalizer(definition_.member("normalizer"));
  pre_tokenizer_ = make_pre_tokenizer(definition_.member("pre_tokenizer"));
  model_ = make_model(definition_, pre_tokenizer_ && pre_tokenizer_->byte_level());
  if (const Json* id = definition_.member("model").find("unk_id"); id && id->is_integer())
    unknown_ = id->as_integer();
  post_processor_ = make_post_processor(definition_.member("post_processor"));
  decoder_ = make_decoder(definition_.member("decoder"));
  add_tokens();
  std::vector<int32_t> added = post_processor_.before;
  added.insert(added.end(), post_processor_.after.begin(), post_processor_.after.end());
  for (const InputPiece& piece : post_processor_.pair)
    if (piece.text == InputPiece::kToken) added.push_back(piece.token);
  for (const int32_t id : added)
    MG_CHECK(vocabulary_.contains(id), "the post-processor adds id {}, which is not a token", id);
}

void Pipeline::add_tokens() {
  const int64_t count = vocabulary_.count();
  int64_t largest = -1;  // largest id of added tokens
  size_t read = 0, normalized = 0;
  for (AddedToken& token : definition_.added_tokens) {
    check_utf8(token.content, "an added token");
    const auto known = vocabulary_.find(token.content);
    // The original numbers new tokens itself; in a file that it wrote, the ids are the same.
    int64_t id_there = known ? *known : std::max(count, largest + 1);
    if (!known && vocabulary_.contains(static_cast<int32_t>(id_there))) id_there = token.id;
    if (token.id != id_there) {
      log::warning(
          "the added token '{}' has id {} in the file, but Hugging Face would assign {}, which "
          "is used",
          token.content, token.id, id_there);
      token.id = id_there;
    }
    largest = std::max(largest, token.id);
    if (!known) vocabulary_.add(token.content, token.id);
    const auto id = static_cast<int32_t>(token.id);
    Text text(TextView{.bytes = token.content});
    if (token.normalized && normalizer_) normalizer_->normalize(text);
    const bool changed = text.bytes() != token.content;
    if (changed) normalized_texts_.emplace(id, text.bytes());
    read += token.content.size();
    check_growth(normalized += text.bytes().size(), read, "the normalizer, of all added tokens,");
    // A special token that the normalizer changes is decoded in its new spelling and then, as in
    // the original, not known as special, unless another one is spelt so.
    special_.resize(std::max(special_.size(), static_cast<size_t>(id) + 1));
    if (token.special && !changed) special_[static_cast<size_t>(id)] = true;
    (token.normalized ? normalized_tokens_ : raw_tokens_).add(text.bytes(), id, token);
  }
  MG_CHECK(vocabulary_.count() > 0, "the vocabulary is empty");
  special_.resize(static_cast<size_t>(vocabulary_.size()));
  for (const auto& [id, text] : normalized_texts_) {
    const auto spelt = vocabulary_.find(text);
    if (spelt && special_[static_cast<size_t>(*spelt)]) special_[static_cast<size_t>(id)] = true;
  }
}

std::unique_ptr<Scratch> Pipeline::borrow() const {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Pipeline::give_back(std::unique_ptr<Scratch> scratch) const {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

void Pipeline::encode_raw(TextView text, Scratch& scratch, Output& out) const {
  raw_tokens_.split(
      text, out.options.find_special_tokens,
      [&](TextView rest) { encode_rest(rest, scratch, out); },
      [&](int32_t id, TextView found) { out.add_token(id, found); });
}

void Pipeline::encode_rest(TextView rest, Scratch& scratch, Output& out) const {
  Text text(rest);
  if (normalizer_) {
    normalizer_->normalize(text);
    check_growth(out.normalized += text.bytes().size(), out.size, "the normalizer");
  }
  normalized_tokens_.split(
      text.view(), out.options.find_special_tokens,
      [&](TextView part) { encode_normalized(part, scratch, out); },
      [&](int32_t id, TextView found) { out.add_token(id, found); });
}

void Pipeline::encode_normalized(TextView text, Scratch& scratch, Output& out) const {
  if (!pre_tokenizer_) {
    encode_piece(text, scratch, out);
  } else {
    pre_tokenizer_->split(text, scratch.regex,
                          [&](TextView piece) { encode_piece(piece, scratch, out); });
  }
  model_->finish(scratch, out.ids);
}

void Pipeline::encode_piece(TextView piece, Scratch& scratch, Output& out) const {
  if (!out.offsets) return model_->encode(piece.bytes, scratch, out.ids, nullptr);
  out.ranges.clear();
  const size_t first = out.ids.size();
  model_->encode(piece.bytes, scratch, out.ids, &out.ranges);
  for (size_t i = 0; i < out.ranges.size(); ++i) {
    const Range range = out.ranges[i];
    const bool inside = range.begin < range.end && range.end <= piece.bytes.size();
    const Range origin = inside ? piece.origin(range.begin, range.end) : Range{};
    if (inside && out.ids[first + i] == unknown_) {
      out.add_spelt(origin, piece.bytes.substr(range.begin, range.end - range.begin));
    } else {
      out.offsets->push_back(origin);
    }
  }
}

// Converts byte ranges of `text` to code points.
void to_code_points(std::string_view text, std::span<Range> ranges) {
  std::vector<uint32_t> point(text.size() + 1);
  uint32_t next = 0;
  for (size_t i = 0; i < text.size(); ++next) {
    const auto size = static_cast<size_t>(character_size(text[i]));
    for (size_t k = 0; k < size; ++k) point[i + k] = next;
    i += size;
  }
  point.back() = next;
  for (Range& range : ranges) range = {point[range.begin], point[range.end]};
}

void Pipeline::encode(std::string_view text, const EncodeOptions& options,
                      std::vector<int32_t>& ids, std::vector<Range>* offsets) const {
  check_utf8(text, "the text to encode");
  MG_CHECK(!offsets || text.size() < (uint64_t{1} << 32),
           "a text of {} bytes is too long for offsets; the limit is 4 GB", text.size());
  std::unique_ptr<Scratch> scratch = borrow();
  const PostProcessor& around = post_processor_;
  Output out{ids, offsets, {}, {}, options, text.size()};
  if (options.add_special_tokens) ids.insert(ids.end(), around.before.begin(), around.before.end());
  const size_t first = ids.size();
  std::vector<Range> origins, found;
  if (offsets) {
    offsets->resize(offsets->size() + (options.add_special_tokens ? around.before.size() : 0));
    origins = character_ranges(text, 0);
    out.offsets = &found;
  }
  encode_raw({.bytes = text, .origins = offsets ? origins.data() : nullptr}, *scratch, out);
  if (offsets) {
    out.spelt.resize(found.size());
    to_code_points(text, found);
    around.trim(found, [&](size_t i) {
      return out.spelt[i].empty() ? text_of(ids[first + i]) : std::string_view(out.spelt[i]);
    });
    offsets->insert(offsets->end(), found.begin(), found.end());
    offsets->resize(offsets->size() + (options.add_special_tokens ? around.after.size() : 0));
  }
  if (options.add_special_tokens) ids.insert(ids.end(), around.after.begin(), around.after.end());
  give_back(std::move(scratch));
}

std::string Pipeline::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::vector<std::string_view> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (contains(id) && !(skip_special && is_special(id))) tokens.push_back(text_of(id));
  }
  return decoder_->decode(tokens);
}

}  // namespace

void Codec::append_bytes(int32_t id, std::string& bytes) const { bytes += token(id); }
std::optional<int32_t> Codec::role(std::string_view) const { return std::nullopt; }

std::unique_ptr<Codec> make_pipeline(Definition definition) {
  return std::make_unique<Pipeline>(std::move(definition));
}

}  // namespace megatron::tokenizers
