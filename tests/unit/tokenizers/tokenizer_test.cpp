// Loading, saving, special tokens, streams, threads, and invalid files.
#include "tokenizers/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text_parts.h"
#include "tokenizers/definition.h"
#include "tokenizers/trainer/bpe_trainer.h"

namespace megatron::tokenizers {
namespace {

const std::string kVectors = std::string(MEGATRON_GOLDEN) + "/tokenizers/";
constexpr const char* kText =
    "the cat sat on the mat; the dog sat on the cat.\nthere, then, that: caf\xc3\xa9 "
    "\xe4\xb8\xad\xe6\x96\x87\n";

BpeTrainer small_trainer() {
  BpeTrainerOptions options;
  options.vocabulary_size = 300;
  options.special_tokens = {"<|endoftext|>", "<|pad|>"};
  BpeTrainer trainer(options);
  trainer.add(kText);
  return trainer;
}

Tokenizer small_tokenizer() { return small_trainer().train(); }

std::string to_json(const Tokenizer& tokenizer) { return tokenizer.codec().files().at(0).content; }

std::string folder_named(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "megatron_tokenizers_" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

std::string error_of(const std::string& path) {
  try {
    Tokenizer::load(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TokenizerTest, AnyTextComesBack) {
  const Tokenizer tokenizer = small_tokenizer();
  std::string all;
  for (char32_t c = 1; c < 0x800; ++c) {
    if (c < 0x80) all.push_back(static_cast<char>(c));
    else all += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  }
  for (const std::string& text : {std::string(kText), std::string(), std::string(3000, 't'), all}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_THROW(tokenizer.encode("broken \xff"), Error);
}

// A word long enough for the queue, compared with the definition: lowest rank, leftmost first.
TEST(TokenizerTest, LongWordsMergeLikeShortOnes) {
  const Tokenizer tokenizer = small_tokenizer();
  const Definition definition = parse_definition(to_json(tokenizer));
  std::mt19937 random(5);
  for (size_t size : {3, 20, 47, 48, 49, 50, 300}) {
    std::string word;
    for (size_t i = 0; i < size; ++i) word += "theacsor"[random() % 8];
    std::vector<int32_t> wanted;
    for (const char c : word) wanted.push_back(*definition.vocabulary.find(std::string(1, c)));
    for (bool found = true; found;) {
      found = false;
      for (size_t rank = 0; rank < definition.merges.size() && !found; ++rank) {
        for (size_t i = 0; i + 1 < wanted.size() && !found; ++i) {
          const Merge& merge = definition.merges[rank];
          if (merge.left != wanted[i] || merge.right != wanted[i + 1]) continue;
          wanted[i] = merge.joined;
          wanted.erase(wanted.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          found = true;
        }
      }
    }
    EXPECT_EQ(tokenizer.encode(word), wanted) << word;
  }
}

TEST(TokenizerTest, SavesWhatItLoads) {
  const std::string folder = folder_named("save");
  const Tokenizer first = small_tokenizer();
  first.save(folder);
  const Tokenizer second = Tokenizer::load(folder),
                  third = Tokenizer::load(folder + "/tokenizer.json");
  EXPECT_EQ(to_json(first), to_json(second));
  EXPECT_EQ(first.encode(kText), third.encode(kText));
  EXPECT_EQ(second.vocabulary_size(), first.vocabulary_size());
  EXPECT_GT(second.vocabulary_size(), 258);
  EXPECT_EQ(second.eod(), 0);
  EXPECT_EQ(second.eos(), 0);
  EXPECT_EQ(second.pad(), 1);
  EXPECT_EQ(second.bos(), std::nullopt);
  EXPECT_TRUE(second.is_special(0));
  EXPECT_FALSE(second.is_special(2) || second.is_special(-1) || second.is_special(9999));
  EXPECT_EQ(second.token(1), "<|pad|>");
  EXPECT_EQ(second.token_id("<|pad|>"), 1);
  EXPECT_EQ(second.token_id("no such token"), std::nullopt);
  EXPECT_THROW(second.token(second.vocabulary_size()), Error);
  std::filesystem::remove_all(folder);
}

TEST(TokenizerTest, ReadsGpt2Files) {
  const std::string source = kVectors + "bpe_trainer/own_v4000_min2/";
  const std::string folder = folder_named("gpt2");
  write_file(folder + "/vocab.json", read_file(source + "vocab.json"));
  write_file(folder + "/merges.txt", "#version: 0.2\n" + read_file(source + "merges.txt"));
  const Tokenizer tokenizer = Tokenizer::load(folder);
  EXPECT_EQ(tokenizer.vocabulary_size(), 2083);
  EXPECT_EQ(tokenizer.eod(), 0);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(kText)), kText);
  EXPECT_EQ(tokenizer.encode("<|endoftext|>"), std::vector<int32_t>{0});
  std::filesystem::remove_all(folder);
}

TEST(TokenizerTest, SpecialTokensComeFromTheFilesBesideIt) {
  const std::string folder = folder_named("special");
  small_tokenizer().save(folder);
  write_file(folder + "/tokenizer_config.json",
             R"({"eos_token": {"content": "<|pad|>"}, "bos_token": null})");
  write_file(folder + "/config.json",
             R"({"bos_token_id": 7, "eos_token_id": [5, 6], "pad_token_id": 100000})");
  const Tokenizer tokenizer = Tokenizer::load(folder);
  EXPECT_EQ(tokenizer.eos(), 1);
  EXPECT_EQ(tokenizer.eod(), 1);
  EXPECT_EQ(tokenizer.bos(), 7);
  EXPECT_EQ(tokenizer.pad(), 1);
  write_file(folder + "/tokenizer_config.json", R"({"eos_token": "<nowhere>"})");
  const Tokenizer added = Tokenizer::load(folder);  // as in transformers
  EXPECT_EQ(added.eos(), tokenizer.vocabulary_size());
  EXPECT_EQ(added.encode("<nowhere>"), std::vector<int32_t>{tokenizer.vocabulary_size()});
  std::filesystem::remove_all(folder);
}

TEST(TokenizerTest, TokensOfEncodersComeFromNamesOrTheUsualOnes) {
  BpeTrainerOptions options;
  options.vocabulary_size = 300;
  options.special_tokens = {"<first>", "[CLS]", "[SEP]"};
  BpeTrainer trainer(options);
  trainer.add(kText);
  const std::string folder = folder_named("encoder");
  trainer.train().save(folder);
  const Tokenizer usual = Tokenizer::load(folder);
  EXPECT_EQ(usual.cls(), 1);
  EXPECT_EQ(usual.sep(), 2);
  EXPECT_EQ(usual.mask(), std::nullopt);
  write_file(folder + "/tokenizer_config.json",
             R"({"cls_token": "<first>", "mask_token": {"content": "[SEP]"}})");
  const Tokenizer named = Tokenizer::load(folder);
  EXPECT_EQ(named.cls(), 0);
  EXPECT_EQ(named.sep(), 2);
  EXPECT_EQ(named.mask(), 2);
  // special_tokens_map.json is not written again, so that the names move.
  std::filesystem::remove(folder + "/tokenizer_config.json");
  write_file(folder + "/special_tokens_map.json",
             R"({"cls_token": "<first>", "mask_token": "<first>"})");
  const Tokenizer mapped = Tokenizer::load(folder);
  ASSERT_EQ(mapped.mask(), 0);
  const std::string saved = folder_named("encoder_saved");
  mapped.save(saved);
  const Tokenizer again = Tokenizer::load(saved);
  EXPECT_EQ(again.cls(), 0);
  EXPECT_EQ(again.sep(), 2);
  EXPECT_EQ(again.mask(), 0);
  std::filesystem::remove_all(saved);
  std::filesystem::remove_all(folder);
}

TEST(TokenizerTest, SpecialTokensInTextAreFoundAndSkipped) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode("cat<|endoftext|>dog");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 1);
  EXPECT_EQ(tokenizer.decode(ids), "cat<|endoftext|>dog");
  EXPECT_EQ(tokenizer.decode(ids, true), "catdog");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{-5, 100000}), "");
}

TEST(TokenizerTest, StreamIsDecodeInPieces) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::string text = "\xe4\xb8\xad\xe6\x96\x87 the \xf0\x9f\x98\x80<|pad|>\xc3\xa9";
  DecodeStream stream(tokenizer);
  for (int round = 0; round < 2; ++round) {
    std::vector<int32_t> ids = tokenizer.encode(text);
    ids.pop_back();
    std::string joined;
    for (const int32_t id : ids) joined += stream.push(id);
    joined += stream.finish();
    EXPECT_EQ(joined, tokenizer.decode(ids, true));
  }
}

