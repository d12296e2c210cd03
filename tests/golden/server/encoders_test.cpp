// Endpoints of encoders, compared with numbers of transformers 5.24 (its pipelines fill-mask and
// text-classification, and the last hidden state of its BertModel), and those of encoder-decoders.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/files.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/safetensors.h"
#include "golden/selftest/support.h"
#include "golden/server/support.h"
#include "headless_bert.h"
#include "server/score_request.h"
#include "server/stored_pooling.h"
#include "text.h"
#include "training/model_source.h"
#include "unit/checkpoint/raw_tensors.h"
#include "unit/models/family_models.h"
#include "word_vocabulary.h"

namespace megatron::testing {
namespace {

// An encoder, or encoder-decoder, of the golden vectors behind a server, with words for its tokens.
class ServedEncoder {
 public:
  explicit ServedEncoder(const std::string& name) : ServedEncoder(name, family_directory(name)) {}
  ServedEncoder(const std::string& name, const std::string& directory)
      : directory_(directory),
        model_(models::model_from_directory(directory_.path())),
        runtime_({DeviceKind::cpu, 0}, 2),
        stage_(training::load_model(directory_, model_, runtime_, DType::f32, 0)) {
    log::set_level(log::Level::error);
    write_word_vocabulary(folder_ / "words", model_->vocab_size());
    text_.emplace(
        server::TextModel::Parts{.name = name,
                                 .tokenizer = tokenizers::Tokenizer::load(folder_ / "words"),
                                 .context = positions(),
                                 .created = 1,
                                 .facts = model_->facts(),
                                 .pooling = server::stored_pooling(directory)});
    server::ServerOptions options = served_options(positions());
    options.engine.vocabulary = model_->vocab_size();
    server_ = std::make_unique<server::Server>(
        *text_,
        server::ServedWeights{
            std::shared_ptr<Runtime>(std::shared_ptr<void>(), &runtime_),
            std::shared_ptr<models::Stage>(std::shared_ptr<void>(), stage_.get())},
        options);
  }

  const server::TextModel& text() const { return *text_; }
  Json answer(const std::string& path, const std::string& body, int status = 200) const {
    const httplib::Result result =
        httplib::Client("127.0.0.1", server_->port()).Post(path, body, "application/json");
    if (!result) throw Error("no answer");
    EXPECT_EQ(result->status, status) << result->body;
    return Json::parse(result->body);
  }
  Json put(const std::string& path, const std::string& body) const {
    return Json::parse(
        httplib::Client("127.0.0.1", server_->port()).Put(path, body, "application/json")->body);
  }
  std::string get(const std::string& path) const {
    return httplib::Client("127.0.0.1", server_->port()).Get(path)->body;
  }
  // The texts of a stream of completions, joined.
  std::string streamed(const std::string& body) const {
    const httplib::Result result = httplib::Client("127.0.0.1", server_->port())
                                       .Post("/v1/completions", body, "application/json");
    std::string text;
    std::istringstream lines(result->body);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("data: {")) continue;
      const Json event = Json::parse(line.substr(6));
      text += event["choices"].as_array().at(0)["text"].as_string();
    }
    return text;
  }
  std::string refused(const std::string& path, const std::string& body) const {
    return answer(path, body, 400)["error"]["message"].as_string();
  }

 private:
  // Those of encoder-decoders have no end.
  int64_t positions() const { return std::min<int64_t>(model_->context_length(), 256); }

  TemporaryDirectory folder_;
  checkpoint::ModelDirectory directory_;
  models::Model model_;
  Runtime runtime_;
  std::unique_ptr<models::Stage> stage_;
  std::optional<server::TextModel> text_;
  std::unique_ptr<server::Server> server_;
};

void expect_filling(const Json& found, double score, int64_t token, const std::string& sequence) {
  EXPECT_NEAR(found["score"].as_number(), score, 1e-5);
  EXPECT_EQ(found["token"].as_integer(), token);
  EXPECT_EQ(found["token_str"].as_string(), "w" + std::to_string(token));
  EXPECT_EQ(found["sequence"].as_string(), sequence);
}

