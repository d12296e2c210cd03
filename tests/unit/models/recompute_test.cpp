// Recompute and offload change no bit. Bytes and products match the formulas.
#include <gtest/gtest.h>

#include "kernels/observer.h"
#include "tiny_gpt.h"

namespace megatron::models {
namespace {

using Granularity = RecomputeOptions::Granularity;
using Method = RecomputeOptions::Method;

constexpr int64_t kLayers = 5, kSequences = 2, kLength = 8, kTokens = kSequences * kLength;

// Sizes are multiples of 64 bytes, which arenas round to.
testing::TinyConfig shaped(testing::TinyConfig c) {
  c.num_layers = kLayers;
  c.hidden_size = 32;
  c.kv_channels = 8;
  c.ffn_hidden_size = 64;
  return c;
}

struct Options {
  RecomputeOptions recompute;
  OffloadOptions offload;
  bool in_parts = false;
};

struct Result {
  std::vector<double> losses;
  std::vector<std::vector<double>> gradients;
  int64_t kept = 0, host = 0;  // bytes between forward and backward
  double flops = 0;            // in forward and backward
  std::vector<std::string> spans;
};

struct Observer final : kernels::Observer {
  double flops = 0;
  void after(const kernels::Call& call) override { flops += call.cost.flops; }
};

struct Listener final : SpanListener {
  std::vector<std::string> lines;
  void enter(const Span& span, Pass pass) override { add("+", span, pass); }
  void leave(const Span& span, Pass pass) override { add("-", span, pass); }
  void add(const char* sign, const Span& span, Pass pass) {
    lines.push_back(sign + span.name + " " + std::string(name(pass)));
  }
};

class RecomputeTest : public ::testing::TestWithParam<std::tuple<bool, DType>> {
 protected:
  bool llama() const { return std::get<0>(GetParam()); }
  DType type() const { return std::get<1>(GetParam()); }
  int64_t size() const { return size_of(type()); }

  Result run(const Options& options = {}) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    testing::TinyModel model(config, runtime, type(), 77, {0, config.num_layers}, {});
    parallel::allocate(model.parameters(), runtime);
    testing::fill_with_noise(model.parameters());
    testing::give_gradients(model.parameters(), runtime);
    const nn::Batch batch = testing::tiny_batch(runtime, config, type());
    Arena &activations = runtime.arena(MemoryClass::activations),
          &host = runtime.arena(MemoryClass::offload);
    const int64_t before = activations.in_use();
    Observer observer;
    Listener listener;
    Result result;
    runtime.stream().watch(&observer);
    {
      Tape tape(runtime);
      tape.listen(static_cast<SpanListener*>(&listener));
      {
        const Bundle out =
            forward(model, tape, {}, batch, Phase::train, options.recompute, options.offload);
        result.losses = to_doubles(head_loss(model, tape, out, batch));
      }
      result.kept = activations.in_use() - before;
      result.host = host.in_use();
      tape.backward(options.in_parts ? BackwardPart::input : BackwardPart::all);
      if (options.in_parts) tape.backward(BackwardPart::weight);
    }
    runtime.stream().watch(nullptr);
    EXPECT_EQ(activations.in_use(), before);
    EXPECT_EQ(host.in_use(), 0);
    result.flops = observer.flops;
    result.spans = listener.lines;
    for (const parallel::ParameterSpec* placed : model.parameters())
      result.gradients.push_back(testing::gradient_of(placed->parameter));
    return result;
  }

  static Options full(Method method, int64_t layers) {
    return {.recompute = {.granularity = Granularity::full, .method = method, .layers = layers}};
  }
  static Options selective(std::vector<std::string> modules) {
    return {.recompute = {.granularity = Granularity::selective, .modules = std::move(modules)}};
  }