TEST(TokenizerTest, ManyThreadsAtOnce) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::vector<int32_t> wanted = tokenizer.encode(kText);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i)
        wrong[static_cast<size_t>(t)] += tokenizer.encode(kText) != wanted;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// As in the original, which assigns the ids of added tokens itself.
TEST(TokenizerTest, AddedTokensWithIdsThatDoNotFollow) {
  const auto codec = make_pipeline(parse_definition(R"({
    "added_tokens": [
      {"id": 5, "content": "a", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": false},
      {"id": 9, "content": "x", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": false}],
    "normalizer": null, "pre_tokenizer": null, "decoder": null, "post_processor": null,
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1}}})"));
  EXPECT_EQ(codec->find("a"), 1);
  EXPECT_EQ(codec->find("x"), 2);
  EXPECT_EQ(codec->size(), 3);
}

// As in the original, where a Unigram model's token for unknown text is that text.
TEST(TokenizerTest, UnknownTextIsTrimmedOfItsSpaces) {
  const auto codec = make_pipeline(parse_definition(R"({
    "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "decoder": null,
    "post_processor": {"type": "RobertaProcessing", "sep": ["b", 2], "cls": ["a", 1],
                       "trim_offsets": true, "add_prefix_space": false},
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1], ["b", -1]]}})"));
  std::vector<int32_t> ids;
  std::vector<Range> offsets;
  codec->encode("a  xb", {}, ids, &offsets);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 0, 2}));
  ASSERT_EQ(offsets.size(), 3u);
  EXPECT_EQ(offsets[1].begin, 3u);
  EXPECT_EQ(offsets[1].end, 4u);
}

