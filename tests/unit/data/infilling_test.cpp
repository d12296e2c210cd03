// Fill in the middle: that no text is lost, rates, boundaries of documents, and the order of
// access. golden/selftest compares megatron_data_order with Megatron-LM's samples.
#include "data/infilling.h"

#include <algorithm>
#include <functional>

#include "base/utf8.h"
#include "data/gpt_dataset.h"
#include "support.h"
#include "tokenizers/tokenizer_file.h"
#include "tokenizers/transformers/directory.h"

namespace megatron::data {
namespace {

using Tokens = std::vector<int64_t>;
using Shared = std::shared_ptr<const tokenizers::Tokenizer>;

// The tokenizer of a folder with the tokens of the vectors added, in their order.
Shared tokenizer_with_tokens(const std::string& folder) {
  const tokenizers::TokenizerFile file = tokenizers::read_tokenizer_file(golden(folder));
  tokenizers::Definition definition = *tokenizers::open_definition(file);
  int64_t next = definition.vocabulary.size();
  for (const char* token :
       {"<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<|file|>"})
    definition.added_tokens.push_back({.content = token, .id = next++, .special = true});
  return std::make_shared<const tokenizers::Tokenizer>(
      tokenizers::make_pipeline(std::move(definition)), file.directory());
}

const Shared& byte_level() {
  static const Shared tokenizer = tokenizer_with_tokens("indexed/preprocess/tokenizer_bpe2k");
  return tokenizer;
}

InfillingConfig config_of(const tokenizers::Tokenizer& tokenizer, double rate = 1) {
  const auto id = [&](const char* token) { return int64_t{tokenizer.token_id(token).value()}; };
  return {.tokens = {.prefix = id("<fim_prefix>"),
                     .middle = id("<fim_middle>"),
                     .suffix = id("<fim_suffix>"),
                     .pad = id("<fim_pad>"),
                     .eod = tokenizer.eod().value(),
                     .split = {}},
          .rate = rate,
          .fragment_rate = {},
          .no_prefix = {}};
}

Tokens ids(const tokenizers::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> encoded = tokenizer.encode(text);
  return {encoded.begin(), encoded.end()};
}

std::string bytes_of(const tokenizers::Tokenizer& tokenizer, const Tokens& tokens) {
  std::string bytes;
  for (const int64_t token : tokens)
    tokenizer.codec().append_bytes(static_cast<int32_t>(token), bytes);
  return bytes;
}

// The parts between tokens of a kind, which are left out.
std::vector<Tokens> parts_of(const Tokens& tokens, int64_t separator) {
  std::vector<Tokens> parts(1);
  for (const int64_t token : tokens) {
    if (token == separator) parts.emplace_back();
    else parts.back().push_back(token);
  }
  return parts;
}

// A rearranged document as prefix, middle and suffix. In SPM the first two are one.
struct Parts {
  bool spm = false;
  Tokens prefix, middle, suffix;

