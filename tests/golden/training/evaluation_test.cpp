// Loss of a model on documents and data sets, as computed by `megatron eval`.
#include "training/evaluation.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/safetensors.h"
#include "comm/threads.h"
#include "data/indexed_dataset.h"
#include "golden/training/support.h"

namespace megatron::training {
namespace {

TEST(Windows, CountEveryTokenButTheFirstOnce) {
  EXPECT_TRUE(windows_of(0, 0, 4, 4).empty());
  EXPECT_TRUE(windows_of(0, 1, 4, 4).empty());
  EXPECT_EQ(windows_of(7, 2, 4, 4), (std::vector<Window>{{7, 0, 1, 0}}));
  EXPECT_EQ(windows_of(0, 5, 4, 4), (std::vector<Window>{{0, 0, 4, 0}}));
  EXPECT_EQ(windows_of(0, 6, 4, 4), (std::vector<Window>{{0, 0, 4, 0}, {0, 4, 1, 0}}));
  // The windows overlap: inputs 0..3, then 2..5, of which 4 and 5 are new.
  EXPECT_EQ(windows_of(0, 7, 4, 2), (std::vector<Window>{{0, 0, 4, 0}, {0, 2, 4, 2}}));
  EXPECT_EQ(windows_of(0, 8, 4, 2),
            (std::vector<Window>{{0, 0, 4, 0}, {0, 2, 4, 2}, {0, 4, 3, 2}}));
  for (int64_t tokens = 0; tokens < 40; ++tokens) {
    for (int64_t length = 1; length < 9; ++length) {
      for (int64_t stride = 1; stride <= length; ++stride) {
        int64_t counted = 0;
        for (const Window& w : windows_of(0, tokens, length, stride)) {
          EXPECT_EQ(w.begin + w.counted, counted);  // where the previous window ended
          EXPECT_LE(w.length, length);
          EXPECT_LT(w.counted, w.length);
          counted += w.length - w.counted;
        }
        EXPECT_EQ(counted, std::max<int64_t>(0, tokens - 1));
      }
    }
  }
}

TEST(Windows, PaddedLength) {
  EXPECT_EQ(padded_length(1, 128), 16);
  EXPECT_EQ(padded_length(17, 128), 32);
  EXPECT_EQ(padded_length(128, 128), 128);
  EXPECT_EQ(padded_length(65, 100), 100);
  EXPECT_EQ(padded_length(3, 5), 5);
}

// Texts of token ids for the model hf/llama, which has a vocabulary of 160.
class EvaluationOf : public ::testing::Test {
 protected:
  EvaluationSettings settings() const {
    EvaluationSettings s;
    s.model.load = vectors("hf/llama");
    s.data.tokenizer_type = "NullTokenizer";
    s.runtime.ranks = s.runtime.threads = 1;
    return s;
  }
  EvaluationSettings text_settings(const std::string& text,
                                   const std::string& name = "text.jsonl") {
    write_file(folder_ / name, text);
    EvaluationSettings s = settings();
    s.text.paths = {folder_ / name};
    return s;
  }
  static EvaluationResult run(EvaluationSettings s) {
    const int ranks = s.runtime.rank_count();
    const Evaluation evaluation(std::move(s), false);
    EvaluationResult result;
    comm::run_ranks(ranks, [&](comm::Group& world) {
      EvaluationResult mine = evaluation.run(world);
      if (world.rank() == 0) result = std::move(mine);
    });
    return result;
  }
  static std::string error_of(EvaluationSettings s) {
    try {
      run(std::move(s));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  static std::string record(std::span<const int64_t> ids) {
    std::string text;
    for (const int64_t id : ids) text += std::to_string(id) + " ";
    return "{\"text\": \"" + text + "\"}\n";
  }
  // Documents of many different lengths.
  static std::string many_documents() {
    std::string text;
    for (int64_t length : {1, 2, 3, 130, 17, 260, 0, 64, 16, 5, 33, 128, 129}) {
      std::vector<int64_t> ids;
      for (int64_t i = 0; i < length; ++i) ids.push_back((i * i * 31 + length * 7 + i) % 159);
      text += record(ids);
    }
    return text;
  }

  TemporaryDirectory folder_;
};

// Compares with the logits that transformers computed for these tokens.
TEST_F(EvaluationOf, LossesAreThoseOfTransformers) {
  const checkpoint::SafetensorsFile expected(vectors("hf/llama/expected.safetensors"));
  const auto ids = expected.integers("input_ids");
  const auto logits = expected.doubles("logits");
  const Shape shape = expected.find("logits")->shape;
  const int64_t batch = shape[0], length = shape[1], vocabulary = shape[2];
  std::string text;
  for (int64_t b = 0; b < batch; ++b)
    text += record(
        std::span(ids).subspan(static_cast<size_t>(b * length), static_cast<size_t>(length)));
  const EvaluationResult result = run(text_settings(text));
  ASSERT_EQ(result.documents.size(), static_cast<size_t>(batch));
  double total = 0;
  for (int64_t b = 0; b < batch; ++b) {
    double sum = 0;
    for (int64_t t = 0; t + 1 < length; ++t) {
      const double* row = logits.data() + (b * length + t) * vocabulary;
      double normalizer = 0;
      for (int64_t v = 0; v < vocabulary; ++v) normalizer += std::exp(row[v]);
      sum += std::log(normalizer) - row[ids[static_cast<size_t>(b * length + t + 1)]];
    }
    const DocumentLoss& document = result.documents[static_cast<size_t>(b)];
    EXPECT_NEAR(document.loss.sum / sum, 1, 1e-5);
    EXPECT_EQ(document.loss.tokens, static_cast<double>(length - 1));
    EXPECT_EQ(document.place, folder_ / "text.jsonl:" + std::to_string(b + 1));
    total += document.loss.sum;
  }
  EXPECT_EQ(result.loss.sum, total);
  EXPECT_EQ(result.loss.tokens, static_cast<double>(batch * (length - 1)));
}

TEST_F(EvaluationOf, OneResultForAnyRanksAndMicroBatch) {
  for (const std::string device : {"reference", "cpu"}) {
    for (const bool bf16 : {false, true}) {
      EvaluationSettings s = text_settings(many_documents());
      s.runtime.device = device;
      s.bf16 = bf16;
      s.seq_length = 48;
      s.stride = 32;
      const EvaluationResult one = run(s);
      const std::string lines = document_lines(one.documents);
      for (const int64_t ranks : {1, 2, 3}) {
        for (const int64_t micro_batch : {1, 3, 4}) {
          s.runtime.ranks = ranks;
          s.micro_batch_size = micro_batch;
          const EvaluationResult other = run(s);
          EXPECT_EQ(other.loss.sum, one.loss.sum) << device << " " << ranks << " " << micro_batch;
          EXPECT_EQ(document_lines(other.documents), lines);
        }
      }
    }
  }
}

// A document's loss does not depend on its neighbours.
TEST_F(EvaluationOf, DocumentsDoNotSeeEachOther) {
  const std::vector<int64_t> ids = {5, 9, 100, 3, 77};
  const EvaluationResult alone = run(text_settings(record(ids)));
  const EvaluationResult among = run(text_settings(many_documents() + record(ids)));
  EXPECT_EQ(among.documents.back().loss.sum, alone.loss.sum);
}

TEST_F(EvaluationOf, DocumentsWithoutAPrediction) {
  const std::vector<int64_t> one = {5}, three = {5, 6, 7};
  const EvaluationResult r = run(text_settings(record(one) + record({}) + record(three)));
  ASSERT_EQ(r.documents.size(), 3u);
  EXPECT_EQ(r.documents[0].loss.tokens, 0);
  EXPECT_EQ(r.documents[1].loss.tokens, 0);
  EXPECT_EQ(r.loss.tokens, 2);
  EXPECT_EQ(r.sequences, 1);
  const std::string lines = document_lines(r.documents);
  const Json first = Json::parse(lines.substr(0, lines.find('\n')));
  EXPECT_TRUE(first["loss"].is_null());
  EXPECT_EQ(first["tokens"].as_integer(), 0);
  EXPECT_EQ(first["bytes"].as_integer(), 2);
  EXPECT_EQ(first["document"].as_integer(), 0);
  EXPECT_NE(error_of(text_settings(record(one))).find("--prepend-eod"), std::string::npos);
  EXPECT_NE(error_of(text_settings("\n")).find("no text"), std::string::npos);
}

// A longer context reduces the loss of this many tokens. A short stride gives each token more
// context, so sums differ; stride 1 predicts every token from the longest possible context.
TEST_F(EvaluationOf, StrideGivesContext) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 21; ++i) ids.push_back(i * 37 % 150);
  EvaluationSettings s = text_settings(record(ids));
  s.seq_length = 8;
  s.stride = 1;
  const EvaluationResult r = run(s);
  EXPECT_EQ(r.loss.tokens, 20);
  EXPECT_EQ(r.sequences, 13);
  // Loss of a window's last token: the loss of nine tokens, less that of the first eight.
  const auto sum_of = [&](int64_t begin, int64_t count) {
    EvaluationSettings part = text_settings(
        record(std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(count))),
        "part.jsonl");
    part.seq_length = 8;
    return run(part).loss.sum;
  };
  double sum = sum_of(0, 9);
  for (int64_t begin = 1; begin < 13; ++begin) sum += sum_of(begin, 9) - sum_of(begin, 8);
  EXPECT_NEAR(r.loss.sum, sum, 1e-9);
}

TEST_F(EvaluationOf, EndOfDocumentTokens) {
  const std::vector<int64_t> ids = {5, 6, 7}, closed = {159, 5, 6, 7, 159};
  EvaluationSettings s = text_settings(record(ids));
  s.text.append_eod = s.text.prepend_eod = true;
  const EvaluationResult r = run(s);
  EXPECT_EQ(r.loss.tokens, 4);
  EXPECT_EQ(r.loss.sum, run(text_settings(record(closed))).loss.sum);
}

TEST_F(EvaluationOf, BitsPerByteAndEntropy) {
  const EvaluationResult r = run(text_settings("1 2 1 2 1 2 1\n", "text.txt"));
  EXPECT_EQ(r.bytes, 14);
  EXPECT_NEAR(*r.bits_per_byte(), r.loss.sum / std::log(2.0) / 14, 1e-12);
  EXPECT_NEAR(r.unigram_entropy, std::log(2.0), 1e-12);
  EXPECT_NEAR(r.perplexity(), std::exp(r.loss.sum / 6), 1e-9);
  const Json json = r.json();
  EXPECT_EQ(json["tokens"].as_integer(), 6);
  EXPECT_EQ(json["documents"].as_integer(), 1);
  EXPECT_EQ(json["loss"].as_number(), r.loss.mean());
}

// Documents of token files give the same loss as their text; a split selects its share of them.
TEST_F(EvaluationOf, StoredDocuments) {
  const std::vector<std::vector<int32_t>> documents = {
      {1, 2, 3}, {4}, {5, 6, 7, 8, 9, 10, 11}, {12, 13}, {14, 15, 16, 17}};
  std::string text;
  data::IndexedDatasetBuilder builder(folder_ / "set", DType::u16);
  for (const auto& ids : documents) {
    // Splits the document into two sequences if it has enough tokens.
    const size_t half = ids.size() / 2;
    if (half > 0) builder.add_item(std::span(ids).first(half));
    builder.add_item(std::span(ids).subspan(half));
    builder.end_document();
    text += record(std::vector<int64_t>(ids.begin(), ids.end()));
  }
  builder.finalize();
  EvaluationSettings s = settings();
  s.data.train_data_path = {folder_ / "set"};
  s.set = "train";
  s.per_document = folder_ / "losses.jsonl";
  const EvaluationResult stored = run(s), read = run(text_settings(text));
  ASSERT_EQ(stored.documents.size(), 5u);
  for (size_t d = 0; d < 5; ++d)
    EXPECT_EQ(stored.documents[d].loss.sum, read.documents[d].loss.sum) << d;
  EXPECT_EQ(stored.loss.sum, read.loss.sum);
  EXPECT_EQ(stored.what, "train set");
  EXPECT_FALSE(stored.bits_per_byte());
  s.text.prepend_eod = true;
  EXPECT_EQ(run(s).loss.tokens, stored.loss.tokens + 5);
  s.text.prepend_eod = false;

  s.data.train_data_path.clear();
  s.data.data_path = {folder_ / "set"};
  s.data.split = "5,4,0";  // five of nine sequences: 1 2 3 | 4 | 5 6 7 and its remainder
  const EvaluationResult first = run(s);
  s.set = "valid";
  const EvaluationResult rest = run(s);
  EXPECT_EQ(first.documents.size(), 3u);
  EXPECT_EQ(rest.documents.size(), 2u);
  s.set = "test";
  EXPECT_NE(error_of(s).find("--split 5,4,0"), std::string::npos);
}

TEST_F(EvaluationOf, RefusesWhatCannotBeMeant) {
  const EvaluationSettings text = text_settings("1 2 3\n", "text.txt");
  const auto refused = [](EvaluationSettings s, const std::string& part) {
    const std::string error = error_of(std::move(s));
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  EvaluationSettings s = text;
  s.data.mock_data = true;
  refused(s, "--input");
  s = text;
  s.samples = 3;
  refused(s, "--eval-samples");
  s = text;
  s.micro_batch_size = INT64_MAX;
  refused(s, "--micro-batch-size is 9223372036854775807; it must lie in");
  s = text;
  s.stride = 129;
  refused(s, "--stride is 129");
  s = text;
  s.data.tokenizer_type.reset();
  refused(s, "--tokenizer-model");
  s = text;
  s.data.split = "1,1";
  refused(s, "--split");
  s = settings();
  s.data.mock_data = true;
  s.text.append_eod = true;
  refused(s, "--append-eod");
  s.text.append_eod = false;
  s.text.prepend_eod = true;
  refused(s, "--prepend-eod");
  s.text.prepend_eod = false;
  s.per_document = folder_ / "out";
  refused(s, "--mock-data");
  refused(text_settings("{\"other\": \"1\"}\n"), "text.jsonl:1");
  refused(text_settings("1 2 160\n", "text.txt"), "text.txt:1");
  s = settings();
  s.text.paths = {folder_ / "nothing"};
  refused(s, "nothing");
  s.model.load.reset();
  refused(s, "--load");
}

// The model and the tokenizer have different vocabularies.
TEST_F(EvaluationOf, RefusesTheTokenizerOfAnotherModel) {
  EvaluationSettings s = text_settings("hello\n", "text.txt");
  s.data.tokenizer_type = "HuggingFaceTokenizer";
  s.data.tokenizer_model = vectors("indexed/preprocess/tokenizer_bpe2k");
  const std::string error = error_of(s);
  EXPECT_NE(error.find("160"), std::string::npos) << error;
  EXPECT_NE(error.find("2048"), std::string::npos) << error;
}

}  // namespace
}  // namespace megatron::training