TEST(TokenizerTest, AddedTokensAreTrimmedAsTheyAreSpeltWhenNormalized) {
  const auto codec = make_pipeline(parse_definition(R"({
    "added_tokens": [{"id": 1, "content": "x", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": true, "special": true}],
    "normalizer": {"type": "Prepend", "prepend": " "}, "pre_tokenizer": null, "decoder": null,
    "post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0}}})"));
  std::vector<int32_t> ids;
  std::vector<Range> offsets;
  codec->encode("x", {}, ids, &offsets);
  EXPECT_EQ(ids, std::vector<int32_t>{1});
  ASSERT_EQ(offsets.size(), 1u);
  EXPECT_EQ(offsets[0].begin, 1u);
  EXPECT_EQ(offsets[0].end, 1u);
}

// A post-processor over the words a, b, c, d (1 to 4) and the tokens <s>, </s>, [X] (5 to 7).
std::unique_ptr<Codec> codec_with(const std::string& post_processor) {
  return make_pipeline(parse_definition(R"({
    "added_tokens": [], "normalizer": null, "decoder": null,
    "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": )" +
                                        post_processor + R"(,
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2, "c": 3,
              "d": 4, "<s>": 5, "</s>": 6, "[X]": 7}}})"));
}

std::string around_of(const std::string& type, int begin, int end) {
  return fmt::format(R"({{"type": "{}", "cls": ["", {}], "sep": ["", {}]}})", type, begin, end);
}

