// Adapters of experts: the model with the merged weights is their definition, any layout of ranks
// gives the results of one, and every layout of their files gives the same adapter.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/philox.h"
#include "base/tolerances.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/save.h"
#include "comm/threads.h"
#include "golden/selftest/support.h"
#include "models/adapters/adapter_directory.h"
#include "models/adapters/expert_layout.h"
#include "models/adapters/expert_modules.h"
#include "models/adapters/lora_config.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"
#include "text.h"
#include "training/adapter_run.h"
#include "training/model_source.h"
#include "training/whole_model.h"
#include "unit/checkpoint/raw_tensors.h"

namespace megatron::selftest::expert_adapters_test {
namespace {

using megatron::testing::error_of;
using megatron::testing::expect_contains;
using models::AdapterPart;
using models::LoraConfig;
using models::Model;

constexpr int64_t kTokens = 16, kPerStep = 8;

Model family(const std::string& name) {
  return models::model_from_directory(testing::vectors("hf/" + name));
}

// The family without a file: experts of all in one module, some layers without.
Model tiny() {
  models::ModelFlags flags = tiny_models()[1].flags;
  flags.moe.num_experts = 4;
  flags.moe.ffn_hidden_size = 12;
  flags.moe.layer_freq = "[0,1,1]";
  flags.moe.shared_ffn = 16;
  return models::model_from_flags(flags, 0);
}

LoraConfig lora() {
  LoraConfig config{.rank = 3, .alpha = 5, .init = models::LoraInit::random};
  config.all_linear = true;
  return config;
}

Model adapted(const Model& model, LoraConfig config) {
  return model->with({.adapter = std::make_shared<const LoraConfig>(std::move(config))});
}

// Everything that can be adapted: linear modules, and the experts of families that store them in
// one parameter.
Model adapted(const Model& model) {
  LoraConfig config = lora();
  if (model->family() == "gpt_oss" || model->family() == "llama4_text")
    config.target_parameters = {"experts.gate_up_proj", "experts.down_proj"};
  return adapted(model, config);
}

// ---- merged weights ----

// Canonical tensors with their elements in the order of `global`.
struct Logical {
  Shape global;
  std::vector<double> values, gradients;
};
using Tensors = std::map<std::string, Logical>;

void copy_values(std::span<const parallel::Shard> shards, Tensors& tensors, bool to_shards,
                 double divisor = 1) {
  for (parallel::Shard shard : shards) {
    std::vector<double> values = to_doubles(shard.value);
    const bool trained = shard.gradient.defined();
    const std::vector<double> gradients =
        trained ? to_doubles(shard.gradient) : std::vector<double>(values.size());
    parallel::for_each_run(*shard.placed, [&](const parallel::CanonicalTensor& part,
                                              int64_t canonical, int64_t local, int64_t size) {
      Logical& tensor = tensors[part.name];
      const auto elements = static_cast<size_t>(part.global.elements());
      tensor.global = part.global;
      tensor.values.resize(elements);
      tensor.gradients.resize(elements);
      for (int64_t i = 0; i < size; ++i) {
        const auto here = static_cast<size_t>(local + i),
                   there = static_cast<size_t>(canonical + i);
        if (to_shards) values[here] = tensor.values[there];
        tensor.values[there] = values[here];
        tensor.gradients[there] = gradients[here] / divisor;
      }
    });
    if (to_shards) copy_from(shard.value, std::span<const double>(values));
  }
}

// The loss and the gradients of a batch with the given values, or drawn ones.
double run(const Model& model, Tensors& tensors) {
  const bool drawn = tensors.empty();
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const std::unique_ptr<comm::Group> alone = comm::single();
  training::TrainedModel trained(model, DType::f64, 3, {}, *alone, runtime, {});
  nn::initialize(trained.step.states(), 4, runtime.stream());
  if (drawn) randomize(trained.shards(), 4, runtime.stream());
  copy_values(trained.shards(), tensors, !drawn);
  trained.step.begin({.method = optim::Method::sgd});
  double divisor = 1;
  const training::StepReport report =
      trained.step.accumulate(std::vector{random_batch(model, 0, kPerStep, kTokens)}, divisor);
  copy_values(trained.shards(), tensors, false, divisor);
  return report.loss;
}

// Names of an adapter's tensors, and of the tensor that they are added to.
struct Added {
  std::string a, b, weight;
};
std::vector<Added> added_of(const Tensors& tensors) {
  std::vector<Added> all;
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with(checkpoint::kAdapterPrefix)) continue;
    models::StoredName parsed = models::parse_stored_name(name);
    if (parsed.part != AdapterPart::a) continue;
    Added added{.a = name, .weight = parsed.module + ".weight"};
    if (!tensors.contains(added.weight))
      added.weight = parsed.module + "." +
                     std::string(models::nested_parameter(
                         std::vector<std::string>{"gate_up_proj", "down_proj"}, parsed.nesting));
    parsed.part = AdapterPart::b;
    added.b = models::stored_name(parsed);
    all.push_back(added);
  }
  return all;
}

