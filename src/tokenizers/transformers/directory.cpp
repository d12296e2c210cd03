#include "tokenizers/transformers/directory.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "tokenizers/sentence_piece/sentence_piece_definition.h"
#include "tokenizers/transformers/added_token_list.h"
#include "tokenizers/transformers/class_components.h"
#include "tokenizers/transformers/class_name.h"
#include "tokenizers/transformers/token_configuration.h"

namespace megatron::tokenizers {
namespace {

using Kind = TokenizerFile::Kind;
// Builds a definition from one directory.
class Opening {
 public:
  Opening(const TokenizerFile& file, std::string class_name, TokenConfiguration configuration)
      : file_(file), class_(std::move(class_name)), c_(std::move(configuration)) {}

  Definition open(Definition definition) {
    d_ = std::move(definition);
    if (file_.kind == Kind::sentence_piece) read_pieces();
    const bool other = is_other_class(class_) && file_.kind != Kind::bert;
    if (other) warn_of_components();
    if (c_.member("split_special_tokens") == Json(true))
      log::warning(
          "{}: split_special_tokens is true, which is not supported: special tokens in a text are "
          "read as tokens",
          file_.directory());
    if (class_ != kPlainClass && !is_other_class(class_)) {
      d_.added_tokens.clear();  // kept only if the configuration has them
      apply_class(class_, c_, d_);
    }
    if (const Json& padding = d_.member("padding"); padding.is_object())
      c_.set_default("pad_token", padding["pad_token"]);
    add_tokens();
    put_tokens_around();
    return std::move(d_);
  }

 private:
  void read_pieces();
  void read_backend_pieces(const SentencePieceModel& model);
  void add_tokens();
  void put_tokens_around();
  void warn_of_components() const {
    log::warning(
        "{}: for {}, transformers builds normalizer, pre-tokenizer, decoder, special tokens and "
        "post-processor itself; this program uses those of {} and its configuration, which may "
        "differ if it was not written by transformers",
        file_.directory(), class_, std::filesystem::path(file_.path).filename().string());
  }

  const TokenizerFile& file_;
  std::string class_;
  TokenConfiguration c_;
  Definition d_;
  std::vector<ConfiguredToken> pieces_;  // control and user-defined pieces of a SentencePiece model
};

void Opening::read_pieces() {
  MG_CHECK(!is_other_class(class_),
           "for {}, transformers adds tokens to a SentencePiece model in a special way, which is "
           "not supported; save it as tokenizer.json (AutoTokenizer.from_pretrained and "
           "save_pretrained) or, to read the model as it is, set tokenizer_class to "
           "PreTrainedTokenizerFast in tokenizer_config.json",
           class_);
  const SentencePieceModel model = parse_sentence_piece(file_.content);
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    const bool control = piece.type == SentencePieceModel::kControl;
    if (!control && piece.type != SentencePieceModel::kUserDefined) continue;
    pieces_.push_back({{.content = std::string(piece.text), .special = control}, true});
  }
  if (class_ == kPlainClass) return read_backend_pieces(model);
  d_ = piece_vocabulary(model);
}

void Opening::read_backend_pieces(const SentencePieceModel& model) {
  std::vector<std::string> names;
  std::set<std::string> kept;  // names of pieces that the configuration does not rename
  const auto& added = c_.added_tokens();
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (!added.contains(static_cast<int64_t>(names.size()))) kept.emplace(piece.text);
    names.emplace_back(piece.text);
  }
  if (model.algorithm == SentencePieceModel::Algorithm::bpe) {
    for (const auto& [id, token] : added) {
      if (id >= 0 && id < static_cast<int64_t>(names.size()) && !kept.contains(token.token.content))
        names[static_cast<size_t>(id)] = token.token.content;
    }
  }
  std::erase_if(pieces_, [](const ConfiguredToken& piece) { return !piece.token.special; });
  if (model.adds_prefix) {
    for (auto& [id, token] : c_.added_tokens())
      token.token.normalized = false, token.normalized_is_given = true;
  }
  const Json& legacy = c_.member("legacy");
  d_ = pipeline_of(model, names, !c_.is_set("legacy") || (legacy.is_bool() && legacy.as_bool()));
  if (model.bos_id >= 0) c_.set_default("bos_token", model.bos_piece);
  if (model.eos_id >= 0) c_.set_default("eos_token", model.eos_piece);
  if (model.unknown_id >= 0) c_.set_default("unk_token", model.unknown_piece);
}

