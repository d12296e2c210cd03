// Endpoints of models with a score head, compared with transformers' logits.
#include <cmath>

#include "checkpoint/model_directory.h"
#include "checkpoint/safetensors.h"
#include "golden/server/support.h"
#include "text.h"
#include "training/model_source.h"
#include "unit/models/family_models.h"

namespace megatron::testing {
namespace {

// A directory of the golden vectors behind a server, with a tokenizer of bytes.
class ServedScores {
 public:
  explicit ServedScores(const std::string& name)
      : directory_(family_directory(name)),
        expected_(family_directory(name) + "/expected.safetensors"),
        model_(models::model_from_directory(directory_.path())),
        runtime_({DeviceKind::cpu, 0}, 2),
        stage_(training::load_model(directory_, model_, runtime_, DType::f32, 0)) {
    log::set_level(log::Level::error);
    server::TextModel::Parts parts{
        .name = name,
        .tokenizer = tokenizers::Tokenizer(tokenizers::make_byte_codec(256)),
        .context = 128,
        .created = 1,
        .facts = model_->facts()};
    parts.chat.set_template(kChatTemplate, "test");
    text_.emplace(std::move(parts));
    server::ServerOptions options = served_options(128);
    options.engine.vocabulary = model_->vocab_size();
    options.engine.max_tokens = 16;  // texts are read in pieces
    server_ = std::make_unique<server::Server>(
        *text_,
        server::ServedWeights{
            std::shared_ptr<Runtime>(std::shared_ptr<void>(), &runtime_),
            std::shared_ptr<models::Stage>(std::shared_ptr<void>(), stage_.get())},
        options);
  }

  httplib::Result post(const std::string& path, const std::string& body) const {
    return httplib::Client("127.0.0.1", server_->port()).Post(path, body, "application/json");
  }
  Json answer(const std::string& path, const std::string& body) const {
    const httplib::Result result = post(path, body);
    if (!result || result->status != 200) throw Error(result ? result->body : "no answer");
    return Json::parse(result->body);
  }
  std::string refused(const std::string& path, const std::string& body, int status = 400) const {
    const httplib::Result result = post(path, body);
    if (!result) throw Error("no answer");
    EXPECT_EQ(result->status, status) << result->body;
    return Json::parse(result->body)["error"]["message"].as_string();
  }
  // The rows of the golden input as a list of lists.
  std::string rows() const {
    const std::vector<int64_t> ids = expected_.integers("input_ids");
    const size_t length = ids.size() / 2;
    std::string text = "[";
    for (size_t i = 0; i < ids.size(); ++i)
      text += (i % length == 0 ? (i == 0 ? "[" : "], [") : ", ") + std::to_string(ids[i]);
    return text + "]]";
  }
  std::vector<double> logits() const { return expected_.doubles("logits"); }
  size_t labels() const { return static_cast<size_t>(model_->score_labels()); }
  std::string get(const std::string& path) const {
    return httplib::Client("127.0.0.1", server_->port()).Get(path)->body;
  }