// Calls f(index in the weight, in b, in a) for every product of elements.
void for_each_product(const Logical& a, const Logical& b,
                      const std::function<void(size_t, size_t, size_t)>& f) {
  const int64_t groups = a.global.rank() == 3 ? a.global[0] : 1, rank = a.global[-2],
                in = a.global[-1], out = b.global[-2];
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t o = 0; o < out; ++o)
      for (int64_t k = 0; k < rank; ++k)
        for (int64_t i = 0; i < in; ++i)
          f(static_cast<size_t>((g * out + o) * in + i),
            static_cast<size_t>((g * out + o) * rank + k),
            static_cast<size_t>((g * rank + k) * in + i));
}

// Compares an adapter with the model into whose weights it is merged. W + s B A has the gradients
// dA = s B^T dW and dB = s dW A^T.
void expect_merged(const Model& base, const Model& model, size_t experts) {
  const double scale = model->adapter()->alpha / static_cast<double>(model->adapter()->rank);
  Tensors with, merged;
  const double loss = run(model, with);
  size_t of_experts = 0;
  for (const auto& [name, tensor] : with)
    if (!name.starts_with(checkpoint::kAdapterPrefix)) merged[name] = tensor;
  const std::vector<Added> added = added_of(with);
  for (const auto& [a, b, weight] : added) {
    ASSERT_TRUE(merged.contains(weight)) << a;
    of_experts += models::is_of_experts(weight) ? 1 : 0;
    std::vector<double>& w = merged[weight].values;
    for_each_product(with[a], with[b], [&](size_t at, size_t in_b, size_t in_a) {
      w.at(at) += scale * with[b].values.at(in_b) * with[a].values.at(in_a);
    });
  }
  EXPECT_EQ(of_experts, experts);
  const double of_merged = run(base, merged);
  EXPECT_NEAR(loss, of_merged, 1e-12 * of_merged);
  TensorMap found, expected;
  for (const auto& [a, b, weight] : added) {
    found[a] = with[a].gradients;
    found[b] = with[b].gradients;
    expected[a].resize(found[a].size());
    expected[b].resize(found[b].size());
    const std::vector<double>& dw = merged[weight].gradients;
    for_each_product(with[a], with[b], [&](size_t at, size_t in_b, size_t in_a) {
      expected[a].at(in_a) += scale * with[b].values.at(in_b) * dw.at(at);
      expected[b].at(in_b) += scale * dw.at(at) * with[a].values.at(in_a);
    });
  }
  for (const auto& [name, metric] : metrics(found, expected)) EXPECT_LE(metric, 1e-12) << name;
}

// The number of adapters of experts: three for each expert, or two for all of a layer.
struct Family {
  const char* name;
  size_t experts;
};
void PrintTo(const Family& f, std::ostream* out) { *out << f.name; }
std::string name_of(const ::testing::TestParamInfo<Family>& info) { return info.param.name; }

class OfFamily : public ::testing::TestWithParam<Family> {};

TEST_P(OfFamily, EqualMergedWeights) {
  const Model model = family(GetParam().name);
  expect_merged(model, adapted(model), GetParam().experts);
}