void Opening::add_tokens() {
  AddedTokenList list(d_.vocabulary);
  for (AddedToken& token : d_.added_tokens) list.add(std::move(token));
  const std::vector<TokenConfiguration::Named> named = c_.named_tokens();
  const std::vector<ConfiguredToken> extra = c_.extra_tokens(pieces_);
  std::vector<ConfiguredToken> tokens;
  std::set<std::string> known, names;
  d_.named_tokens.emplace();
  for (const auto& [id, token] : c_.added_tokens()) {
    tokens.push_back(token);
    known.insert(token.token.content);
  }
  const auto append = [&](ConfiguredToken token) {
    token.token.id = -1;
    const std::string& content = token.token.content;
    if (!known.contains(content) && !list.contains(content)) tokens.push_back(std::move(token));
  };
  for (const auto& [name, token] : named) {
    names.insert(token.token.content);
    d_.named_tokens->emplace_back(name, token.token.content);
    append(token);
  }
  for (const ConfiguredToken& token : extra) append(token);
  for (ConfiguredToken& token : tokens) {
    if (names.contains(token.token.content)) token.token.special = true;
    if (!token.normalized_is_given) token.token.normalized = !token.token.special;
    list.add(std::move(token.token));
  }
  if (class_ == "Qwen2Tokenizer") {
    for (const auto& [name, token] : named)
      list.add({.content = token.token.content, .id = -1, .special = true});
    for (const ConfiguredToken& token : extra)
      list.add({.content = token.token.content, .id = -1, .special = true});
  }
  d_.added_tokens = list.take();
}

// Without tokenizer.json, add_bos_token and add_eos_token say which tokens are put around a text.
void Opening::put_tokens_around() {
  const bool has_json = file_.kind == Kind::hugging_face, neox = class_ == "GPTNeoXTokenizer";
  const bool given = !has_json && (c_.is_set("add_bos_token") || c_.is_set("add_eos_token"));
  if (!given && !neox) return;
  Json::Array single, second;
  Json::Object ids;
  const auto put = [&](const char* flag, const char* name) {
    const Json& value = c_.member(flag);
    const auto token = std::ranges::find(*d_.named_tokens, name, &NamedTokens::value_type::first);
    if (has_json || !value.is_bool() || !value.as_bool() || token == d_.named_tokens->end()) return;
    const std::string& content = token->second;
    const auto added = std::ranges::find(d_.added_tokens, content, &AddedToken::content);
    if (added == d_.added_tokens.end()) return;
    single.push_back(Json::Object{{"SpecialToken", Json::Object{{"id", content}, {"type_id", 0}}}});
    second.push_back(Json::Object{{"SpecialToken", Json::Object{{"id", content}, {"type_id", 1}}}});
    const Json entry = Json::Object{
        {"id", content}, {"ids", Json::Array{added->id}}, {"tokens", Json::Array{content}}};
    if (std::ranges::find(ids, content, &Json::Member::first) == ids.end())
      ids.emplace_back(content, entry);
  };
  const auto put_text = [&] {
    single.push_back(Json::Object{{"Sequence", Json::Object{{"id", "A"}, {"type_id", 0}}}});
    second.push_back(Json::Object{{"Sequence", Json::Object{{"id", "B"}, {"type_id", 1}}}});
  };
  put("add_bos_token", "bos_token");
  put_text();
  put("add_eos_token", "eos_token");
  Json::Array pair = single;
  pair.insert(pair.end(), second.begin(), second.end());
  d_.settings.set("post_processor", Json::Object{{"type", "TemplateProcessing"},
                                                 {"single", std::move(single)},
                                                 {"pair", std::move(pair)},
                                                 {"special_tokens", std::move(ids)}});
}

}  // namespace

std::optional<Definition> open_definition(const TokenizerFile& file) {
  Definition definition;
  switch (file.kind) {
    case Kind::hugging_face: definition = parse_definition(file.content); break;
    case Kind::gpt2: {
      const auto merges = std::filesystem::path(file.directory()) / "merges.txt";
      definition = parse_gpt2(file.content, read_file(merges.string()));
      break;
    }
    case Kind::bert: break;
    case Kind::sentence_piece: break;
    default: return std::nullopt;
  }
  TokenConfiguration configuration(file.directory(),
                                   file.kind == Kind::hugging_face ? &definition : nullptr);
  if (file.kind == Kind::bert) {
    const Json& lower = configuration.member("do_lower_case");
    definition = parse_bert(file.content, !lower.is_bool() || lower.as_bool());
  }
  if (!configuration.exists()) {
    if (file.kind == Kind::sentence_piece) return std::nullopt;
    return definition;
  }
  const bool has_json = file.kind == Kind::hugging_face;
  std::string name = class_name(configuration, has_json ? std::string_view(file.content) : "");
  return Opening(file, std::move(name), std::move(configuration)).open(std::move(definition));
}

}  // namespace megatron::tokenizers