TEST(EncoderEndpoints, FillMasksAsTransformersDoes) {
  const ServedEncoder served("bert");
  const Json one = served.answer("/v1/fill-mask", R"({"input": "w10 w20 [MASK] w30", "top_k": 3})");
  ASSERT_EQ(one.as_array().size(), 3u);
  expect_filling(one.as_array()[0], 0.0453381, 67, "w10 w20 w67 w30");
  expect_filling(one.as_array()[1], 0.0406138, 83, "w10 w20 w83 w30");
  expect_filling(one.as_array()[2], 0.0270726, 72, "w10 w20 w72 w30");
  const Json two = served.answer("/fill-mask", R"({"inputs": "w7 [MASK] [MASK]", "top_k": 2})");
  ASSERT_EQ(two.as_array().size(), 2u);
  expect_filling(two.as_array()[0].as_array()[1], 0.0282873, 157, "[CLS] w7 w157 [MASK] [SEP]");
  expect_filling(two.as_array()[1].as_array()[0], 0.0364871, 67, "[CLS] w7 [MASK] w67 [SEP]");
  const Json list = served.answer(
      "/v1/fill-mask", R"({"input": ["w10 w20 [MASK] w30", "w7 [MASK] [MASK]"], "top_k": 3})");
  ASSERT_EQ(list.as_array().size(), 2u);
  EXPECT_EQ(list.as_array()[0].dump(), one.dump());
  expect_contains(served.refused("/v1/fill-mask", R"({"input": "w10 w20"})"),
                  {"has no mask", "[MASK]"});
  expect_contains(served.refused("/v1/fill-mask", R"({"input": "[MASK]", "top_k": 0})"), {"top_k"});
}

std::vector<double> embedding(const ServedEncoder& served, const std::string& more, size_t of = 0) {
  const Json answer = served.answer(
      "/v1/embeddings", R"({"input": ["w10 w20 w30", "w99 w98 w97 w96 w95"])" + more + "}");
  std::vector<double> values;
  for (const Json& value : answer["data"].as_array()[of]["embedding"].as_array())
    values.push_back(value.as_number());
  return values;
}

void expect_begins(const std::vector<double>& values, const std::vector<double>& expected) {
  ASSERT_EQ(values.size(), 48u);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-5) << i;
}

TEST(EncoderEndpoints, GiveEmbeddingsOfTheLastHiddenState) {
  const ServedEncoder served("bert");
  expect_begins(embedding(served, ""), {0.1407805, 0.0861687, 0.0193275});
  expect_begins(embedding(served, "", 1), {0.1634748, 0.083234, 0.0123074});
  expect_begins(embedding(served, R"(, "normalize": false)"), {0.8816155, 0.539618, 0.1210356});
  expect_begins(embedding(served, R"(, "normalize": false, "pooling": "cls")", 1),
                {1.1406881, 0.2548878, 0.1673533});
  expect_begins(embedding(served, R"(, "normalize": false, "pooling": "last")"),
                {0.9585022, 0.6772959, 0.0351768});
  expect_contains(served.refused("/v1/embeddings", R"({"input": "w5", "pooling": "max"})"),
                  {"max", "mean", "cls", "last"});
}

// transformers' BertModel: the hidden states of the same layers.
TEST(EncoderEndpoints, AModelWithoutAHeadGivesEmbeddings) {
  const TemporaryDirectory folder;
  write_headless_bert(folder / "");
  const ServedEncoder served("sentences", folder / ""), whole("bert");
  for (const char* form : {"", R"(, "normalize": false, "pooling": "cls")"})
    EXPECT_EQ(embedding(served, form), embedding(whole, form)) << form;
  for (const char* path : {"/v1/fill-mask", "/v1/classify", "/v1/completions"})
    expect_contains(served.refused(path, "{}"),
                    {path, "'sentences' is an encoder (bert) without a head", "/v1/embeddings"});
}

TEST(EncoderEndpoints, PoolingIsThatOfTheDirectory) {
  using inference::Pooling;
  const TemporaryDirectory folder;
  EXPECT_EQ(server::stored_pooling(folder / ""), Pooling::mean);
  std::filesystem::create_directory(folder / "1_Pooling");
  const auto pooling = [&](const std::string& config) {
    write_file(folder / "1_Pooling/config.json", config);
    return server::stored_pooling(folder / "");
  };
  EXPECT_EQ(pooling(R"({"word_embedding_dimension": 8, "pooling_mode_cls_token": true,
                        "pooling_mode_mean_tokens": false, "include_prompt": true})"),
            Pooling::first_token);
  EXPECT_EQ(pooling(R"({"pooling_mode_mean_tokens": true})"), Pooling::mean);
  EXPECT_EQ(pooling(R"({"pooling_mode_lasttoken": true})"), Pooling::last_token);
  for (const char* wrong :
       {R"({"pooling_mode_max_tokens": true})",
        R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})"})
    expect_contains(error_of([&] { pooling(wrong); }), {"1_Pooling/config.json", "pooling_mode_"});
  write_headless_bert(folder / "");
  pooling(R"({"pooling_mode_cls_token": true})");
  const ServedEncoder served("sentences", folder / "");
  EXPECT_EQ(embedding(served, ""), embedding(served, R"(, "pooling": "cls")"));
  EXPECT_NE(embedding(served, ""), embedding(served, R"(, "pooling": "mean")"));
}

