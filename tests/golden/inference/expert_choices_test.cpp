// The experts that an engine reports for each token are those of one pass over the whole text.
#include "inference/expert_choices.h"

#include <map>

#include "base/error.h"
#include "golden/inference/support.h"
#include "inference/engine.h"
#include "kernels/observer.h"

namespace megatron::testing {
namespace {

using inference::Request;
using inference::RequestId;

constexpr int64_t kTokens = 97, kPositions = 192;

// Layer 0 is dense.
models::ModelFlags experts_shape() {
  models::ModelFlags flags = llama_shape(3, 64, 4, 2, kTokens, kPositions);
  flags.moe.num_experts = 8;
  flags.moe.topk = 3;
  flags.moe.ffn_hidden_size = 48;
  flags.moe.layer_freq = "[0,1,1]";
  return flags;
}

// Records the experts [T,k] that the router kernel has chosen, call by call.
class RouteWatcher final : public kernels::Observer {
 public:
  explicit RouteWatcher(Stream& stream) : stream_(stream) { stream_.watch(this); }
  ~RouteWatcher() override { stream_.watch(nullptr); }
  RouteWatcher(const RouteWatcher&) = delete;
  RouteWatcher& operator=(const RouteWatcher&) = delete;

  void after(const kernels::Call& call) override {
    if (call.kernel != "route") return;
    for (const kernels::Operand& operand : call.operands)
      if (operand.name == "experts") calls.push_back(operand.tensor);
  }
  std::vector<Tensor> calls;

 private:
  Stream& stream_;
};

// [T, layers, k], as an engine reports them.
Tokens choices_of_one_pass(RandomModel& m, const Tokens& text) {
  RouteWatcher watcher(m.runtime.stream());
  whole_logits(m, text);
  Tokens all;
  for (size_t t = 0; t < text.size(); ++t)
    for (const Tensor& experts : watcher.calls)
      for (const int32_t expert : experts.select(0, static_cast<int64_t>(t)).span<int32_t>())
        all.push_back(expert);
  return all;
}

struct Found {
  Tokens text, choices;
};

TEST(ExpertChoices, AreThoseOfOnePass) {
  RandomModel m(experts_shape(), DType::f32);
  const Tokens prefix = random_tokens(70, kTokens, 1);
  std::vector<Request> requests;
  for (uint64_t n = 0; n < 8; ++n) {
    Tokens prompt = prefix;
    const Tokens own = random_tokens(1 + static_cast<int64_t>(n * 7), kTokens, 10 + n);
    prompt.insert(prompt.end(), own.begin(), own.end());
    requests.push_back({.number = n,
                        .prompt = prompt,
                        .max_tokens = 50,
                        .sampling = {.seed = 3},
                        .logprobs = n == 4 ? 0 : -1,
                        .expert_choices = n % 2 == 0});
  }
  // Pages for the prompts of some of the texts that run at once, which grow.
  const int64_t page = 32 * 3 * 2 * 2 * 16 * int64_t{sizeof(float)};
  inference::Engine engine(
      m.model, m.runtime,
      {.max_requests = 4, .max_tokens = 40, .block_size = 32, .cache_bytes = 12 * page});
  std::map<RequestId, Found> found;
  for (const int begin : {0, 4}) {
    for (int i = begin; i < begin + 4; ++i) {
      Request request = requests[static_cast<size_t>(i)];
      Found& f = found[static_cast<RequestId>(i) + 1];
      f.text = request.prompt;
      engine.submit(std::move(request));
    }
    while (!engine.idle()) {
      for (const inference::RequestUpdate& update : engine.step()) {
        Found& f = found[update.id];
        for (const auto& token : update.tokens) f.text.push_back(token.draw.token);
        f.choices.insert(f.choices.end(), update.expert_choices.begin(),
                         update.expert_choices.end());
      }
    }
  }
  EXPECT_GT(engine.statistics().preemptions, 0);
  EXPECT_GT(engine.statistics().cached_tokens, 0);
  const models::ModelFacts facts = m.model.model()->facts();
  EXPECT_EQ(inference::choices_per_token(*facts.experts), 6);
  for (const Request& request : requests) {
    SCOPED_TRACE(request.number);
    Found& f = found[request.number + 1];
    if (!request.expert_choices) {
      EXPECT_TRUE(f.choices.empty());
      continue;
    }
    f.text.pop_back();  // never read
    EXPECT_EQ(f.choices, choices_of_one_pass(m, f.text));
    const Json json = inference::expert_choices_json(f.choices, *facts.experts);
    ASSERT_EQ(json.as_array().size(), f.text.size());
    EXPECT_EQ(json.as_array()[1].as_array()[1].as_array()[2].as_integer(), f.choices[11]);
  }
}

TEST(ExpertChoices, NeedExperts) {
  RandomModel m(llama_shape(1, 32, 4, 2, kTokens, kPositions), DType::f32);
  inference::Engine engine(m.model, m.runtime, {});
  try {
    engine.submit({.prompt = {1, 2}, .expert_choices = true});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--return-routed-experts asks for the experts of each "
                                         "token, but the model has no layer with experts"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace megatron::testing