  // Bytes of [T, columns].
  int64_t rows(int64_t columns) const { return kTokens * columns * size(); }
  int64_t up_columns() const { return config.ffn_hidden_size * (config.llama ? 2 : 1); }
  int64_t heads_columns() const { return config.num_attention_heads * config.kv_channels; }
  int64_t qkv_columns() const {
    return heads_columns() + 2 * config.num_query_groups * config.kv_channels;
  }
  int64_t statistics() const { return kTokens * 4 * (llama() ? 1 : 2); }
  // Bytes that are not kept when a module is recomputed.
  int64_t attention_bytes() const {
    return rows(heads_columns()) + kTokens * config.num_attention_heads * 4;
  }
  int64_t mlp_bytes() const { return rows(up_columns()) + rows(config.ffn_hidden_size); }
  int64_t norm_bytes() const { return 2 * (rows(config.hidden_size) + statistics()); }
  // Bytes of a layer: both residual sums, queries, keys and values, and the bytes above.
  int64_t layer_bytes() const {
    return 2 * rows(config.hidden_size) + rows(qkv_columns()) + attention_bytes() + mlp_bytes() +
           norm_bytes();
  }

  double attention_flops() const {
    return 4.0 * kSequences * static_cast<double>(heads_columns()) * kLength * (kLength + 1) / 2;
  }
  double up_flops() const {
    return 2.0 * kTokens * static_cast<double>(config.hidden_size * up_columns());
  }
  double layer_flops() const {
    const int64_t h = config.hidden_size;
    return attention_flops() + up_flops() +
           2.0 * kTokens *
               static_cast<double>(h * (qkv_columns() + heads_columns()) +
                                   h * config.ffn_hidden_size);
  }

  void expect_same(Options options, int64_t kept, double flops) {
    for (const bool in_parts : {false, true}) {
      options.in_parts = in_parts;
      const Result result = run(options);
      EXPECT_EQ(result.losses, none.losses);
      for (size_t i = 0; i < none.gradients.size(); ++i)
        EXPECT_EQ(result.gradients[i], none.gradients[i]) << i << (in_parts ? " in parts" : "");
      EXPECT_EQ(none.kept - result.kept, kept);
      EXPECT_EQ(result.flops - none.flops, flops);
    }
  }

  const testing::TinyConfig config =
      shaped(llama() ? testing::tiny_llama(4, 2, true) : testing::tiny_gpt2(4));
  const Result none = run();
};

INSTANTIATE_TEST_SUITE_P(Models, RecomputeTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "llama_" : "gpt2_") +
                                  std::string(name(std::get<1>(info.param)));
                         });

TEST_P(RecomputeTest, UniformStretchesKeepTheirInputs) {
  for (const int64_t layers : {1, 2, 3, 5, 9}) {
    const int64_t stretches = (kLayers + layers - 1) / layers;
    expect_same(full(Method::uniform, layers),
                kLayers * layer_bytes() - stretches * rows(config.hidden_size),
                kLayers * layer_flops());
  }
}

TEST_P(RecomputeTest, BlockKeepsTheInputsOfTheFirstLayers) {
  for (const int64_t layers : {1, 3, 5, 9}) {
    const int64_t recomputed = std::min(layers, kLayers);
    expect_same(full(Method::block, layers),
                recomputed * (layer_bytes() - rows(config.hidden_size)),
                static_cast<double>(recomputed) * layer_flops());
  }
}

TEST_P(RecomputeTest, SelectiveModules) {
  expect_same(selective({"core_attn"}), kLayers * attention_bytes(), kLayers * attention_flops());
  expect_same(selective({"mlp"}), kLayers * mlp_bytes(), kLayers * up_flops());
  expect_same(selective({"mlp_act"}), kLayers * rows(config.ffn_hidden_size), 0);
  expect_same(selective({"layernorm"}), kLayers * norm_bytes(), 0);
  expect_same(selective({"layernorm", "mlp_act"}),
              kLayers * (norm_bytes() + rows(config.ffn_hidden_size)), 0);
  for (const auto& modules : std::vector<std::vector<std::string>>{
           {"core_attn", "layernorm", "mlp"}, {"core_attn", "layernorm", "mlp", "mlp_act"}})
    expect_same(selective(modules), kLayers * (attention_bytes() + mlp_bytes() + norm_bytes()),
                kLayers * (attention_flops() + up_flops()));
}