// The classifier of three labels, of which each applies to a text or not.
TEST(EncoderEndpoints, SeveralLabelsOfATextAreSigmoids) {
  const TemporaryDirectory folder;
  Json config = family_config("bert_classify");
  config.set("problem_type", "multi_label_classification");
  write_file(folder / "config.json", config.dump());
  write_file(folder / "model.safetensors",
             read_file(family_directory("bert_classify") + "/model.safetensors"));
  const ServedEncoder served("labels", folder / "");
  const std::string input = R"({"input": "w10 w20 w30")";
  const auto first = [&](const std::string& more) {
    return served.answer("/v1/classify", input + more + "}")["data"].as_array()[0];
  };
  const Json scores = first(R"(, "use_activation": false)"), found = first("");
  Json::Array applying;
  for (size_t i = 0; i < 3; ++i) {
    const double score = scores["probs"].as_array()[i].as_number();
    EXPECT_NEAR(found["probs"].as_array()[i].as_number(), 1 / (1 + std::exp(-score)), 1e-6);
    if (score > 0) applying.emplace_back(fmt::format("LABEL_{}", i));
  }
  EXPECT_EQ(found["label"].as_string(), "LABEL_1");
  EXPECT_EQ(found["labels"].dump(), Json(applying).dump());
  EXPECT_EQ(scores["labels"].dump(), found["labels"].dump());
}

TEST(EncoderEndpoints, ClassifyTextsAsTransformersDoes) {
  const ServedEncoder served("bert_classify");
  const Json all = served.answer("/v1/classify", R"({"input": ["w10 w20 w30", "w50 w40"]})");
  const std::vector<std::vector<double>> expected = {{0.3010588, 0.4232993, 0.2756419},
                                                     {0.3844801, 0.2612983, 0.3542216}};
  for (size_t row = 0; row < 2; ++row) {
    const Json& data = all["data"].as_array()[row];
    EXPECT_EQ(data["label"].as_string(), row == 0 ? "LABEL_1" : "LABEL_0");
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(data["probs"].as_array()[i].as_number(), expected[row][i], 1e-5);
  }
  const Json cut =
      served.answer("/pooling", R"({"input": "w50 w40 w30", "truncate_prompt_tokens": 4})");
  const Json whole = served.answer("/pooling", R"({"input": "w50 w40"})");
  EXPECT_EQ(cut["data"].dump(), whole["data"].dump());  // [SEP] stays
}