INSTANTIATE_TEST_SUITE_P(Families, OfFamily,
                         ::testing::Values(Family{"mixtral", 45}, Family{"qwen2_moe", 36},
                                           Family{"qwen3_moe", 36}, Family{"olmoe", 54},
                                           Family{"glm4_moe", 48}, Family{"gpt_oss", 8},
                                           Family{"llama4_text", 4}),
                         name_of);

TEST(ExpertAdapters, EqualMergedWeightsWhereTokensAreDropped) {
  for (const bool padded : {false, true}) {
    nn::RouterTraining router;
    router.capacity_factor = 0.75;
    router.padded = padded;
    const Model model = family("qwen3_moe")->with({.router = router});
    expect_merged(model, adapted(model), 36);
  }
}

TEST(ExpertAdapters, MayBeOfOneHalfOfGateAndUp) {
  const Model model = family("olmoe");
  for (const char* name : {"gate_proj", "up_proj"}) {
    LoraConfig config = lora();
    config.all_linear = false;
    config.targets.names = {name};
    expect_merged(model, adapted(model, config), 18);
  }
  LoraConfig ranks = lora();
  ranks.rank_pattern.emplace_back(models::NamePattern("up_proj", models::NamePattern::Use::ending),
                                  2);
  ranks.alpha_pattern.emplace_back(models::NamePattern("up_proj", models::NamePattern::Use::ending),
                                   10.0 / 3);
  expect_merged(model, adapted(model, ranks), 54);
}

// ---- layouts of ranks ----

class InLayouts : public ::testing::TestWithParam<Family> {
 protected:
  Environment environment_;
};

// divides_experts: among two ranks.
std::vector<Layout> layouts(bool divides_experts) {
  using Granularity = models::RecomputeOptions::Granularity;
  const models::RecomputeOptions whole{.granularity = Granularity::full},
      parts{.granularity = Granularity::selective, .modules = {"moe_act"}};
  std::vector<Layout> all = {
      {.tp = 2, .sequence = true, .micro_batch = 4},
      {.tp = 2, .micro_batch = 4},
      {.dp = 2, .sharding = parallel::Sharding::parameters, .overlap = true, .micro_batch = 2},
      {.pipeline = {.stages = 2}, .recompute = whole, .micro_batch = 2},
      {.pipeline = {parallel::ScheduleKind::zero_bubble_h1, 2},
       .recompute = parts,
       .micro_batch = 2}};
  if (!divides_experts) return all;
  all.push_back({.dp = 2, .ep = 2, .micro_batch = 2});
  all.push_back({.dp = 2,
                 .ep = 2,
                 .pipeline = {.stages = 2},
                 .overlap = true,
                 .dispatcher = parallel::TokenDispatcher::alltoall,
                 .micro_batch = 2});
  all.push_back({.tp = 2,
                 .dp = 2,
                 .ep = 2,
                 .sequence = true,
                 .sharding = parallel::Sharding::optimizer,
                 .micro_batch = 2});
  all.push_back({.tp = 2, .ep = 2, .etp = 1, .sequence = true, .micro_batch = 4});
  return all;
}

TEST_P(InLayouts, GiveTheResultsOfOneRank) {
  const std::string name = GetParam().name;
  const Model model = adapted(name == "tiny" ? tiny() : family(name));
  const Experiment of(model, DeviceKind::reference, DType::f64, DType::f64,
                      settings::LossScope::token, kPerStep, kTokens, environment_);
  const std::vector<optim::Method> methods = {optim::Method::sgd, optim::Method::adam};
  const selftest::Outcome expected = of.run({.micro_batch = 4}, methods);
  size_t trained = 0;
  for (const auto& [tensor, gradient] : expected.gradients)
    trained += models::is_of_experts(tensor) && norm(gradient) > 0 ? 1 : 0;
  EXPECT_GT(trained, 0u);
  for (const Layout& layout : layouts(GetParam().experts % 2 == 0)) {
    Report report(name);
    compare_outcomes(layout.str(), of.run(layout, methods), expected, tolerance::kLayoutFp64,
                     report);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, InLayouts,
                         ::testing::Values(Family{"qwen3_moe", 6}, Family{"gpt_oss", 5},
                                           Family{"llama4_text", 4}, Family{"tiny", 4}),
                         name_of);

// ---- layouts of files ----

using testing::RawTensor;

// A value of an element. The halves of [gate | up] have one A.
double value_of(const models::ExpertModule& expert, AdapterPart part, int64_t row, int64_t column) {
  const bool is_a = part == AdapterPart::a;
  const RandomStream values(is_a ? 1 : 2, expert.parameter_name());
  const int64_t half = is_a ? 0 : expert.half;
  return values.normal(
      static_cast<uint64_t>(((expert.number * 2 + half) * 64 + row) * 64 + column));
}

RawTensor raw(const std::string& name, std::vector<int64_t> shape,
              const std::vector<double>& values) {
  return {name,
          "F64",
          fmt::format("[{},{}]", shape.at(0), shape.at(1)),
          {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)}};
}

