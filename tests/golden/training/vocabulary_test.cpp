// --tokenizer-type and related flags follow Megatron-LM's rules.
#include "corpus/vocabulary.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace megatron::training {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

const std::string kVectors = std::string(MEGATRON_GOLDEN) + "/tokenizers/";

class VocabularyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    place_ = fs::temp_directory_path() / ("megatron_vocabulary_" + std::string(test->name()));
    fs::remove_all(place_);
    fs::create_directories(place_);
  }
  void TearDown() override { fs::remove_all(place_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(place_ / name, std::ios::binary) << text;
    return (place_ / name).string();
  }
  // Writes the 256 bytes and "ab" as a token list.
  std::string write_list() {
    constexpr std::string_view kAlphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string list = "[";
    for (size_t i = 0; i < 256; ++i) {
      list += "{\"rank\": " + std::to_string(i) + ", \"token_bytes\": \"" + kAlphabet[i >> 2] +
              kAlphabet[(i & 3) << 4] + "==\", \"token_str\": \"\"},";
    }
    return write("list.vocab.json",
                 list + "{\"rank\": 256, \"token_bytes\": \"YWI=\", \"token_str\": \"ab\"}]");
  }
  static std::string refused(const settings::TokenizerSettings& settings,
                             std::optional<int64_t> vocab_size = {}) {
    try {
      corpus::open_vocabulary(settings, vocab_size);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  static Ids encode(const corpus::Vocabulary& v, std::string_view text) {
    return v.tokenizer->encode(text, v.add_special_tokens);
  }

  fs::path place_;
  settings::TokenizerSettings s_;
};

TEST_F(VocabularyTest, PaddedSizes) {
  EXPECT_EQ(settings::padded_vocabulary_size(s_, 50257, 1), 50304);
  EXPECT_EQ(settings::padded_vocabulary_size(s_, 50304, 1), 50304);
  EXPECT_EQ(settings::padded_vocabulary_size(s_, 50257, 8), 51200);
  s_.make_vocab_size_divisible_by = 1;
  EXPECT_EQ(settings::padded_vocabulary_size(s_, 50257, 1), 50257);
  s_.make_vocab_size_divisible_by = 0;
  EXPECT_THROW(settings::padded_vocabulary_size(s_, 50257, 1), Error);
  s_ = {};
  s_.pad_vocab_size = false;
  EXPECT_EQ(settings::padded_vocabulary_size(s_, 50257, 8), 50257);
  s_.padded_vocab_size = 50432;
  EXPECT_EQ(settings::padded_vocabulary_size(s_, 50257, 1), 50432);
  s_.tokenizer_type = "NullTokenizer";
  EXPECT_EQ(corpus::open_vocabulary(s_, 50257).padded_size, 50432);
  EXPECT_EQ(refused(s_, 60000),
            "--padded-vocab-size is 50432, but the vocabulary has 60000 tokens; give at least as "
            "many, or drop the flag");
}

TEST_F(VocabularyTest, Null) {
  const corpus::Vocabulary v = corpus::open_vocabulary(s_, 1000);
  EXPECT_EQ(v.size, 1000);
  EXPECT_EQ(v.padded_size, 1024);
  EXPECT_EQ(v.eod, 999);
  EXPECT_EQ(v.pad, std::nullopt);
  EXPECT_EQ(encode(v, "1 2 999"), (Ids{1, 2, 999}));
  s_.null_tokenizer_eod_id = 7;
  s_.null_tokenizer_pad_id = 3;
  EXPECT_EQ(corpus::open_vocabulary(s_, 1000).eod, 7);
  EXPECT_EQ(corpus::open_vocabulary(s_, 1000).pad, 3);
  s_.null_tokenizer_eod_id = 1000;
  EXPECT_NE(refused(s_, 1000).find("--null-tokenizer-eod-id is 1000"), std::string::npos);
  EXPECT_NE(refused({}).find("--vocab-size"), std::string::npos);
}

TEST_F(VocabularyTest, Bytes) {
  s_.tokenizer_type = "ByteTokenizer";
  const corpus::Vocabulary v = corpus::open_vocabulary(s_, 512);
  EXPECT_EQ(v.size, 512);
  EXPECT_EQ(v.eod, 0);
  EXPECT_EQ(encode(v, "\xc3\xa9"), (Ids{0xc3, 0xa9}));
  EXPECT_EQ(corpus::open_vocabulary(s_, {}).size, 256);
  EXPECT_NE(refused(s_, 200).find("--vocab-size is 200"), std::string::npos);
}

TEST_F(VocabularyTest, SentencePiecePutsNothingRoundATextAsMegatronDoes) {
  s_.tokenizer_model = kVectors + "sentencepiece/bpe_llama";
  for (const char* type :
       {"SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"}) {
    s_.tokenizer_type = type;
    const corpus::Vocabulary v = corpus::open_vocabulary(s_, {});
    EXPECT_EQ(v.size, 2000);
    EXPECT_EQ(v.padded_size, 2048);
    EXPECT_EQ(v.eod, 2);
    EXPECT_EQ(v.pad, 3);
    EXPECT_EQ(encode(v, "the"), v.tokenizer->encode("the"));
  }
  s_.tokenizer_type.reset();
  EXPECT_FALSE(corpus::open_vocabulary(s_, {}).add_special_tokens);
  EXPECT_EQ(corpus::open_vocabulary(s_, 2048).size, 2048);
  EXPECT_NE(refused(s_, 1999).find("has 2000 tokens"), std::string::npos);
  s_.ignore_extra_whitespaces = false;
  corpus::open_vocabulary(s_, {});  // this type keeps white space anyway
  s_.tokenizer_model = kVectors + "sentencepiece/unigram_bytes";
  EXPECT_NE(refused(s_).find("extra-whitespaces): the normalizer"), std::string::npos);
  s_ = {};
  s_.tokenizer_type = "Llama2Tokenizer";
  s_.tokenizer_model = kVectors + "trained/gpt2";
  EXPECT_NE(refused(s_).find("--tokenizer-type Llama2Tokenizer needs a SentencePiece .model, but"),
            std::string::npos);
}

TEST_F(VocabularyTest, TikToken) {
  s_.tokenizer_model = write_list();
  s_.tokenizer_type = "TikTokenizer";
  const corpus::Vocabulary v = corpus::open_vocabulary(s_, {});
  EXPECT_EQ(v.size, 1257);
  EXPECT_EQ(v.eod, 2);
  EXPECT_EQ(v.pad, 4);
  EXPECT_EQ(encode(v, "abc</s>"), (Ids{1256, 1000 + 'c', 2}));
  EXPECT_EQ(corpus::open_vocabulary(s_, 1256).size, 1256);  // "ab" is cut off
  EXPECT_EQ(encode(corpus::open_vocabulary(s_, 1256), "ab"), (Ids{1097, 1098}));
  s_.tiktoken_num_special_tokens = 9;
  s_.tokenizer_special_tokens = {"<unk>", "<s>",   "</s>",  "<mask>",
                                 "<pad>", "<cls>", "<sep>", "<x>"};
  s_.tiktoken_pattern = "v1";
  EXPECT_EQ(encode(corpus::open_vocabulary(s_, {}), "ab<x><SPECIAL_8>"), (Ids{265, 7, 8}));
  s_.tiktoken_pattern = "v3";
  EXPECT_NE(refused(s_).find("--tiktoken-pattern is 'v3'; it can be v1 or v2"), std::string::npos);
  s_.tokenizer_type.reset();
  s_.tiktoken_pattern = "v2";
  EXPECT_EQ(corpus::open_vocabulary(s_, {}).eod, 2);
}

TEST_F(VocabularyTest, Bert) {
  s_.vocab_file = write("v.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\n");
  s_.vocab_extra_ids = 2;
  s_.tokenizer_type = "BertWordPieceLowerCase";
  const corpus::Vocabulary lower = corpus::open_vocabulary(s_, {});
  EXPECT_EQ(lower.size, 7 + 2 + 2);
  EXPECT_EQ(lower.tokenizer->token_id("[BOS]"), 7);
  EXPECT_EQ(lower.eod, 8);
  EXPECT_EQ(lower.pad, 0);
  EXPECT_EQ(encode(lower, "The <extra_id_1>"), (Ids{2, 5, 10, 3}));
  s_.tokenizer_type = "BertWordPieceCase";
  s_.hf_include_special_tokens = false;
  EXPECT_EQ(encode(corpus::open_vocabulary(s_, {}), "The"), Ids{6});
  s_.vocab_extra_ids = -1;
  EXPECT_NE(refused(s_).find("--vocab-extra-ids is -1"), std::string::npos);
  s_ = {};
  s_.tokenizer_type = "BertWordPieceCase";
  EXPECT_EQ(refused(s_), "--tokenizer-type BertWordPieceCase needs --vocab-file (vocab.txt)");
}

TEST_F(VocabularyTest, Gpt2) {
  s_.vocab_file = write("v.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
  s_.merge_file = write("m.txt", "#version: 0.2\na b\n");
  s_.tokenizer_type = "GPT2BPETokenizer";
  s_.tokenizer_special_tokens = {"<new>", "ab"};
  const corpus::Vocabulary v = corpus::open_vocabulary(s_, {});
  EXPECT_EQ(v.size, 5);
  EXPECT_EQ(v.eod, 3);
  EXPECT_EQ(encode(v, "aba<new>"), (Ids{2, 0, 4}));
  EXPECT_TRUE(v.tokenizer->is_special(2));
  s_.merge_file.reset();
  EXPECT_EQ(refused(s_), "--tokenizer-type GPT2BPETokenizer needs --merge-file (merges.txt)");
  s_.tokenizer_model = "elsewhere";
  EXPECT_NE(refused(s_).find("--tokenizer-model applies to"), std::string::npos);
}

TEST_F(VocabularyTest, HuggingFace) {
  s_.tokenizer_model = kVectors + "trained/llama3";
  const corpus::Vocabulary v = corpus::open_vocabulary(s_, {});
  const Ids with = encode(v, "the");
  s_.hf_include_special_tokens = false;
  Ids without = encode(corpus::open_vocabulary(s_, {}), "the");
  EXPECT_EQ(with.size(), without.size() + 1);
  s_.tokenizer_special_tokens = {"<brand new>"};
  const corpus::Vocabulary more = corpus::open_vocabulary(s_, {});
  EXPECT_EQ(more.size, v.size + 1);
  without.push_back(static_cast<int32_t>(v.size));
  EXPECT_EQ(encode(more, "the<brand new>"), without);
  s_.tokenizer_model = kVectors + "sentencepiece/bpe_unk";
  s_.tokenizer_type = "HuggingFaceTokenizer";
  EXPECT_NE(refused(s_).find("a tokenizer.json, since --tokenizer-special-tokens is given"),
            std::string::npos);
}

// A checkpoint has the necessary files even if the directory's own files do not open as the run's
// tokenizer.
TEST_F(VocabularyTest, OpensAgainFromItsFilesWithoutFlags) {
  settings::TokenizerSettings gpt2, bert, list, named, added;
  gpt2.tokenizer_type = "GPT2BPETokenizer";
  gpt2.vocab_file = write("v.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
  gpt2.merge_file = write("m.txt", "#version: 0.2\na b\n");
  gpt2.tokenizer_special_tokens = {"<new>"};
  bert.tokenizer_type = "BertWordPieceLowerCase";
  bert.vocab_file = write("v.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nab\na\n");
  list.tokenizer_model = write_list();
  list.tiktoken_num_special_tokens = 9;
  list.tiktoken_pattern = "v1";
  added.tokenizer_model = kVectors + "trained/llama3";
  added.tokenizer_special_tokens = {"<new>"};
  named.tokenizer_model = write("mine.json", read_file(kVectors + "trained/llama3/tokenizer.json"));
  for (const settings::TokenizerSettings& settings : {gpt2, bert, list, named, added}) {
    const corpus::Vocabulary v = corpus::open_vocabulary(settings, {});
    SCOPED_TRACE(v.directory);
    EXPECT_FALSE(v.opens_by_itself);
    const fs::path saved = place_ / "saved";
    fs::remove_all(saved);
    v.tokenizer->save(saved);
    const corpus::Vocabulary again =
        corpus::open_vocabulary({.tokenizer_model = saved.string()}, {});
    EXPECT_TRUE(again.opens_by_itself);
    for (const char* text : {"ab a<new>ab", "ab</s> [MASK] ab a"})
      EXPECT_EQ(encode(again, text), encode(v, text)) << text;
    EXPECT_EQ(again.size, v.size);
    EXPECT_EQ(again.eod, v.eod);
    EXPECT_EQ(again.tokenizer->mask(), v.tokenizer->mask());
    // transformers finds the roles of tokens here only.
    if (!v.tokenizer->mask()) continue;
    const Json config = Json::read((saved / "tokenizer_config.json").string());
    EXPECT_EQ(config["cls_token"].as_string(), "[CLS]");
    EXPECT_EQ(config["sep_token"].as_string(), "[SEP]");
    EXPECT_EQ(config["mask_token"].as_string(), "[MASK]");
  }
}

TEST_F(VocabularyTest, RefusesByNameWithTheReason) {
  for (const auto& [type, use] : {std::pair{"MultimodalTokenizer", "use HuggingFaceTokenizer"},
                                  {"NullMultimodalTokenizer", "use NullTokenizer"}}) {
    s_.tokenizer_type = type;
    const std::string text = refused(s_, 100);
    EXPECT_TRUE(text.starts_with("--tokenizer-type " + std::string(type) + ": ")) << text;
    EXPECT_NE(text.find(use), std::string::npos) << text;
  }
  s_.tokenizer_type = "Tokenizer";
  EXPECT_NE(refused(s_).find("--tokenizer-type is 'Tokenizer'; it can be HuggingFaceTokenizer, "),
            std::string::npos);
  s_ = {};
  s_.merge_file = "m";
  EXPECT_EQ(refused(s_, 100),
            "--merge-file applies to --tokenizer-type GPT2BPETokenizer (with --vocab-file), but "
            "the tokenizer is NullTokenizer (the default without --tokenizer-model): give such a "
            "type, or drop the flag");
  s_ = {};
  s_.vocab_file = "vocab.txt";
  EXPECT_EQ(s_.type_by_flags(), "BertWordPieceLowerCase");
  s_.tokenizer_type = "NullTokenizer";
  EXPECT_NE(
      refused(s_, 100).find(
          "--vocab-file applies to --tokenizer-type BertWordPieceLowerCase, BertWordPieceCase or "),
      std::string::npos);
  s_ = {};
  s_.tiktoken_num_special_tokens = 5;
  EXPECT_NE(refused(s_, 100).find("--tiktoken-num-special-tokens applies to"), std::string::npos);
  s_ = {};
  s_.tokenizer_type = "ByteTokenizer";
  s_.null_tokenizer_pad_id = 5;
  EXPECT_NE(refused(s_).find("--null-tokenizer-pad-id applies to"), std::string::npos);
  s_ = {};
  s_.tokenizer_type = "ByteTokenizer";
  s_.tokenizer_model = "elsewhere";
  EXPECT_NE(refused(s_).find("--tokenizer-model applies to"), std::string::npos);
}

}  // namespace
}  // namespace megatron::training