  static Parts of(const Tokens& tokens, const InfillingTokens& t) {
    const auto at = [&](int64_t token) {
      EXPECT_EQ(std::ranges::count(tokens, token), 1);
      return std::ranges::find(tokens, token);
    };
    const auto prefix = at(t.prefix), suffix = at(t.suffix), middle = at(t.middle);
    EXPECT_TRUE(prefix < suffix && suffix < middle);
    Parts parts{.spm = suffix == prefix + 1,
                .prefix = Tokens(prefix + 1, suffix),
                .middle = Tokens(middle + 1, tokens.end()),
                .suffix = Tokens(suffix + 1, middle)};
    parts.prefix.insert(parts.prefix.begin(), tokens.begin(), prefix);
    return parts;
  }
  std::string bytes(const tokenizers::Tokenizer& tokenizer) const {
    return bytes_of(tokenizer, prefix) + bytes_of(tokenizer, middle) + bytes_of(tokenizer, suffix);
  }
};

Tokens rearranged(const Infilling& infilling, const Tokens& tokens, int64_t seed) {
  RandomState random(seed);
  Tokens out;
  infilling.append(tokens, random, out);
  return out;
}

std::vector<Tokens> stored_documents(const std::string& name) {
  const IndexedDataset set(golden("fim_dataset/data/" + name));
  std::vector<Tokens> documents;
  for (int64_t i = 0; i < set.sequence_count(); ++i) {
    Tokens document;
    for (const auto token : set.get(i))
      if (token != 0) document.push_back(token);
    documents.push_back(std::move(document));
  }
  return documents;
}

TEST(Infilling, NoByteOfATextIsLost) {
  const Shared& tokenizer = byte_level();
  const InfillingConfig config = config_of(*tokenizer);
  const Infilling infilling(tokenizer, config);
  int64_t spm = 0, divided = 0;
  for (const char* name : {"prose", "repos", "odd", "long_no_eod"})
    for (const Tokens& document : stored_documents(name)) {
      if (document.empty()) continue;
      for (int64_t seed = 1; seed <= 10; ++seed) {
        const Parts parts = Parts::of(rearranged(infilling, document, seed), config.tokens);
        EXPECT_EQ(parts.bytes(*tokenizer), bytes_of(*tokenizer, document));
        spm += parts.spm;
        Tokens joined = parts.prefix;
        for (const Tokens* part : {&parts.middle, &parts.suffix})
          joined.insert(joined.end(), part->begin(), part->end());
        divided += joined.size() > document.size();
      }
    }
  EXPECT_GT(spm, 250);
  EXPECT_GT(divided, 200);  // cuts are between characters, not between tokens
}

TEST(Infilling, APieceOfACharacterAtABorderStaysAToken) {
  const Shared& tokenizer = byte_level();
  const InfillingConfig config = config_of(*tokenizer);
  const Infilling infilling(tokenizer, config);
  // Four-byte characters that are not in the vocabulary, without their first and last bytes.
  Tokens whole = ids(*tokenizer, "\xf0\x9d\x94\xb8 middle \xf0\x9d\x94\xb9");
  ASSERT_GT(whole.size(), 8u);
  const Tokens tokens(whole.begin() + 2, whole.end() - 1);
  ASSERT_FALSE(is_utf8(bytes_of(*tokenizer, tokens)));
  for (int64_t seed = 1; seed <= 50; ++seed)
    EXPECT_EQ(Parts::of(rearranged(infilling, tokens, seed), config.tokens).bytes(*tokenizer),
              bytes_of(*tokenizer, tokens));
}

TEST(Infilling, SpecialTokensInATextAreKeptWhole) {
  const Shared& tokenizer = byte_level();
  const InfillingConfig config = config_of(*tokenizer);
  const Infilling infilling(tokenizer, config);
  const int64_t file = tokenizer->token_id("<|file|>").value();
  const Tokens tokens = ids(*tokenizer, "a<|file|><|file|>b<|file|>");
  for (int64_t seed = 1; seed <= 50; ++seed) {
    const Tokens out = rearranged(infilling, tokens, seed);
    EXPECT_EQ(std::ranges::count(out, file), 3);
    EXPECT_EQ(Parts::of(out, config.tokens).bytes(*tokenizer), bytes_of(*tokenizer, tokens));
  }
  // Text that spells a special token stays text.
  std::vector<int32_t> plain;
  tokenizer->codec().encode("<|file|> <fim_middle>", {.find_special_tokens = false}, plain,
                            nullptr);
  const Tokens spelt(plain.begin(), plain.end());
  for (int64_t seed = 1; seed <= 50; ++seed) {
    const Tokens out = rearranged(infilling, spelt, seed);
    EXPECT_EQ(std::ranges::count(out, file), 0);
    EXPECT_EQ(Parts::of(out, config.tokens).bytes(*tokenizer), bytes_of(*tokenizer, spelt));
  }
}

TEST(Infilling, DocumentsKeepTheirPlaces) {
  const Shared& tokenizer = byte_level();
  const InfillingConfig config = config_of(*tokenizer, 0.5);
  const Infilling infilling(tokenizer, config);
  const int64_t eod = config.tokens.eod;
  Tokens sample = {eod, eod};  // begins and ends with empty documents
  for (const char* text : {"one document", "another one", "x", "the last of all"}) {
    for (const int64_t id : ids(*tokenizer, text)) sample.push_back(id);
    sample.push_back(eod);
  }
  sample.push_back(eod);
  const std::vector<Tokens> before = parts_of(sample, eod);
  int64_t changed = 0, same = 0;
  for (int64_t seed = 1; seed <= 40; ++seed) {
    const std::vector<Tokens> after = parts_of(rearranged(infilling, sample, seed), eod);
    ASSERT_EQ(after.size(), before.size());
    for (size_t d = 0; d < before.size(); ++d) {
      if (after[d] == before[d]) {
        same += !before[d].empty();
        continue;
      }
      ++changed;
      EXPECT_EQ(Parts::of(after[d], config.tokens).bytes(*tokenizer),
                bytes_of(*tokenizer, before[d]));
    }
  }
  EXPECT_NEAR(static_cast<double>(changed) / static_cast<double>(changed + same), 0.5, 0.12);
}

TEST(Infilling, FragmentsAreRearrangedInTheirDocument) {
  const Shared& tokenizer = byte_level();
  InfillingConfig config = config_of(*tokenizer);
  const int64_t file = tokenizer->token_id("<|file|>").value();
  config.tokens.split = file;
  config.fragment_rate = 1;
  const Tokens tokens = ids(*tokenizer, "first file<|file|><|file|>second<|file|>rest");
  const std::vector<Tokens> before = parts_of(tokens, file);
  const std::vector<Tokens> after =
      parts_of(rearranged(Infilling(tokenizer, config), tokens, 3), file);
  ASSERT_EQ(after.size(), 4u);
  EXPECT_TRUE(after[1].empty());
  for (const size_t i : {0, 2, 3}) {
    const Parts parts = Parts::of(after[i], config.tokens);
    EXPECT_EQ(parts.bytes(*tokenizer), bytes_of(*tokenizer, before[i]));
  }
  config.fragment_rate = 0;
  EXPECT_EQ(rearranged(Infilling(tokenizer, config), tokens, 3), tokens);
  config.fragment_rate = 1;
  config.rate = 0;
  EXPECT_EQ(rearranged(Infilling(tokenizer, config), tokens, 3), tokens);
}

TEST(Infilling, RatesAreShares) {
  const Shared& tokenizer = byte_level();
  const Tokens tokens = ids(*tokenizer, "a text of a few words");
  const auto counts = [&](double rate, double spm_rate) {
    InfillingConfig config = config_of(*tokenizer, rate);
    config.spm_rate = spm_rate;
    const Infilling infilling(tokenizer, config);
    RandomState random(11);
    std::pair<int64_t, int64_t> result;
    for (int i = 0; i < 2000; ++i) {
      Tokens out;
      infilling.append(tokens, random, out);
      if (out == tokens) continue;
      ++result.first;
      // A PSM sample with an empty prefix looks like SPM, which is one in twelve here.
      result.second += Parts::of(out, config.tokens).spm;
    }
    return result;
  };
  EXPECT_EQ(counts(0, 0.5).first, 0);
  EXPECT_EQ(counts(1, 1).first, 2000);
  EXPECT_EQ(counts(1, 1).second, 2000);
  EXPECT_NEAR(static_cast<double>(counts(0.3, 0.5).first), 600, 80);
  const int64_t few = counts(1, 0).second, half = counts(1, 0.5).second;
  EXPECT_LT(few, 250);
  EXPECT_NEAR(static_cast<double>(half), 1000 + static_cast<double>(few) / 2, 80);
}

TEST(Infilling, TextsThatBeginWithNoPrefixStay) {
  const Shared& tokenizer = byte_level();
  InfillingConfig config = config_of(*tokenizer);
  config.no_prefix = "#skip";
  const Infilling infilling(tokenizer, config);
  for (const char* text : {"#skip this", "#skip"})
    EXPECT_EQ(rearranged(infilling, ids(*tokenizer, text), 5), ids(*tokenizer, text));
  EXPECT_NE(rearranged(infilling, ids(*tokenizer, "do #skip"), 5), ids(*tokenizer, "do #skip"));
}

TEST(Infilling, TheBeginningOfSequenceStaysAtTheBeginning) {
  const Shared tokenizer = tokenizer_with_tokens("indexed/preprocess/tokenizer_bpe2k_bos");
  const InfillingConfig config = config_of(*tokenizer);
  const Infilling infilling(tokenizer, config);
  Tokens tokens = ids(*tokenizer, "some text");
  tokens.insert(tokens.begin(), tokenizer->bos().value());
  for (int64_t seed = 1; seed <= 20; ++seed) {
    const Tokens out = rearranged(infilling, tokens, seed);
    EXPECT_EQ(out[0], tokenizer->bos());
    EXPECT_EQ(out[1], config.tokens.prefix);
    EXPECT_EQ(std::ranges::count(out, out[0]), 1);
  }
}

TEST(Infilling, NoSpaceIsAddedBeforeAPart) {
  // This tokenizer puts a space before each text.
  const Shared tokenizer = tokenizer_with_tokens("tokenizers/trained/llama2");
  InfillingConfig config = config_of(*tokenizer);
  config.spm_rate = 0;
  const Infilling infilling(tokenizer, config);
  const std::string text = "some words,  and more of them\nin two lines";
  const Tokens tokens = ids(*tokenizer, text);
  const auto decoded = [&](const Tokens& part) {
    return tokenizer->decode(std::vector<int32_t>(part.begin(), part.end()));
  };
  for (int64_t seed = 1; seed <= 50; ++seed) {
    const Parts parts = Parts::of(rearranged(infilling, tokens, seed), config.tokens);
    Tokens joined = parts.prefix;
    for (const Tokens* part : {&parts.middle, &parts.suffix})
      joined.insert(joined.end(), part->begin(), part->end());
    EXPECT_EQ(decoded(joined), decoded(tokens)) << seed;
  }
}

TEST(Infilling, RefusesWhatCannotWork) {
  const Shared& tokenizer = byte_level();
  const auto error = [&](const std::function<void(InfillingConfig&)>& change) {
    InfillingConfig config = config_of(*tokenizer);
    change(config);
    return error_of([&] { Infilling(tokenizer, config); });
  };
  const auto names = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  names(error([](auto& c) { c.rate = 1.5; }), "--fim-rate is 1.5");
  names(error([](auto& c) { c.spm_rate = -0.1; }), "--fim-spm-rate is -0.1");
  names(error([](auto& c) { c.fragment_rate = 2; }), "--fim-fragment-rate is 2");
  names(error([](auto& c) { c.tokens.middle = c.tokens.prefix; }), "--fim-middle-token");
}

// --- samples ---

std::shared_ptr<const TokenSource> source(const std::string& name) {
  return std::make_shared<const IndexedDataset>(golden("fim_dataset/data/" + name));
}

GptDatasetConfig samples_config(double rate = 1) {
  GptDatasetConfig config;
  config.sequence_length = 64;
  config.seed = 1234;
  config.eod = byte_level()->eod().value();
  config.pad = byte_level()->pad();
  config.vocabulary_size = byte_level()->vocabulary_size();
  config.cache = false;
  config.infilling =
      std::make_shared<const Infilling>(byte_level(), config_of(*byte_level(), rate));
  return config;
}

TEST(InfillingSamples, DoNotDependOnTheOrderOfAccess) {
  const GptDatasetConfig config = samples_config(0.7);
  const GptDataset forward(source("prose"), config, Split::train, 50),
      backward(source("prose"), config, Split::train, 20);
  Sample a, b;
  for (int64_t k = 0; k < 20; ++k) {
    forward.read(k, a);
    backward.read_filler(b);
    backward.read(19 - k, b);
    backward.read(k, b);
    EXPECT_EQ(a.tokens, b.tokens) << k;
    EXPECT_EQ(a.labels, b.labels) << k;
    EXPECT_EQ(a.loss_mask, b.loss_mask) << k;
  }
}

TEST(InfillingSamples, HaveTheSameLengthAndLabels) {
  const GptDatasetConfig config = samples_config();
  const GptDataset set(source("prose"), config, Split::train, 100);
  Sample sample;
  for (int64_t k = 0; k < set.size(); ++k) {
    set.read(k, sample);
    ASSERT_EQ(sample.tokens.size(), 64u);
    ASSERT_EQ(sample.labels.size(), 64u);
    for (size_t i = 0; i + 1 < 64; ++i) EXPECT_EQ(sample.labels[i], sample.tokens[i + 1]);
    EXPECT_EQ(sample.loss_mask, std::vector<float>(64, 1.0f));
  }
}

TEST(InfillingSamples, AFilledEndHasNoLoss) {
  // The last sample of one pass is short by three tokens, which rearranging would use.
  GptDatasetConfig config = samples_config(0);
  config.sequence_length = 100;
  config.drop_last_partial_validation_sequence = false;
  const GptDataset set(source("prose"), config, Split::valid, std::nullopt);
  Sample sample;
  int64_t filled = 0;
  for (int64_t k = 0; k < set.size(); ++k) {
    set.read(k, sample);
    for (size_t i = 0; i < sample.labels.size(); ++i) {
      const bool fill = sample.labels[i] == config.infilling->config().tokens.pad;
      EXPECT_EQ(sample.loss_mask[i], fill ? 0 : 1);
      filled += fill;
    }
  }
  EXPECT_EQ(filled, 3);
}

TEST(InfillingSamples, AttentionEndsWithTheRearrangedDocuments) {
  for (const bool stored : {false, true}) {
    GptDatasetConfig config = samples_config();
    config.reset_attention_mask = !stored;
    config.inter_document_masking = stored;
    const GptDataset set(source("prose"), config, Split::train, 20);
    Sample sample;
    for (int64_t k = 0; k < set.size(); ++k) {
      set.read(k, sample);
      for (size_t i = 1; i < sample.tokens.size(); ++i) {
        const bool begins = sample.segment_begin[i] == static_cast<int32_t>(i);
        EXPECT_EQ(begins, sample.tokens[i - 1] == config.eod) << stored << k << i;
      }
    }
  }
}

}  // namespace
}  // namespace megatron::data