// The adapter's tensors of experts, one for each module.
std::vector<RawTensor> of_modules(const Model& model) {
  std::vector<RawTensor> all;
  for (const checkpoint::WholeTensor& tensor : training::whole_model(model, DType::f64).saved) {
    const models::StoredName name = models::parse_stored_name(tensor.name);
    std::vector<double> values;
    for (int64_t row = 0; row < tensor.shape[0]; ++row)
      for (int64_t column = 0; column < tensor.shape[1]; ++column)
        values.push_back(value_of(*models::expert_module(name.module), name.part, row, column));
    all.push_back(raw(tensor.name, {tensor.shape[0], tensor.shape[1]}, values));
  }
  return all;
}

struct FusedLayout {
  bool swapped = false;
  bool b_like_a = false;  // an error: B with the expert slowest
};

// The same tensors, for all experts of a layer.
std::vector<RawTensor> fused(const Model& model, const FusedLayout& how) {
  std::map<std::string, models::ExpertLayout> layouts;
  std::map<std::string, models::ExpertModule> some;
  for (const checkpoint::WholeTensor& tensor : training::whole_model(model, DType::f64).saved) {
    const models::StoredName name = models::parse_stored_name(tensor.name);
    const models::ExpertModule expert = *models::expert_module(name.module);
    models::ExpertLayout& layout = layouts[expert.parameter_name()];
    layout.experts = std::max(layout.experts, expert.number + 1);
    layout.swapped = how.swapped;
    const bool is_a = name.part == AdapterPart::a;
    (is_a ? layout.rank : layout.out) = tensor.shape[0];
    if (is_a) layout.in = tensor.shape[1];
    some.emplace(expert.parameter_name(), expert);
  }
  std::vector<RawTensor> all;
  for (auto& [parameter, layout] : layouts) {
    models::ExpertModule expert = some.at(parameter);
    const bool halved = expert.parameter == "gate_up_proj";
    const int64_t half = layout.out;
    if (halved) layout.out *= 2;
    std::map<AdapterPart, std::vector<double>> stored;
    for (const AdapterPart part : {AdapterPart::a, AdapterPart::b}) {
      const std::vector<int64_t> shape = layout.stored_shape(part);
      stored[part].resize(static_cast<size_t>(shape[0] * shape[1]));
    }
    const auto put = [&](models::StoredElement at, double value) {
      stored[at.part].at(static_cast<size_t>(at.index)) = value;
    };
    for (expert.number = 0; expert.number < layout.experts; ++expert.number) {
      const int64_t e = expert.number;
      for (int64_t r = 0; r < layout.rank; ++r) {
        for (int64_t i = 0; i < layout.in; ++i)
          put(layout.a(e, r, i), value_of(expert, AdapterPart::a, r, i));
        for (int64_t o = 0; o < layout.out; ++o) {
          expert.half = o / half;
          models::StoredElement at = layout.b(e, o, r);
          if (how.b_like_a) at.index = (o * layout.experts + e) * layout.rank + r;
          put(at, value_of(expert, AdapterPart::b, o % half, r));
        }
      }
    }
    for (const auto& [part, values] : stored)
      all.push_back(raw(
          models::stored_name({.module = expert.experts, .part = part, .nesting = halved ? 1 : 0}),
          layout.stored_shape(part), values));
  }
  return all;
}