// pieces: "5:0 A:0", tokens and sequences with their types.
std::string template_of(const std::string& single, const std::string& pair) {
  const auto list = [](const std::string& pieces) {
    std::string json;
    for (const std::string_view piece : split_text(pieces, ' ')) {
      const std::string_view id = piece.substr(0, 1), type = piece.substr(2);
      json += fmt::format(R"({}{{"{}": {{"id": "{}", "type_id": {}}}}})", json.empty() ? "" : ", ",
                          id < "A" ? "SpecialToken" : "Sequence", id, type);
    }
    return json;
  };
  return fmt::format(R"({{"type": "TemplateProcessing", "single": [{}], "pair": [{}],
                         "special_tokens": {{"5": {{"ids": [5]}}, "6": {{"ids": [6]}},
                                             "7": {{"ids": [7]}}}}}})",
                     list(single), list(pair));
}

// What tokenizers 0.23 makes of the pair "a b", "c d", and of "a b" alone.
TEST(TokenizerTest, JoinsTwoTextsAsTheOriginalDoes) {
  using Ids = std::vector<int32_t>;
  const auto sequence = [](const std::string& one, const std::string& other) {
    return fmt::format(R"({{"type": "Sequence", "processors": [{}, {}]}})", one, other);
  };
  const std::string bert = around_of("BertProcessing", 5, 6),
                    roberta = around_of("RobertaProcessing", 5, 6),
                    bytes = R"({"type": "ByteLevel", "trim_offsets": true})",
                    begins = template_of("5:0 A:0", "5:0 A:0 5:1 B:1"),
                    marks = template_of("7:0 A:0", "7:0 A:0 7:0 B:1");
  const struct {
    std::string post_processor;
    Ids ids, types, single;
  } cases[] = {
      {"null", {1, 2, 3, 4}, {0, 0, 1, 1}, {1, 2}},
      {bytes, {1, 2, 3, 4}, {0, 0, 1, 1}, {1, 2}},
      {bert, {5, 1, 2, 6, 3, 4, 6}, {0, 0, 0, 0, 1, 1, 1}, {5, 1, 2, 6}},
      {roberta, {5, 1, 2, 6, 6, 3, 4, 6}, Ids(8), {5, 1, 2, 6}},
      {template_of("5:0 A:0 6:0", "5:0 B:2 6:3 A:1 7:1"),
       {5, 3, 4, 6, 1, 2, 7},
       {0, 2, 2, 3, 1, 1, 1},
       {5, 1, 2, 6}},
      {template_of("A:0", "A:0 A:0 6:0 B:1"), {1, 2, 1, 2, 6, 3, 4}, {0, 0, 0, 0, 0, 1, 1}, {1, 2}},
      {sequence(bytes, begins), {5, 1, 2, 5, 3, 4}, {0, 0, 0, 1, 1, 1}, {5, 1, 2}},
      {sequence(bert, around_of("RobertaProcessing", 0, 7)),
       {0, 5, 1, 2, 6, 7, 7, 3, 4, 6, 7},
       Ids(11),
       {0, 5, 1, 2, 6, 7}},
      {sequence(bert, marks),
       {7, 5, 1, 2, 6, 7, 3, 4, 6},
       {0, 0, 0, 0, 0, 0, 1, 1, 1},
       {7, 5, 1, 2, 6}},
      {sequence(marks, bert),
       {5, 7, 6, 1, 2, 6, 7, 6, 3, 4, 6},
       {0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1},
       {5, 7, 6, 1, 2, 6}},
  };
  for (const auto& c : cases) {
    const Tokenizer tokenizer(codec_with(c.post_processor));
    const JoinedTexts joined = tokenizer.encode_pair("a b", "c d");
    EXPECT_EQ(joined.ids, c.ids) << c.post_processor;
    EXPECT_EQ(joined.types, c.types) << c.post_processor;
    EXPECT_EQ(joined.ids.at(joined.first), 1) << c.post_processor;
    EXPECT_EQ(joined.ids.at(joined.second), 3) << c.post_processor;
    EXPECT_EQ(tokenizer.encode("a b", true), c.single) << c.post_processor;
  }
}