 private:
  checkpoint::ModelDirectory directory_;
  checkpoint::SafetensorsFile expected_;
  models::Model model_;
  Runtime runtime_;
  std::unique_ptr<models::Stage> stage_;
  std::optional<server::TextModel> text_;
  std::unique_ptr<server::Server> server_;
};

class ScoreEndpoints : public ::testing::TestWithParam<const char*> {};

TEST_P(ScoreEndpoints, GiveTransformersLogits) {
  const ServedScores served(GetParam());
  const size_t labels = served.labels();
  const std::vector<double> logits = served.logits();
  const std::string input = "{\"input\": " + served.rows();
  const Json raw = served.answer("/v1/classify", input + ", \"use_activation\": false}");
  const Json pooled = served.answer("/pooling", input + ", \"softmax\": false}");
  const Json usual = served.answer("/classify", input + "}");
  ASSERT_EQ(raw["data"].as_array().size(), 2u);
  EXPECT_EQ(raw["object"].as_string(), "list");
  EXPECT_TRUE(raw["id"].as_string().starts_with("classify-"));
  EXPECT_EQ(raw["usage"]["completion_tokens"].as_integer(), 0);
  EXPECT_EQ(raw["usage"]["prompt_tokens"].as_integer(), 48);
  for (size_t r = 0; r < 2; ++r) {
    const std::span<const double> expected(&logits[r * labels], labels);
    const Json& of_row = raw["data"].as_array()[r];
    const Json::Array& probabilities = usual["data"].as_array()[r]["probs"].as_array();
    const Json::Array& values = of_row["probs"].as_array();
    ASSERT_EQ(values.size(), labels);
    ASSERT_EQ(of_row["num_classes"].as_integer(), static_cast<int64_t>(labels));
    double sum = 0;
    for (const double value : expected) sum += std::exp(value);
    for (size_t k = 0; k < labels; ++k) {
      EXPECT_NEAR(values[k].as_number(), expected[k], 1e-4);
      EXPECT_EQ(pooled["data"].as_array()[r]["data"].as_array()[k], values[k]);
      EXPECT_NEAR(probabilities[k].as_number(),
                  labels == 1 ? expected[k] : std::exp(expected[k]) / sum, 1e-4);
    }
    const auto best = std::ranges::max_element(expected) - expected.begin();
    EXPECT_EQ(of_row["label"].as_string(), "LABEL_" + std::to_string(best));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ScoreEndpoints,
                         ::testing::Values("llama_classify", "llama_reward"));

TEST(ScoreEndpoint, ReadsChatsAndPairs) {
  const ServedScores served("llama_reward");
  const auto first = [&](const std::string& path, const std::string& body) {
    return served.answer(path, body)["data"].as_array()[0];
  };
  // The template writes "u:hi\n".
  const Json chat = first("/classify", R"({"messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(chat, first("/classify", R"({"input": "u:hi\n"})"));
  const Json pair = first("/v1/score", R"({"text_1": "u:", "text_2": "hi\n"})");
  EXPECT_EQ(pair["score"], chat["probs"].as_array()[0]);
  EXPECT_EQ(pair["object"].as_string(), "score");
  const Json many =
      served.answer("/score", R"({"queries": "u:", "documents": ["a", "hi\n", "c"]})")["data"];
  ASSERT_EQ(many.as_array().size(), 3u);
  EXPECT_EQ(many.as_array()[1]["score"], pair["score"]);
  expect_contains(served.refused("/score", R"({"text_1": ["a", "b"], "text_2": ["a"]})"),
                  {"text_2", "has 1 texts", "text_1 has 2"});
  expect_contains(served.refused("/score", R"({"text_1": "a"})"), {"text_2", "is missing"});
  EXPECT_TRUE(has(served.get("/metrics"), "megatron_texts_total{reason=\"scored\"}"));
  EXPECT_EQ(Json::parse(served.get("/v1/models"))["data"].as_array()[0]["labels"].dump(),
            R"(["LABEL_0"])");
}

TEST(ScoreEndpoint, CutsTextsOnEitherSide) {
  const ServedScores served("llama_reward");
  const auto value = [&](const std::string& path, const std::string& body) {
    const Json first = served.answer(path, body)["data"].as_array()[0];
    return path == "/classify" ? first["probs"].as_array()[0] : first["score"];
  };
  const std::string three = R"(, "truncate_prompt_tokens": 3)",
                    left = three + R"(, "truncation_side": "left")";
  const Json start = value("/classify", R"({"input": "abc"})"),
             end = value("/classify", R"({"input": "cde"})");
  EXPECT_NE(start, end);
  EXPECT_EQ(value("/classify", R"({"input": "abcde")" + three + "}"), start);
  EXPECT_EQ(value("/classify", R"({"input": "abcde")" + left + "}"), end);
  EXPECT_EQ(value("/classify", R"({"input": [97, 98, 99, 100, 101])" + three + "}"), start);
  EXPECT_EQ(value("/classify", R"({"input": "ab")" + three + "}"),
            value("/classify", R"({"input": "ab"})"));
  EXPECT_EQ(value("/score", R"({"text_1": "ab", "text_2": "cde")" + left + "}"), end);
  const std::string longest(128, 'a');
  EXPECT_EQ(value("/classify", R"({"input": ")" + longest + R"(b", "truncate_prompt_tokens": -1})"),
            value("/classify", R"({"input": ")" + longest + "\"}"));
}

TEST(ScoreEndpoint, RanksDocuments) {
  const ServedScores served("llama_reward");
  const Json scores =
      served.answer("/score", R"({"text_1": "u:", "text_2": ["a", "hi\n", "c"]})")["data"];
  std::vector<std::pair<double, int64_t>> expected;
  for (const Json& one : scores.as_array())
    expected.emplace_back(one["score"].as_number(), one["index"].as_integer());
  std::ranges::sort(expected, std::greater());
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank"}) {
    const Json answer = served.answer(
        path, R"({"query": "u:", "documents": ["a", {"text": "hi\n"}, "c"], "top_n": 2})");
    EXPECT_TRUE(answer["id"].as_string().starts_with("rerank-"));
    EXPECT_EQ(answer["usage"]["prompt_tokens"].as_integer(), 11);
    const Json::Array& results = answer["results"].as_array();
    ASSERT_EQ(results.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(results[i]["index"].as_integer(), expected[i].second);
      EXPECT_EQ(results[i]["relevance_score"].as_number(), expected[i].first);
      const char* texts[] = {"a", "hi\n", "c"};
      EXPECT_EQ(results[i]["document"]["text"].as_string(), texts[expected[i].second]);
    }
  }
  const Json all = served.answer(
      "/rerank", R"({"query": "u:", "documents": ["a", "b"], "return_documents": false})");
  EXPECT_EQ(all["results"].as_array().size(), 2u);
  EXPECT_EQ(all["results"].as_array()[0].find("document"), nullptr);
  expect_contains(served.refused("/rerank", R"({"documents": ["a"]})"), {"query is missing"});
  expect_contains(served.refused("/rerank", R"({"query": 1, "documents": ["a"]})"), {"query is 1"});
  expect_contains(served.refused("/rerank", R"({"query": "a", "documents": [1]})"),
                  {"documents contains 1"});
}

TEST(ScoreEndpoint, RefusesWhatTheModelCannotDo) {
  const ServedScores served("llama_classify");
  for (const char* path : {"/v1/completions", "/v1/chat/completions"})
    expect_contains(served.refused(path, "{}"),
                    {path, "llama_classify", "3 labels", "/v1/classify"});
  expect_contains(served.refused("/v1/score", R"({"text_1": "a", "text_2": "b"})"),
                  {"llama_classify", "3 labels", "/v1/classify"});
  expect_contains(served.refused("/classify", R"({"input": []})"), {"input", "empty list"});
  expect_contains(served.refused("/classify", R"({"input": "a", "messages": []})"), {"both"});
  const auto cut = [&](const char* field) {
    return served.refused("/classify", fmt::format(R"({{"input": "a", {}}})", field));
  };
  expect_contains(cut(R"("truncate_prompt_tokens": 129)"), {"truncate_prompt_tokens", "-1 to 128"});
  expect_contains(cut(R"("truncate_prompt_tokens": 0)"), {"truncate_prompt_tokens is 0"});
  expect_contains(cut(R"("truncation_side": "both")"), {"truncation_side", "left"});
  expect_contains(served.refused("/rerank", R"({"query": "a", "documents": ["b"]})"),
                  {"llama_classify", "3 labels"});
  expect_contains(served.refused("/classify", R"({"model": "other", "input": "a"})", 404),
                  {"other"});
  expect_contains(served.refused("/pooling", R"({"input": "a", "task": "embed"})"), {"embed"});
  expect_contains(served.refused("/classify", "{\"input\": \"" + std::string(129, 'a') + "\"}"),
                  {"129", "128"});
  const ServedModel text;
  const httplib::Result result = text.post("/v1/classify", R"({"input": "a"})");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 400);
  expect_contains(result->body, {"'tiny' is a language model", "wrong_kind_of_model"});
}

}  // namespace
}  // namespace megatron::testing