// Values of all parameters.
TensorMap read(const std::string& path, const Layout& layout = {}) {
  GatheredTensors values;
  comm::run_ranks(layout.ranks(), [&](comm::Group& world) {
    Runtime runtime({DeviceKind::reference, 0}, 1);
    const checkpoint::ModelDirectory directory(path);
    const Model model = models::model_of(directory);
    training::TrainedModel trained(model, DType::f64, 0, layout.model_layout(), world, runtime,
                                   {.data_parallel = {.sharding = layout.sharding}});
    training::load_weights(directory, trained.held(), training::whole_model(model, DType::f64));
    values.add(trained.shards(), [](const parallel::Shard& shard) { return shard.value; });
  });
  EXPECT_EQ(values.different(), std::vector<std::string>());
  EXPECT_EQ(values.incomplete(), std::vector<std::string>());
  return values.tensors();
}

const Layout kDivided = {.tp = 2,
                         .dp = 2,
                         .sequence = true,
                         .sharding = parallel::Sharding::optimizer},
             kByExpert = {.dp = 2, .ep = 2, .pipeline = {.stages = 2}};

class Files : public ::testing::TestWithParam<const char*> {
 protected:
  std::string base() const { return testing::vectors(std::string("hf/") + GetParam()); }
  LoraConfig config(bool of_parameters) const {
    LoraConfig config{.rank = 3, .alpha = 5, .base_model = base()};
    if (of_parameters) config.target_parameters = {"mlp.experts.gate_up_proj", "experts.down_proj"};
    else config.targets.pattern = models::NamePattern(".*\\.experts\\..*");
    return config;
  }
  std::string directory(const LoraConfig& config, const std::vector<RawTensor>& tensors) const {
    const std::string path = folder_ / "adapter";
    std::filesystem::create_directories(path);
    write_file(path + "/adapter_config.json", to_json(config).dump());
    testing::write_raw(path + "/adapter_model.safetensors", tensors);
    return path;
  }
  const testing::TemporaryDirectory folder_;
};

TEST_P(Files, OfAllLayoutsGiveTheSameAdapter) {
  const Model model = adapted(family(GetParam()), config(false));
  const TensorMap expected = read(directory(config(false), of_modules(model)));
  const bool divides_experts = GetParam() != std::string("mixtral");
  for (const bool swapped : {false, true}) {
    const std::string path = directory(config(true), fused(model, {.swapped = swapped}));
    EXPECT_EQ(read(path), expected) << swapped;
    EXPECT_EQ(read(path, kDivided), expected) << swapped;
    if (divides_experts) {
      EXPECT_EQ(read(path, kByExpert), expected) << swapped;
    }
  }
  EXPECT_NE(read(directory(config(true), fused(model, {.b_like_a = true}))), expected);
}

TEST_P(Files, AreWrittenAsModules) {
  const Model model = adapted(family(GetParam()), config(false));
  LoraConfig of_parameters = config(true);
  of_parameters.rank_pattern.emplace_back(
      models::NamePattern(".*\\.gate_up_proj", models::NamePattern::Use::ending), 2);
  for (const LoraConfig& read : {config(true), of_parameters}) {
    const Model fused_model = adapted(family(GetParam()), read);
    const Json written = training::adapter_config(fused_model, base());
    EXPECT_TRUE(written["target_parameters"].is_null());
    const Model again = adapted(family(GetParam()), models::lora_from_json(written, "written"));
    const auto tensors = [](const Model& of) {
      std::map<std::string, std::string> shapes;
      for (const checkpoint::WholeTensor& tensor : training::whole_model(of, DType::f64).saved)
        shapes[tensor.name] = tensor.shape.str();
      return shapes;
    };
    EXPECT_EQ(tensors(again), tensors(fused_model));
    if (read.rank_pattern.empty()) {
      EXPECT_EQ(tensors(again), tensors(model));
    }
  }
}

TEST_P(Files, OfOtherShapesAreRefused) {
  const Model model = adapted(family(GetParam()), config(false));
  std::vector<RawTensor> tensors = fused(model, {});
  for (RawTensor& tensor : tensors)
    if (tensor.name.ends_with("lora_A.weight"))
      tensor.shape = "[1," + std::to_string(tensor.bytes.size() / 8) + "]";
  const std::string path = directory(config(true), tensors);
  expect_contains(error_of([&] { read(path); }), {"mlp.experts.", "rank, in]"});
}