TEST(TokenizerTest, RefusesPairsThatItsTemplateLacks) {
  const auto error_of_pair = [](const std::string& post_processor) -> std::string {
    try {
      Tokenizer(codec_with(post_processor)).encode_pair("a", "b");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of_pair(template_of("A:0", "A:0 6:0")).find("lacks sequence B"),
            std::string::npos);
  EXPECT_NE(error_of_pair(template_of("A:0", "A:0 C:0")).find("has the sequence 'C'"),
            std::string::npos);
  const JoinedTexts joined =
      Tokenizer(codec_with(template_of("A:0", "A:0 B:3"))).encode_pair("a", "b");
  EXPECT_EQ(joined.types_of_model(1), std::vector<int32_t>());
  EXPECT_EQ(joined.types_of_model(4), (std::vector<int32_t>{0, 3}));
  EXPECT_THROW(joined.types_of_model(2), Error);
}

TEST(TokenizerTest, RefusesWhatItDoesNotSupportByName) {
  const std::string folder = folder_named("refuse");
  const Json good = Json::parse(to_json(small_tokenizer()));
  const auto error_with = [&](const char* key, const Json& value) {
    Json bad = good;
    bad.set(key, value);
    write_file(folder + "/tokenizer.json", bad.dump());
    return error_of(folder);
  };
  const auto type = [](const char* name) { return Json(Json::Object{{"type", name}}); };
  const auto says = [&](const char* key, const Json& value, const char* text) {
    EXPECT_NE(error_with(key, value).find(text), std::string::npos) << error_with(key, value);
  };
  says("model", type("Trigram"),
       "tokenizer.json: model 'Trigram' is not supported; supported are BPE, Unigram, WordPiece");
  says("normalizer", type("NFX"), "normalizer 'NFX' is unknown");
  says("decoder", type("Echo"), "decoder 'Echo' is not supported");
  says("post_processor", type("X"), "post-processor 'X' is not supported");
  says("pre_tokenizer", type("Scissors"), "pre-tokenizer 'Scissors' is unknown");
  EXPECT_NE(error_of(folder + "/missing.json").find("missing.json"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(TokenizerTest, NamesWhatIsWrongInTheModel) {
  const auto error_with = [](const std::string& vocab, const std::string& merges) -> std::string {
    try {
      parse_definition(R"({"model": {"type": "BPE", "vocab": )" + vocab + R"(, "merges": )" +
                       merges + "}}");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_with(R"({"a": 0, "b": 1, "ab": 2})", R"(["a b"])"), "");
  EXPECT_EQ(error_with(R"({"a": 0, "b": 1})", R"([["a", "c"]])"),
            "merge 'a c': token 'c' is not in the vocabulary");
  EXPECT_EQ(error_with(R"({"a": 0, "b": 1})", R"([["a", "b"]])"),
            "merge 'a b': 'ab' is not in the vocabulary");
  EXPECT_EQ(error_with(R"({"a": 4000000000})", "[]"),
            "token 'a' has id 4000000000; ids are 0 to 4194303");
  EXPECT_EQ(error_with(R"({"a": 1, "b": 1})", "[]"), "id 1 belongs to two tokens: 'a' and 'b'");
  EXPECT_NE(error_with(R"({"a": 1, "b": "2"})", "[]"), "");
  EXPECT_NE(error_with(R"({"a": 1})", R"(["a"])"), "");
  EXPECT_NE(error_with(R"({"a": 1})", R"([["a", "a", "a"]])"), "");
  EXPECT_NE(error_with(R"({"a": 1})", R"([7])"), "");
  EXPECT_NE(error_with(R"([])", R"([])"), "");
}

// Builds a tokenizer from hostile text: an Error, or a tokenizer that works.
bool try_out(const std::string& text) {
  try {
    const Tokenizer tokenizer(make_pipeline(parse_definition(text)));
    tokenizer.decode(tokenizer.encode(kText, true));
    Json::parse(to_json(tokenizer));
    return true;
  } catch (const Error&) {
    return false;
  }
}

void replace_each(Json& root, Json& here, int depth) {
  const std::vector<Json> values = {
      nullptr, true, -1, int64_t{1} << 62, 1e300, "", "ab", Json::Array{}, Json::Object{}};
  const auto each = [&](Json& child) {
    const Json kept = child;
    for (const Json& value : values) {
      child = value;
      try_out(root.dump());
    }
    child = kept;
    if (depth > 0) replace_each(root, child, depth - 1);
  };
  if (here.is_object()) {
    for (size_t i = 0; i < std::min<size_t>(here.as_object().size(), 9); ++i)
      each(here.as_object()[i].second);
  } else if (here.is_array()) {
    for (size_t i = 0; i < std::min<size_t>(here.as_array().size(), 2); ++i)
      each(here.as_array()[i]);
  }
}

TEST(TokenizerFuzz, WrongTypesAndValuesEverywhere) {
  Json root = Json::parse(to_json(small_tokenizer()));
  replace_each(root, root, 3);
}

TEST(TokenizerFuzz, TruncationsAndFlippedBytes) {
  const std::string good = to_json(small_tokenizer());
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) try_out(good.substr(0, random() % good.size()));
  int alive = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      bad[random() % bad.size()] =
          i % 2 ? static_cast<char>(random() % 256) : "\"{}[],:019a\\"[random() % 12];
    }
    alive += try_out(bad);
  }
  EXPECT_GT(alive, 10);
}

TEST(BpeTrainerTest, RefusesBadOptions) {
  const auto error_with = [](auto change) -> std::string {
    BpeTrainerOptions options;
    change(options);
    try {
      BpeTrainer(options).train();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_with([](auto& o) { o.vocabulary_size = 100; }).find("vocabulary_size is 100"),
            std::string::npos);
  EXPECT_NE(error_with([](auto& o) { o.pattern = "gpt5"; }).find("supported are gpt2, llama3"),
            std::string::npos);
  EXPECT_NE(error_with([](auto& o) { o.threads = 0; }).find("threads is 0"), std::string::npos);
  EXPECT_NE(error_with([](auto& o) { o.special_tokens = {"a", "a"}; }).find("'a' is listed twice"),
            std::string::npos);
  EXPECT_NE(error_with([](auto& o) { o.min_frequency = -1; }).find("min_frequency is -1"),
            std::string::npos);
  EXPECT_EQ(error_with([](auto&) {}), "");
}

TEST(BpeTrainerTest, LinesAndProgress) {
  BpeTrainerOptions options;
  options.vocabulary_size = 258;
  options.pattern = "llama3";
  BpeTrainer trainer(options);
  for (int i = 0; i < 10; ++i) trainer.add(" \n \n");
  int64_t tokens = 0;
  const Tokenizer tokenizer = trainer.train([&](int64_t now, int64_t) { tokens = now; });
  EXPECT_EQ(tokens, 258);
  EXPECT_EQ(tokenizer.encode(" \n").size(), 1u);  // and no token crosses a line's end
  EXPECT_EQ(tokenizer.encode(" \n \n").size(), 2u);
  EXPECT_EQ(tokenizer.encode("a 123").size(), 5u);
}

}  // namespace
}  // namespace megatron::tokenizers
