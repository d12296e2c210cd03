#include "tokenizers/sentence_piece/sentence_piece_definition.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/base64.h"

namespace megatron::tokenizers {
namespace {

using Model = SentencePieceModel;

constexpr const char* kMark = "\xe2\x96\x81";

// Appends the merges of a piece, those with a shorter left part first. `fits` selects the pieces
// that may take part.
template <class F>
void add_merges(Definition& definition, int32_t id, F&& fits) {
  const Vocabulary& vocabulary = definition.vocabulary;
  const std::string_view text = vocabulary.text(id);
  size_t at = 0;
  while ((at += static_cast<size_t>(character_size(text[at]))) < text.size()) {
    const auto left = vocabulary.find(text.substr(0, at));
    if (!left || !fits(*left)) continue;
    const auto right = vocabulary.find(text.substr(at));
    if (right && fits(*right)) definition.merges.push_back({*left, *right, id});
  }
}

// Splitting a piece takes time quadratic in its length.
void check_sizes(const Model& model) {
  constexpr size_t kSteps = size_t{1} << 34;
  size_t steps = 0;
  for (const Model::Piece& piece : model.pieces) steps += piece.text.size() * piece.text.size();
  MG_CHECK(steps <= kSteps,
           "the pieces are too long to be divided into merges (the sum of the squares of their "
           "sizes is {}; the limit is {})",
           steps, kSteps);
}

// Normal pieces by descending score, then by id.
std::vector<int32_t> by_score(const Model& model) {
  std::vector<int32_t> ids(model.pieces.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::erase_if(ids, [&](int32_t id) {
    return model.pieces[static_cast<size_t>(id)].type != Model::kNormal;
  });
  std::ranges::stable_sort(ids, std::greater<>(),
                           [&](int32_t id) { return model.pieces[static_cast<size_t>(id)].score; });
  return ids;
}

Json normalizer_of(const Model& model, bool prefix_everywhere) {
  Json::Array steps;
  if (!model.normalization_map.empty()) {
    steps.push_back(Json::Object{{"type", "Precompiled"},
                                 {"precompiled_charsmap", to_base64(model.normalization_map)}});
  }
  if (model.removes_extra_spaces) {
    steps.push_back(replace_settings("Regex", R"(\A +| +\z)", ""));
    steps.push_back(replace_settings("Regex", " {2,}", " "));
  }
  if (model.escapes_spaces) steps.push_back(replace_settings("String", " ", kMark));
  // Metaspace puts no second mark before a text that begins with one; SentencePiece does.
  if (model.adds_prefix && prefix_everywhere)
    steps.push_back(replace_settings("Regex", "\\A\xe2\x96\x81", "\xe2\x96\x81\xe2\x96\x81"));
  return sequence_settings("normalizers", std::move(steps));
}

std::string escaped(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("()[]{}?*+-|^$\\.&~# \t\n\r\v\f").find(c) != std::string_view::npos)
      pattern += '\\';
    pattern += c;
  }
  return pattern;
}

// Splits off the user-defined pieces, longer ones first.
Json split_at(std::vector<std::string_view> pieces) {
  std::ranges::stable_sort(pieces, std::greater<>(), count_characters);
  std::string pattern;
  for (const std::string_view piece : pieces)
    pattern += (pattern.empty() ? "" : "|") + escaped(piece);
  return split_settings("Regex", pattern, "Isolated");
}

Json pre_tokenizer_of(const Model& model, std::vector<std::string_view> user_defined,
                      bool prefix_everywhere) {
  Json::Array steps;
  if (model.adds_prefix)
    steps.push_back(metaspace_settings(prefix_everywhere ? "always" : "first"));
  if (!user_defined.empty()) steps.push_back(split_at(std::move(user_defined)));
  if (steps.empty()) return nullptr;
  return sequence_settings("pretokenizers", std::move(steps));
}

Json decoder_of(const Model& model) {
  Json::Array steps = {replace_settings("String", kMark, " ")};
  if (model.byte_fallback) steps.push_back(Json::Object{{"type", "ByteFallback"}});
  if (model.adds_prefix || model.byte_fallback) steps.push_back(Json::Object{{"type", "Fuse"}});
  if (model.adds_prefix)
    steps.push_back(Json::Object{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return sequence_settings("decoders", std::move(steps));
}

}  // namespace

Definition piece_vocabulary(const SentencePieceModel& model) {
  check_sizes(model);
  Definition definition = definition_of(Json::Object{{"type", "BPE"}});
  for (const Model::Piece& piece : model.pieces)
    definition.vocabulary.add(piece.text, definition.vocabulary.size());
  for (int32_t id = 0; id < definition.vocabulary.size(); ++id)
    add_merges(definition, id, [](int32_t) { return true; });
  return definition;
}

Definition pipeline_of(const SentencePieceModel& model, const std::vector<std::string>& names,
                       bool prefix_everywhere) {
  std::vector<std::string_view> user_defined;
  for (size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].type == Model::kUserDefined) user_defined.push_back(names[id]);
  const bool is_bpe = model.algorithm == Model::Algorithm::bpe;
  Json algorithm = Json::Object{
      {"type", "Unigram"}, {"unk_id", model.unknown_id}, {"byte_fallback", model.byte_fallback}};
  if (is_bpe)
    algorithm = bpe_settings({.unknown = model.unknown_piece,
                              .fuse_unknown = true,
                              .byte_fallback = model.byte_fallback,
                              .ignore_merges = !user_defined.empty()});
  Definition definition = definition_of(std::move(algorithm));
  for (const std::string& name : names)
    definition.vocabulary.add(name, definition.vocabulary.size());
  if (is_bpe) {
    check_sizes(model);
    for (const int32_t id : by_score(model)) {
      add_merges(definition, id, [&](int32_t part) {
        return model.pieces[static_cast<size_t>(part)].type == Model::kNormal;
      });
    }
  } else {
    for (const Model::Piece& piece : model.pieces) definition.scores.push_back(piece.score);
  }
  definition.settings.set("normalizer", normalizer_of(model, prefix_everywhere));
  definition.settings.set("pre_tokenizer",
                          pre_tokenizer_of(model, std::move(user_defined), prefix_everywhere));
  definition.settings.set("decoder", decoder_of(model));
  return definition;
}

}  // namespace megatron::tokenizers
