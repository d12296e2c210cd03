#include "tokenizers/definition.h"

#include <simdjson.h>

#include "base/error.h"
#include "base/lfs_pointer.h"
#include "base/text_parts.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"

namespace megatron::tokenizers {
namespace {

namespace dom = simdjson::dom;

Json small_json(const dom::element& element) { return Json::parse(simdjson::minify(element)); }

AddedToken parse_added_token(const Json& json) {
  const auto flag = [&](std::string_view key, bool otherwise) {
    const Json* value = json.find(key);
    return value ? value->as_bool() : otherwise;
  };
  AddedToken token;
  token.content = json["content"].as_string();
  token.id = json["id"].as_integer();
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  token.special = flag("special", false);
  token.normalized = flag("normalized", !token.special);
  return token;
}

void parse_vocabulary(dom::object object, Vocabulary& vocabulary) {
  for (const auto [token, id] : object) vocabulary.add(token, int64_t{id});
}

// Unigram: a list of [token, score]; ids are indices into it.
void parse_scored_vocabulary(dom::array list, Definition& definition) {
  for (const dom::array pair : list) {
    MG_CHECK(pair.size() == 2, "entry {} of the vocabulary is not [token, score]",
             definition.scores.size());
    definition.vocabulary.add(pair.at(0), static_cast<int64_t>(definition.scores.size()));
    definition.scores.push_back(pair.at(1));
  }
}

Merge parse_merge(const Vocabulary& vocabulary, const dom::element& merge,
                  std::string_view prefix) {
  if (merge.is_string()) {
    const std::string_view text = merge;
    const size_t space = text.find(' ');
    MG_CHECK(space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos,
             "merge '{}' is not two tokens with one space between them", text);
    return find_merge(vocabulary, text.substr(0, space), text.substr(space + 1), prefix);
  }
  const dom::array pair = merge;
  MG_CHECK(pair.size() == 2, "a merge has {} tokens; it must have 2", pair.size());
  return find_merge(vocabulary, pair.at(0), pair.at(1), prefix);
}

Json parse_model(dom::object model, Definition& definition) {
  Json settings{Json::Object{}};
  dom::element vocabulary, merges;
  bool has_vocabulary = false, has_merges = false;
  for (const auto [key, value] : model) {
    if (key == "vocab") {
      vocabulary = value, has_vocabulary = true;
    } else if (key == "merges") {
      merges = value, has_merges = true;
    } else {
      MG_CHECK(!settings.contains(key), "the model has '{}' twice", key);
      settings.set(key, small_json(value));
    }
  }
  const Json* type = settings.find("type");
  const std::string name = type ? type->as_string() : has_merges ? "BPE" : "without a type";
  MG_CHECK(name == "BPE" || name == "Unigram" || name == "WordPiece" || name == "WordLevel",
           "model '{}' is not supported; supported are BPE, Unigram, WordPiece and WordLevel",
           name);
  MG_CHECK(has_vocabulary, "the model has no 'vocab'");
  MG_CHECK(has_merges || name != "BPE", "the model has no 'merges'");
  definition.model = name;
  if (name == "Unigram") {
    parse_scored_vocabulary(vocabulary, definition);
  } else {
    parse_vocabulary(vocabulary, definition.vocabulary);
  }
  if (name != "BPE") return settings;
  const Json* prefix = settings.find("continuing_subword_prefix");
  const std::string none;
  const std::string& cut = prefix && !prefix->is_null() ? prefix->as_string() : none;
  for (const dom::element merge : dom::array(merges)) {
    definition.merges.push_back(parse_merge(definition.vocabulary, merge, cut));
  }
  return settings;
}

Definition parse_members(dom::object members) {
  Definition definition;
  definition.settings = Json::Object{};
  for (const auto [key, value] : members) {
    MG_CHECK(!definition.settings.contains(key), "'{}' occurs twice", key);
    Json kept;
    if (key == "added_tokens") {
      const Json tokens = small_json(value);
      if (!tokens.is_null()) {
        for (const Json& token : tokens.as_array())
          definition.added_tokens.push_back(parse_added_token(token));
      }
    } else if (key == "model") {
      kept = parse_model(value, definition);
    } else {
      kept = small_json(value);
    }
    definition.settings.set(key, std::move(kept));
  }
  MG_CHECK(definition.settings.contains("model"), "there is no 'model'; is this a tokenizer.json?");
  return definition;
}

Json write_added_tokens(const Definition& definition) {
  Json::Array tokens;
  for (const AddedToken& token : definition.added_tokens) {
    tokens.push_back(Json::Object{{"id", token.id},
                                  {"content", token.content},
                                  {"single_word", token.single_word},
                                  {"lstrip", token.lstrip},
                                  {"rstrip", token.rstrip},
                                  {"normalized", token.normalized},
                                  {"special", token.special}});
  }
  return tokens;
}

Json write_vocabulary(const Definition& definition) {
  const Vocabulary& vocabulary = definition.vocabulary;
  if (definition.model == "Unigram") {
    Json::Array list;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      list.push_back(Json::Array{std::string(vocabulary.text(id)),
                                 definition.scores[static_cast<size_t>(id)]});
    }
    return list;
  }
  Json::Object tokens;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.contains(id)) tokens.emplace_back(std::string(vocabulary.text(id)), int64_t{id});
  }
  return tokens;
}

