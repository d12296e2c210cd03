// Beam search of the engine: the bits of a search without a cache, whatever runs beside it.
#include "checkpoint/model_directory.h"
#include "golden/inference/shared_requests.h"
#include "inference/beam_search.h"
#include "inference/pass.h"
#include "kernels/observer.h"
#include "unit/models/summing_model.h"

namespace megatron::testing {
namespace {

using inference::BeamOptions;
using inference::BeamResult;
using inference::BeamSearch;
using inference::Draw;
using inference::EarlyStopping;
using inference::Engine;
using inference::EngineOptions;
using inference::Generation;
using inference::Request;

models::ModelFlags beam_shape() {
  return llama_shape(2, 32, 4, 2, kSharedVocabulary, kSharedPositions);
}

Request beam_request(int64_t beams, int64_t prompt = 45, uint64_t seed = 5) {
  Request request{.number = seed,
                  .prompt = random_tokens(prompt, kSharedVocabulary, seed),
                  .max_tokens = 40,
                  .end_tokens = {3, 7},
                  .logprobs = 2};
  request.sampling.min_tokens = 2;
  request.beams =
      BeamOptions{.beams = beams, .returned = beams, .early_stopping = EarlyStopping::never};
  return request;
}

// The next tokens of a text, from one pass over all of it.
std::vector<Draw> next_tokens(RandomModel& m, const Tokens& text, int64_t count) {
  const nn::Batch batch = whole_batch(m, {text});
  Tape tape(m.runtime, Tape::Mode::infer);
  const Bundle out = models::forward(m.model, tape, {}, batch, models::Phase::evaluate);
  const Tensor all = m.model.loss_logits(tape, out);
  inference::Logits last(all.slice(0, all.size(0) - 1, 1), m.runtime);
  const std::vector<size_t> row = {0};
  last.read(row);
  const std::vector<int32_t> ids = inference::most_likely(last.row(0), count);
  const std::vector<std::vector<double>> losses = last.losses({ids});
  std::vector<Draw> next;
  for (size_t i = 0; i < ids.size(); ++i) next.push_back({ids[i], 0.0 - losses[0][i]});
  return next;
}

std::vector<BeamResult> without_cache(RandomModel& m, const Request& request) {
  BeamSearch search(*request.beams, {.end_tokens = request.end_tokens,
                                     .min_tokens = request.sampling.min_tokens,
                                     .max_tokens = request.max_tokens,
                                     .alternatives = request.logprobs});
  while (!search.done()) {
    std::vector<std::vector<Draw>> next;
    for (size_t b = 0; b < std::max<size_t>(search.running().size(), 1); ++b) {
      Tokens text = request.prompt;
      if (search.begun()) {
        const Tokens own = search.text(b);
        text.insert(text.end(), own.begin(), own.end());
      }
      next.push_back(next_tokens(m, text, search.candidates()));
    }
    search.step(next);
  }
  return search.results();
}

Generation searched_alone(RandomModel& m, const Request& request,
                          const EngineOptions& options = {}) {
  return inference::generate(m.model, m.runtime, std::span(&request, 1), options)[0];
}

std::vector<double> numbers_without_cache(RandomModel& m, const Request& request) {
  Generation g;
  g.beams = without_cache(m, request);
  g.tokens = g.beams[0].tokens;
  g.finish = g.beams[0].finish;
  std::vector<double> numbers = numbers_of(g);
  return numbers;
}

std::vector<double> numbers_alone(RandomModel& m, const Request& request,
                                  const EngineOptions& options = {}) {
  Generation g = searched_alone(m, request, options);
  g.prompt_log_probabilities.clear();
  return numbers_of(g);
}

TEST(Beams, AreThoseWithoutACacheInEveryBit) {
  RandomModel m(beam_shape(), DType::f32);
  for (const int64_t beams : {1, 2, 5}) {
    for (const int64_t prompt : {1, 31, 32, 45}) {
      const Request request = beam_request(beams, prompt);
      EXPECT_EQ(numbers_alone(m, request, {.block_size = 32}), numbers_without_cache(m, request))
          << beams << " beams after " << prompt << " tokens";
    }
  }
}

TEST(Beams, AreThoseWithoutACacheInBf16) {
  RandomModel m(beam_shape(), DType::bf16);
  EXPECT_EQ(numbers_alone(m, beam_request(4)), numbers_without_cache(m, beam_request(4)));
}

// Windows leave pages behind; a state of fixed size is copied with each fork.
TEST(Beams, OfWindowsAndStatesAreThoseWithoutACache) {
  models::ModelFlags windows = beam_shape();
  windows.window_size = "20,0";
  RandomModel windowed(windows, DType::f32);
  EXPECT_EQ(numbers_alone(windowed, beam_request(4, 70), {.max_tokens = 16, .block_size = 32}),
            numbers_without_cache(windowed, beam_request(4, 70)));
  RandomModel summing(summing_model(beam_shape()), DType::f32);
  EXPECT_EQ(numbers_alone(summing, beam_request(4), {.block_size = 32}),
            numbers_without_cache(summing, beam_request(4)));
  RandomModel states(summing_model(beam_shape(), false), DType::bf16);
  EXPECT_EQ(numbers_alone(states, beam_request(4), {.block_size = 32}),
            numbers_without_cache(states, beam_request(4)));
}

// A pass that takes fewer tokens than there are beams reads them one after the other.
TEST(Beams, NeedNotRunInOnePass) {
  RandomModel m(beam_shape(), DType::f32);
  EXPECT_EQ(numbers_alone(m, beam_request(5), {.max_tokens = 3}),
            numbers_alone(m, beam_request(5)));
  EXPECT_EQ(numbers_alone(m, beam_request(5), {.prefix_caching = false}),
            numbers_alone(m, beam_request(5)));
}

// Two requests of four beams in a cache with room for one of them.
TEST(Beams, ThatGiveUpTheirPagesContinueTheSame) {
  RandomModel m(beam_shape(), DType::f32);
  for (const bool caching : {true, false}) {
    Engine e(m.model, m.runtime,
             {.max_requests = 8,
              .block_size = 32,
              .cache_bytes = bytes_of_blocks(m, 10, 32),
              .prefix_caching = caching});
    Results results;
    const auto request = [](uint64_t seed) {
      Request r = beam_request(4, 45, seed);
      r.end_tokens.clear();
      return r;
    };
    for (const uint64_t seed : {1, 2}) e.submit(request(seed));
    while (!e.idle()) take(e.step(), results);
    EXPECT_GT(e.statistics().preemptions, 0);
    EXPECT_EQ(e.cache_use().used, 0);
    for (const uint64_t seed : {1, 2})
      EXPECT_EQ(numbers_of(results[seed]), numbers_of(searched_alone(m, request(seed))));
  }
}

// Angles that change with every token, so that all tokens are read again for each.
TEST(Beams, OfRotaryAnglesThatChangeAreThoseWithoutACache) {
  const std::string directory = std::string(MEGATRON_GOLDEN) + "/hf/llama_dynamic";
  const models::Model model = models::model_of(checkpoint::ModelDirectory(directory));
  RandomModel m(model, DType::f32);
  Request request = beam_request(3, 20);
  request.max_tokens = std::min<int64_t>(30, model->context_length() - 20);
  EXPECT_EQ(numbers_alone(m, request), numbers_without_cache(m, request));
}

TEST(Beams, AreReadAnewWithOtherWeights) {
  RandomModel m(beam_shape(), DType::f32);
  Engine e(m.model, m.runtime, {.max_requests = 4, .block_size = 32});
  Results results;
  e.submit(beam_request(4));
  for (int step = 0; !e.idle(); ++step) {
    take(e.step(), results);
    if (step % 5 == 2) e.weights_changed();
  }
  EXPECT_EQ(numbers_of(results[1]), numbers_of(searched_alone(m, beam_request(4))));
}

TEST(Beams, ShareThePagesOfTheirPrompt) {
  RandomModel m(beam_shape(), DType::f32);
  Engine e(m.model, m.runtime, {.max_requests = 4, .block_size = 32});
  Request request = beam_request(4, 130);
  request.max_tokens = 20;
  request.end_tokens.clear();
  e.submit(request);
  for (int i = 0; i < 10; ++i) e.step();
  EXPECT_EQ(e.cache_use().used, 4 + 4 * 1) << "four full blocks, and one for each beam";
  EXPECT_TRUE(e.cancel(1));
  EXPECT_EQ(e.cache_use().used, 0);
  EXPECT_TRUE(e.idle());
}

TEST(Beams, StreamTheTokensThatAllTextsBeginWith) {
  RandomModel m(beam_shape(), DType::f32);
  Request request = beam_request(3);
  request.end_tokens.clear();
  Engine e(m.model, m.runtime, {.max_requests = 3});
  e.submit(request);
  int64_t early = 0;
  Tokens all;
  while (!e.idle()) {
    for (const inference::RequestUpdate& update : e.step()) {
      for (const auto& token : update.tokens) all.push_back(token.draw.token);
      if (!update.finish) {
        early += std::ssize(update.tokens);
        continue;
      }
      ASSERT_EQ(update.beams.size(), 3);
      for (const BeamResult& beam : update.beams)
        for (size_t t = 0; t < static_cast<size_t>(early); ++t)
          EXPECT_EQ(beam.tokens[t].draw.token, all[t]);
      Tokens best;
      for (const auto& token : update.beams[0].tokens) best.push_back(token.draw.token);
      EXPECT_EQ(all, best);
    }
  }
  EXPECT_GT(early, 5);
}

// The last token is drawn at the model's last position.
TEST(Beams, EndAtTheLastPosition) {
  RandomModel m(beam_shape(), DType::f32);
  Request request = beam_request(2, kSharedPositions - 10);
  request.end_tokens.clear();
  const Generation g = searched_alone(m, request);
  EXPECT_EQ(g.finish, inference::Finish::positions);
  for (const BeamResult& beam : g.beams) EXPECT_EQ(beam.tokens.size(), 11);
}

TEST(Beams, ThatNeverFitAreRefused) {
  RandomModel m(beam_shape(), DType::f32);
  const auto reason = [&](const EngineOptions& options) -> std::string {
    try {
      Engine(m.model, m.runtime, options).submit(beam_request(4));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(reason({.max_requests = 4}), "");
  EXPECT_NE(reason({.max_requests = 3}).find("raise --inference-dynamic-batching-max-requests"),
            std::string::npos);
  const std::string blocks = reason({.max_requests = 4,
                                     .max_length = 96,
                                     .block_size = 32,
                                     .cache_bytes = bytes_of_blocks(m, 8, 32)});
  EXPECT_NE(blocks.find("need 9 blocks of 32 tokens in the KV cache, but it has 8"), blocks.npos)
      << blocks;
}

TEST(Beams, WithoutANumberFailAlone) {
  RandomModel m(beam_shape(), DType::f32);
  Tensor table = m.model.parameters()[0]->parameter.value;
  std::vector<double> values = to_doubles(table);
  std::fill_n(values.begin(), table.size(1), std::nan(""));  // of token 0
  copy_from(table, std::span<const double>(values));
  Engine e(m.model, m.runtime, {.max_requests = 8});
  Request bad = beam_request(3), good = beam_request(3);
  bad.logprobs = good.logprobs = -1;
  bad.prompt.back() = 0;
  for (int32_t& id : good.prompt) id = std::max(id, 1);
  good.max_tokens = 2;
  e.submit(bad);
  e.submit(good);
  std::map<inference::RequestId, inference::Finish> finished;
  while (!e.idle()) {
    for (const inference::RequestUpdate& update : e.step()) {
      if (!update.finish) continue;
      finished[update.id] = *update.finish;
      EXPECT_EQ(update.beams.empty(), update.finish == inference::Finish::failed);
      EXPECT_EQ(update.error.find("not a number") != update.error.npos, update.beams.empty());
    }
  }
  EXPECT_EQ(finished.at(1), inference::Finish::failed);
  EXPECT_NE(finished.at(2), inference::Finish::failed);
  EXPECT_EQ(e.cache_use().used, 0);
}

// Gives beams of one pass the pages of another: the first sequence's, from its last block on.
class OtherPages final : public kernels::Observer {
 public:
  explicit OtherPages(Stream& stream) : stream_(stream) { stream_.watch(this); }
  ~OtherPages() override { stream_.watch(nullptr); }
  OtherPages(const OtherPages&) = delete;
  OtherPages& operator=(const OtherPages&) = delete;

  void before(const kernels::Call& call) override {
    if (call.kernel != "attention") return;
    for (const kernels::Operand& operand : call.operands) {
      if (operand.name != "block_table" || operand.tensor.size(0) < 2) continue;
      const Tensor own = operand.tensor.select(0, 1), other = operand.tensor.select(0, 0);
      std::ranges::copy(other.span<int32_t>(), own.span<int32_t>().begin());
    }
  }
  void after(const kernels::Call&) override {}

 private:
  Stream& stream_;
};

// Leaves out the copies of pages: a beam keeps what the page held before.
class NoCopies final : public kernels::Observer {
 public:
  explicit NoCopies(Stream& stream) : stream_(stream) { stream_.watch(this); }
  ~NoCopies() override { stream_.watch(nullptr); }
  NoCopies(const NoCopies&) = delete;
  NoCopies& operator=(const NoCopies&) = delete;

  void before(const kernels::Call& call) override {
    if (call.kernel == "copy") held_ = to_floats(out_of(call));
  }
  void after(const kernels::Call& call) override {
    if (call.kernel != "copy") return;
    Tensor out = out_of(call);
    copy_from(out, std::span<const float>(held_));
  }

 private:
  static Tensor out_of(const kernels::Call& call) {
    const auto out = std::ranges::find(call.operands, "out", &kernels::Operand::name);
    return out->tensor;
  }

  Stream& stream_;
  std::vector<float> held_;
};

// Planted faults: a search whose beams keep pages of another, or what was in their own before.
TEST(Beams, ThatKeepOtherPagesAreCaught) {
  RandomModel m(beam_shape(), DType::f32);
  const Request request = beam_request(4);
  const std::vector<double> right = numbers_without_cache(m, request);
  EXPECT_EQ(numbers_alone(m, request), right);
  {
    const OtherPages fault(m.runtime.stream());
    EXPECT_NE(numbers_alone(m, request), right);
  }
  {
    const NoCopies fault(m.runtime.stream());
    EXPECT_NE(numbers_alone(m, request), right);
  }
}

}  // namespace
}  // namespace megatron::testing