TEST_P(RecomputeTest, OffloadedLayersLieInHostMemory) {
  for (const int64_t layers : {1, 3, 4}) {
    Options options{.offload = {layers}};
    EXPECT_EQ(run(options).host, layers * layer_bytes());
    expect_same(options, layers * layer_bytes(), 0);
  }
}

TEST_P(RecomputeTest, OffloadedLayersComeBackOneAhead) {
  struct Watch final : SpanListener {
    explicit Watch(const Arena& arena) : host(arena) {}
    const Arena& host;
    std::vector<int64_t> bytes;  // bytes held when backward enters a layer
    void enter(const Span& span, Pass pass) override {
      if (pass == Pass::backward && span.name.starts_with("layers."))
        bytes.push_back(host.in_use());
    }
    void leave(const Span&, Pass) override {}
  };
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  testing::TinyModel model(config, runtime, type(), 77, {0, config.num_layers}, {});
  parallel::allocate(model.parameters(), runtime);
  testing::fill_with_noise(model.parameters());
  testing::give_gradients(model.parameters(), runtime);
  const nn::Batch batch = testing::tiny_batch(runtime, config, type());
  Watch watch(runtime.arena(MemoryClass::offload));
  Tape tape(runtime);
  tape.listen(&watch);
  head_loss(model, tape, forward(model, tape, {}, batch, Phase::train, {}, {.layers = 3}), batch);
  tape.backward();
  const int64_t layer = layer_bytes();
  EXPECT_EQ(watch.bytes, (std::vector<int64_t>{3 * layer, 2 * layer, layer, 0, 0}));
}

TEST_P(RecomputeTest, SpansOfSingleLayersAreTold) {
  EXPECT_EQ(
      run(full(Method::uniform, 2)).spans,
      (std::vector<std::string>{"+embedding forward",  "-embedding forward",  "+layers.0 forward",
                                "-layers.0 forward",   "+layers.1 forward",   "-layers.1 forward",
                                "+layers.2 forward",   "-layers.2 forward",   "+layers.3 forward",
                                "-layers.3 forward",   "+layers.4 forward",   "-layers.4 forward",
                                "+head forward",       "-head forward",       "+head backward",
                                "-head backward",      "+layers.4 backward",  "+layers.4 recompute",
                                "-layers.4 recompute", "-layers.4 backward",  "+layers.2 recompute",
                                "-layers.2 recompute", "+layers.3 recompute", "-layers.3 recompute",
                                "+layers.3 backward",  "-layers.3 backward",  "+layers.2 backward",
                                "-layers.2 backward",  "+layers.0 recompute", "-layers.0 recompute",
                                "+layers.1 recompute", "-layers.1 recompute", "+layers.1 backward",
                                "-layers.1 backward",  "+layers.0 backward",  "-layers.0 backward",
                                "+embedding backward", "-embedding backward"}));
  EXPECT_EQ(run(selective({"core_attn", "mlp", "layernorm"})).spans, none.spans);
}

// A plan is a run on meta: it finds exactly the same marks.
TEST_P(RecomputeTest, MetaFindsTheSameMarks) {
  const auto marks = [this](DeviceKind device, const Options& options) {
    Runtime runtime({device, 0}, 1);
    testing::TinyModel model(config, runtime, type(), 77, {0, config.num_layers}, {});
    parallel::allocate(model.parameters(), runtime);
    testing::give_gradients(model.parameters(), runtime);
    nn::Batch batch{.layout = {.sequences = kSequences, .length = kLength}};
    const auto make = [&](int64_t count, DType t) {
      const Tensor made =
          Tensor::empty(runtime.arena(MemoryClass::activations), {count}, t, "batch");
      kernels::table(runtime.stream()).fill({.out = made, .value = 0}, runtime.stream());
      return made;
    };
    batch.tokens = batch.labels = batch.positions = make(kTokens, DType::i32);
    batch.loss_weights = make(kTokens, DType::f32);
    batch.sample_ids = make(kSequences, DType::i64);
    Tape tape(runtime);
    for (const parallel::ParameterSpec* placed : model.parameters())
      kernels::table(runtime.stream())
          .fill({.out = placed->parameter.value, .value = 0.5}, runtime.stream());
    head_loss(model, tape,
              forward(model, tape, {}, batch, Phase::train, options.recompute, options.offload),
              batch);
    tape.backward();
    return std::pair(runtime.arena(MemoryClass::activations).high_water(),
                     runtime.arena(MemoryClass::offload).high_water());
  };
  const auto resident = marks(DeviceKind::cpu, {});
  for (const Options& options : {full(Method::uniform, 2), full(Method::block, 3),
                                 selective({"core_attn", "mlp", "layernorm"}),
                                 selective({"mlp_act", "layernorm"}), Options{.offload = {3}}}) {
    const auto mark = marks(DeviceKind::cpu, options);
    EXPECT_EQ(marks(DeviceKind::meta, options), mark);
    EXPECT_LT(mark.first, resident.first);
  }
}