Json write_model(const Json& settings, const Definition& definition) {
  Json::Object model = settings.as_object();
  const Vocabulary& vocabulary = definition.vocabulary;
  model.emplace_back("vocab", write_vocabulary(definition));
  if (definition.model != "BPE") return model;
  Json::Array merges;
  for (const Merge& merge : definition.merges) {
    merges.push_back(Json::Array{vocabulary.text(merge.left), vocabulary.text(merge.right)});
  }
  model.emplace_back("merges", std::move(merges));
  return model;
}

template <class F>
void for_each_line(std::string_view text, F&& f) {
  while (!text.empty()) {
    std::string_view line = take_until(text, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(line);
  }
}

template <class F>
auto with_simdjson(std::string_view text, F&& f) {
  try {
    dom::parser parser;
    return f(parser.parse(simdjson::padded_string(text)).value());
  } catch (const simdjson::simdjson_error& error) {
    fail("{}", error.what());
  }
}

}  // namespace

const Json& Definition::member(std::string_view name) const {
  static const Json kNull;
  const Json* found = settings.find(name);
  return found ? *found : kNull;
}

Merge find_merge(const Vocabulary& vocabulary, std::string_view left, std::string_view right,
                 std::string_view prefix) {
  const auto a = vocabulary.find(left), b = vocabulary.find(right);
  MG_CHECK(a && b, "merge '{} {}': token '{}' is not in the vocabulary", left, right,
           a ? right : left);
  const std::string_view rest = right.starts_with(prefix) ? right.substr(prefix.size()) : right;
  const std::string joined = std::string(left).append(rest);
  const auto id = vocabulary.find(joined);
  MG_CHECK(id, "merge '{} {}': '{}' is not in the vocabulary", left, right, joined);
  return {*a, *b, *id};
}

Definition parse_definition(std::string_view text) {
  return with_simdjson(text, [](const dom::element& root) { return parse_members(root); });
}

std::string write_definition(const Definition& definition) {
  Json::Object members;
  for (const auto& [key, value] : definition.settings.as_object()) {
    if (key == "added_tokens") {
      members.emplace_back(key, write_added_tokens(definition));
    } else if (key == "model") {
      members.emplace_back(key, write_model(value, definition));
    } else {
      members.emplace_back(key, value);
    }
  }
  return Json(std::move(members)).dump(2) + "\n";
}