// BertTokenizer's tokens and types of the pair, and those with its truncation (longest_first).
TEST(EncoderEndpoints, ReadPairsAsTransformersDoes) {
  const ServedEncoder served("bert_classify");
  const auto pair = [&](const std::string& more) {
    const Json body =
        Json::parse(R"({"text_1": "w10 w20", "text_2": ["w30 w31", "w9"])" + more + "}");
    return server::read_scored_pairs(server::Parameters(body), served.text());
  };
  using Ids = std::vector<int32_t>;
  const server::ScoreRequest whole = pair("");
  ASSERT_EQ(whole.texts.size(), 2u);
  EXPECT_EQ(whole.texts[0], (Ids{2, 10, 20, 3, 30, 31, 3}));
  EXPECT_EQ(whole.types[0], (Ids{0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(whole.texts[1], (Ids{2, 10, 20, 3, 9, 3}));
  EXPECT_EQ(whole.types[1], (Ids{0, 0, 0, 0, 1, 1}));
  const server::ScoreRequest cut = pair(R"(, "truncate_prompt_tokens": 6)");
  EXPECT_EQ(cut.texts[0], (Ids{2, 10, 3, 30, 31, 3}));
  EXPECT_EQ(cut.types[0], (Ids{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(cut.texts[1], whole.texts[1]);
  const server::ScoreRequest end =
      pair(R"(, "truncate_prompt_tokens": 5, "truncation_side": "left")");
  EXPECT_EQ(end.texts[0], (Ids{2, 20, 3, 31, 3}));
  EXPECT_EQ(end.types[0], (Ids{0, 0, 0, 1, 1}));
  EXPECT_THROW(pair(R"(, "truncate_prompt_tokens": 3)"), server::ApiError);  // no room for texts
  expect_contains(served.refused("/v1/score", R"({"text_1": "w5", "text_2": "w6"})"),
                  {"has 3 labels", "/v1/classify"});
}

// The classifier with the first of its labels alone, whose logits transformers has.
TEST(EncoderEndpoints, ScoreAndRankPairsByTheirOneLabel) {
  const TemporaryDirectory folder;
  Json config = family_config("bert_classify");
  config.set("id2label", Json::parse(R"({"0": "relevance"})"));
  config.set("label2id", Json::parse(R"({"relevance": 0})"));
  config.set("num_labels", 1);
  write_file(folder / "config.json", config.dump());
  std::vector<RawTensor> tensors =
      read_raw(family_directory("bert_classify") + "/model.safetensors");
  for (RawTensor& tensor : tensors) {
    if (!tensor.name.starts_with("classifier.")) continue;
    const bool weight = tensor.name == "classifier.weight";
    tensor.bytes.resize(tensor.bytes.size() / 3);
    tensor.shape = weight ? "[1,32]" : "[1]";
  }
  write_raw(folder / "model.safetensors", tensors);
  const ServedEncoder served("ranker", folder / "");
  const std::string texts = R"("text_1": "w10 w20", "text_2": ["w9", "w30 w31"])";
  constexpr double kLogits[] = {-0.5309510, -0.5154680};
  const Json raw = served.answer("/v1/score", "{" + texts + R"(, "use_activation": false})"),
             probabilities = served.answer("/v1/score", "{" + texts + "}");
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(raw["data"].as_array()[i]["score"].as_number(), kLogits[i], 1e-5);
    EXPECT_NEAR(probabilities["data"].as_array()[i]["score"].as_number(),
                1 / (1 + std::exp(-kLogits[i])), 1e-5);
  }
  const Json ranked = served.answer(
      "/v1/rerank", R"({"query": "w10 w20", "documents": ["w9", "w30 w31"], "top_n": 1})");
  ASSERT_EQ(ranked["results"].as_array().size(), 1u);
  const Json& first = ranked["results"].as_array()[0];
  EXPECT_EQ(first["index"].as_integer(), 1);
  EXPECT_EQ(first["document"]["text"].as_string(), "w30 w31");
  EXPECT_NEAR(first["relevance_score"].as_number(), 1 / (1 + std::exp(-kLogits[1])), 1e-5);
}

TEST(EncoderEndpoints, GiveScoresOfEachToken) {
  const ServedEncoder served("bert_tokens");
  const Json all = served.answer("/pooling", R"({"input": "w10 w20"})");
  const Json::Array& tokens = all["data"].as_array()[0]["data"].as_array();
  ASSERT_EQ(tokens.size(), 4u);
  for (const Json& token : tokens) {
    double sum = 0;
    for (const Json& value : token.as_array()) sum += value.as_number();
    EXPECT_NEAR(sum, 1, 1e-6);
  }
  for (const char* path : {"/v1/classify", "/v1/completions"})
    expect_contains(served.refused(path, R"({"input": "w10"})"), {path, "/pooling"});
  const std::string score =
      served.refused("/v1/score", R"({"model": "bert_tokens", "text_1": "w10", "text_2": "w20"})");
  expect_contains(score, {"/v1/score", "/pooling"});
  EXPECT_EQ(score.find("use /v1/classify"), score.npos);
}

std::string text_of(const Json& answer, size_t choice = 0) {
  return answer["choices"].as_array().at(choice)["text"].as_string();
}

// The prompt is the first encoder's text of the vectors, without its padding.
TEST(EncoderDecoderEndpoints, CompleteAsTransformersDoes) {
  const ServedEncoder served("t5");
  const checkpoint::SafetensorsFile expected(family_directory("t5") + "/expected.safetensors");
  const std::vector<int64_t> ids = expected.integers("input_ids"),
                             shown = expected.integers("attention_mask"),
                             greedy = expected.integers("greedy");
  Json::Array prompt;
  const auto length = static_cast<size_t>(expected.find("input_ids")->shape[1]);
  for (size_t t = 0; t < length && shown[t] != 0; ++t) prompt.emplace_back(ids[t]);
  const std::string text =
      served.text().tokenizer().decode(std::vector<int32_t>(greedy.begin(), greedy.end()), true);
  const std::string given = R"({"prompt": )" + Json(prompt).dump() + R"(, "max_tokens": 12)";
  const Json answer = served.answer("/v1/completions", given + R"(, "temperature": 0})");
  EXPECT_EQ(text_of(answer), text);
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(answer["usage"]["prompt_tokens"].as_integer(), std::ssize(prompt));
  EXPECT_EQ(answer["usage"]["completion_tokens"].as_integer(), 12);
  EXPECT_EQ(answer["choices"].as_array()[0]["finish_reason"].as_string(), "length");
  EXPECT_EQ(served.streamed(given + R"(, "temperature": 0, "stream": true})"), text);
}

TEST(EncoderDecoderEndpoints, WriteSeveralTextsForAPrompt) {
  const ServedEncoder served("t5_v1_1");
  const std::string body = R"({"prompt": "w10 w20 w30", "max_tokens": 8, "seed": 4, "n": 3,
                               "logprobs": 2})";
  const Json answer = served.answer("/v1/completions", body);
  ASSERT_EQ(answer["choices"].as_array().size(), 3u);
  EXPECT_NE(text_of(answer, 0), text_of(answer, 1));
  for (const Json& choice : answer["choices"].as_array())
    EXPECT_EQ(choice["logprobs"]["token_logprobs"].as_array().size(), 8u);
  const Json again = served.answer("/v1/completions", body);
  EXPECT_EQ(answer["choices"].dump(), again["choices"].dump());
  const Json megatron = served.put("/api", R"({"prompts": ["w10"], "tokens_to_generate": 4,
                                               "top_k": 1, "logprobs": true})");
  EXPECT_EQ(megatron["segments"].as_array()[0].as_array().size(), 4u);
  EXPECT_EQ(megatron["logprobs"].as_array()[0].as_array().size(), 4u);
}

TEST(EncoderDecoderEndpoints, RefuseWhatReadsThePromptOtherwise) {
  const ServedEncoder served("t5");
  const auto completion = [&](const std::string& more) {
    return served.refused("/v1/completions", R"({"prompt": "w10", "max_tokens": 4)" + more + "}");
  };
  expect_contains(completion(R"(, "echo": true)"), {"echo", "reads prompts with an encoder"});
  expect_contains(completion(R"(, "prompt_logprobs": 1)"), {"prompt_logprobs", "encoder"});
  expect_contains(served.refused("/v1/completions", R"({"prompt": "w10", "max_tokens": 0})"),
                  {"max_tokens"});
  expect_contains(served.refused("/v1/chat/completions",
                                 R"({"messages": [{"role": "user", "content": "w10"}]})"),
                  {"'t5' is an encoder-decoder without a chat template", "/v1/completions"});
  expect_contains(served.refused("/v1/embeddings", R"({"input": "w10"})"),
                  {"'t5' is an encoder-decoder", "no embeddings"});
  expect_contains(served.refused("/v1/fill-mask", R"({"input": "w10"})"),
                  {"is an encoder-decoder", "/v1/completions"});
  expect_contains(served.get("/v1/models"), {R"("id": "t5")", R"("chat": false)"});
}

TEST(EncoderEndpoints, RefuseWhatTheModelDoesNotDo) {
  const ServedEncoder masked("bert"), scores("bert_classify");
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/classify", "/v1/score"})
    expect_contains(masked.refused(path, "{}"),
                    {path, "'bert' is an encoder (bert)", "/v1/fill-mask", "/v1/embeddings"});
  expect_contains(scores.refused("/v1/fill-mask", "{}"), {"scores texts (3 labels)"});
  expect_contains(scores.refused("/v1/completions", "{}"), {"/v1/classify"});
  const ServedModel decoder;
  const httplib::Result result =
      decoder.client().Post("/v1/fill-mask", R"({"input": "a"})", "application/json");
  ASSERT_EQ(result->status, 400);
  expect_contains(result->body, {"is a decoder", "/v1/completions", "serve an encoder"});
}

}  // namespace
}  // namespace megatron::testing