// A chunk without embedding and head: its first layers are recomputed too.
TEST_P(RecomputeTest, MiddleChunk) {
  const auto chunk = [this](const Options& options) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    const testing::TinyModel model(
        config, runtime, type(), 77,
        {.first_layer = 1, .layers = 3, .embedding = false, .head = false}, {});
    parallel::allocate(model.parameters(), runtime);
    testing::fill_with_noise(model.parameters());
    testing::give_gradients(model.parameters(), runtime);
    const nn::Batch batch = testing::tiny_batch(runtime, config, type());
    Tensor x = Tensor::empty(runtime.arena(MemoryClass::activations), {kTokens, config.hidden_size},
                             type(), "x");
    std::vector<double> values;
    for (int64_t i = 0; i < x.elements(); ++i)
      values.push_back(0.25 * static_cast<double>(i % 23 - 11));
    copy_from(x, std::span<const double>(values));
    Tape tape(runtime);
    const Var in = tape.leaf(x);
    const Var out = flowing(tape, forward(model, tape, {{"hidden", in}}, batch, Phase::train,
                                          options.recompute, options.offload));
    tape.set_gradient(out, x);
    tape.backward();
    std::vector<std::vector<double>> all = {to_doubles(out.value), to_doubles(tape.gradient(in))};
    for (const parallel::ParameterSpec* placed : model.parameters())
      all.push_back(testing::gradient_of(placed->parameter));
    return all;
  };
  const auto resident = chunk({});
  EXPECT_EQ(chunk(full(Method::uniform, 2)), resident);
  EXPECT_EQ(chunk(full(Method::block, 2)), resident);
  EXPECT_EQ(chunk(selective({"core_attn", "mlp", "layernorm"})), resident);
  EXPECT_EQ(chunk(selective({"mlp_act", "layernorm"})), resident);
  EXPECT_EQ(chunk({.offload = {2}}), resident);
}

TEST_P(RecomputeTest, InferringRecomputesNothing) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  testing::TinyModel model(config, runtime, type(), 77, {0, config.num_layers}, {});
  parallel::allocate(model.parameters(), runtime);
  testing::fill_with_noise(model.parameters());
  const nn::Batch batch = testing::tiny_batch(runtime, config, type());
  const int64_t before = runtime.arena(MemoryClass::activations).in_use();
  const auto losses = [&](const Options& options) {
    Tape tape(runtime, Tape::Mode::infer);
    Observer observer;
    runtime.stream().watch(&observer);
    const Bundle out =
        forward(model, tape, {}, batch, Phase::train, options.recompute, options.offload);
    const std::vector<double> all = to_doubles(head_loss(model, tape, out, batch));
    runtime.stream().watch(nullptr);
    EXPECT_EQ(tape.nodes(), 0u);
    EXPECT_EQ(all, none.losses);
    return observer.flops;
  };
  const double flops = losses({});
  EXPECT_EQ(losses(full(Method::uniform, 2)), flops);
  EXPECT_EQ(losses(selective({"core_attn", "mlp", "layernorm"})), flops);
  EXPECT_EQ(losses({.offload = {2}}), flops);
  EXPECT_EQ(runtime.arena(MemoryClass::activations).in_use(), before);
}

}  // namespace
}  // namespace megatron::models