INSTANTIATE_TEST_SUITE_P(Families, Files, ::testing::Values("mixtral", "qwen3_moe", "olmoe"),
                         [](const auto& info) { return std::string(info.param); });

// The family stores its experts in one parameter, and adapters of it in PEFT's layout.
TEST(ExpertAdapters, OfOneParameterAreSavedFused) {
  for (const auto& [name, layout] : {std::pair{"gpt_oss", kDivided}, {"llama4_text", kByExpert}}) {
    const testing::TemporaryDirectory folder;
    const Model model = adapted(family(name));
    const std::string path = folder / "adapter";
    GatheredTensors values;
    comm::run_ranks(layout.ranks(), [&](comm::Group& world) {
      Runtime runtime({DeviceKind::reference, 0}, 1);
      training::TrainedModel trained(model, DType::f64, 0, layout.model_layout(), world, runtime,
                                     {.data_parallel = {.sharding = layout.sharding}});
      randomize(trained.shards(), 4, runtime.stream());
      training::RenamedPlacements renamed;
      checkpoint::Save save(
          path,
          {.config = training::adapter_config(model, testing::vectors(std::string("hf/") + name)),
           .is_adapter = true,
           .model = training::held_saved(trained.step, model, renamed),
           .whole_model = training::whole_model(model, DType::f64).saved},
          world, runtime.stream(), system_files(), checkpoint::Save::Snapshot::none);
      save.write();
      save.finish();
      values.add(trained.shards(), [](const parallel::Shard& shard) { return shard.value; });
    });
    const checkpoint::SafetensorsFile file(path + "/adapter_model.safetensors");
    size_t fused = 0;
    for (const checkpoint::TensorInfo& tensor : file.tensors()) {
      fused += tensor.name.find(".experts.") != tensor.name.npos ? 1 : 0;
      EXPECT_EQ(file.doubles(tensor.name), values.tensors().at(tensor.name)) << tensor.name;
      const models::StoredName parsed = models::parse_stored_name(tensor.name);
      if (parsed.module.ends_with("experts") && parsed.nesting == 0) {
        const int64_t experts = model->facts().experts->count;
        EXPECT_EQ(tensor.shape, (parsed.part == AdapterPart::a ? Shape{3 * experts, 20}
                                                               : Shape{32, 3 * experts}));
      }
    }
    EXPECT_GT(fused, 0u);
    const TensorMap again = read(path), divided = read(path, layout);
    for (const auto& [tensor, expected] : values.tensors())
      if (tensor.starts_with(checkpoint::kAdapterPrefix)) {
        EXPECT_EQ(again.at(tensor), expected) << tensor;
        EXPECT_EQ(divided.at(tensor), expected) << tensor;
      }
  }
}

// ---- refused ----

TEST(ExpertAdapters, AreRefusedWhereTheyCannotBe) {
  const Model model = family("qwen3_moe");
  const auto refused = [&](const std::function<void(LoraConfig&)>& change,
                           std::initializer_list<std::string_view> parts) {
    LoraConfig config = lora();
    change(config);
    expect_contains(error_of([&] { adapted(model, config); }), parts);
  };
  const auto named = [](const char* name) {
    return [name](LoraConfig& config) {
      config.all_linear = false;
      config.targets.names = {name};
    };
  };
  refused(named("mlp.gate"), {"model.layers.1.mlp.gate", "cannot have one"});
  refused(named("experts.2.up_proj"), {"experts.0.up_proj", "experts.2.up_proj", "all experts"});
  refused([](LoraConfig& config) { config.lora_bias = true; }, {"experts", "lora_bias"});
  refused([](LoraConfig& config) { config.weight_decomposed = true; }, {"experts", "use_dora"});
  refused([](LoraConfig& config) { config.target_parameters = {"mlp.gate.weight"}; },
          {"mlp.gate.weight", "mlp.experts.gate_up_proj"});
}

}  // namespace
}  // namespace megatron::selftest::expert_adapters_test