Json bpe_settings(BpeSettings settings) {
  return Json::Object{{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", std::move(settings.unknown)},
                      {"continuing_subword_prefix", settings.affix},
                      {"end_of_word_suffix", settings.affix},
                      {"fuse_unk", settings.fuse_unknown},
                      {"byte_fallback", settings.byte_fallback},
                      {"ignore_merges", settings.ignore_merges}};
}

Json byte_level_settings(bool add_prefix_space, bool use_regex) {
  return Json::Object{{"type", "ByteLevel"},
                      {"add_prefix_space", add_prefix_space},
                      {"trim_offsets", true},
                      {"use_regex", use_regex}};
}

Json metaspace_settings(const char* prepend_scheme) {
  return Json::Object{{"type", "Metaspace"},
                      {"replacement", "\xe2\x96\x81"},
                      {"prepend_scheme", prepend_scheme},
                      {"split", false}};
}

Json replace_settings(const char* kind, const char* from, const char* to) {
  return Json::Object{
      {"type", "Replace"}, {"pattern", Json::Object{{kind, from}}}, {"content", to}};
}

Json sequence_settings(const char* key, Json::Array steps) {
  return Json::Object{{"type", "Sequence"}, {key, std::move(steps)}};
}

Json split_settings(const char* kind, std::string_view pattern, const char* behavior) {
  return Json::Object{{"type", "Split"},
                      {"pattern", Json::Object{{kind, pattern}}},
                      {"behavior", behavior},
                      {"invert", false}};
}

Definition definition_of(Json model, Components components) {
  Definition definition;
  definition.model = model["type"].as_string();
  definition.settings = Json::Object{{"version", "1.0"},
                                     {"truncation", nullptr},
                                     {"padding", nullptr},
                                     {"added_tokens", nullptr},
                                     {"normalizer", std::move(components.normalizer)},
                                     {"pre_tokenizer", std::move(components.pre_tokenizer)},
                                     {"post_processor", std::move(components.post_processor)},
                                     {"decoder", std::move(components.decoder)},
                                     {"model", std::move(model)}};
  return definition;
}

Definition byte_level_definition(std::string_view pattern, bool add_prefix_space) {
  Json pre_tokenizer = byte_level_settings(add_prefix_space, true);
  if (pattern != kGpt2Pattern)
    pre_tokenizer =
        sequence_settings("pretokenizers", {split_settings("Regex", pattern, "Isolated"),
                                            byte_level_settings(add_prefix_space, false)});
  return definition_of(bpe_settings({}), {.pre_tokenizer = std::move(pre_tokenizer),
                                          .post_processor = byte_level_settings(true, true),
                                          .decoder = byte_level_settings(true, true)});
}

Definition parse_gpt2(std::string_view vocabulary_json, std::string_view merges_text) {
  refuse_lfs_pointer(merges_text, "merges.txt");
  Definition definition = byte_level_definition(kGpt2Pattern, false);
  with_simdjson(vocabulary_json, [&](const dom::element& root) {
    parse_vocabulary(root, definition.vocabulary);
    return 0;
  });
  for_each_line(merges_text, [&](std::string_view line) {
    if (line.empty() || line.starts_with("#version")) return;
    const size_t space = line.find(' ');
    MG_CHECK(space != std::string_view::npos,
             "merges: '{}' is not two tokens with a space between them", line);
    definition.merges.push_back(
        find_merge(definition.vocabulary, line.substr(0, space), line.substr(space + 1)));
  });
  const std::string end = "<|endoftext|>";
  if (const auto id = definition.vocabulary.find(end)) {
    definition.added_tokens.push_back({.content = end, .id = *id, .special = true});
  }
  return definition;
}

Definition parse_bert(std::string_view vocabulary_text, bool lowercase) {
  Definition definition = definition_of(
      Json::Object{{"type", "WordPiece"},
                   {"unk_token", "[UNK]"},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", 100}},
      {.normalizer = Json::Object{{"type", "BertNormalizer"},
                                  {"clean_text", true},
                                  {"handle_chinese_chars", true},
                                  {"strip_accents", nullptr},
                                  {"lowercase", lowercase}},
       .pre_tokenizer = Json::Object{{"type", "BertPreTokenizer"}},
       .decoder = Json::Object{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}});
  int64_t next = 0;
  for_each_line(vocabulary_text,
                [&](std::string_view line) { definition.vocabulary.add(line, next++); });
  const auto id_of = [&](std::string_view token) {
    const auto id = definition.vocabulary.find(token);
    MG_CHECK(id, "the vocabulary has no '{}'; is this a BERT vocabulary, with one token per line?",
             token);
    return int64_t{*id};
  };
  for (const char* token : {"[UNK]", "[CLS]", "[SEP]"}) id_of(token);
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    if (const auto id = definition.vocabulary.find(token))
      definition.added_tokens.push_back({.content = token, .id = *id, .special = true});
  }
  definition.settings.set("post_processor",
                          Json::Object{{"type", "BertProcessing"},
                                       {"sep", Json::Array{"[SEP]", id_of("[SEP]")}},
                                       {"cls", Json::Array{"[CLS]", id_of("[CLS]")}}});
  return definition;
}

}  // namespace megatron::tokenizers
