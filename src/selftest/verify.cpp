#include "selftest/verify.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/tolerances.h"
#include "checkpoint/model_directory.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "training/trained_model.h"
#include "training/whole_model.h"

namespace megatron::selftest {
namespace {

constexpr int64_t kPrompt = 8;  // tokens before the greedy ones

// input_ids and labels of the file as a batch whose labels are already shifted.
corpus::HostBatch read_batch(Expected& expected, const models::Model& model) {
  const Shape shape = expected.shape("input_ids");
  MG_CHECK(shape.rank() == 2 && shape.elements() > 0,
           "input_ids has shape {}; it must be [sequences, tokens]", shape.str());
  MG_CHECK(expected.shape("labels") == shape, "labels has shape {} but input_ids {}",
           expected.shape("labels").str(), shape.str());
  const int64_t length = shape[1];
  MG_CHECK(length <= model->max_position_embeddings(),
           "input_ids has {} tokens a sequence but the model {} positions", length,
           model->max_position_embeddings());
  const std::vector<int64_t> ids = expected.integers("input_ids"),
                             labels = expected.integers("labels");
  corpus::HostBatch batch{.sequences = shape[0], .length = length};
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const auto index = static_cast<size_t>(i);
    MG_CHECK(ids[index] >= 0 && ids[index] < model->vocab_size(),
             "input_ids holds {}, outside of the vocabulary [0, {})", ids[index],
             model->vocab_size());
    const int64_t label = i % length + 1 < length ? labels[index + 1] : -100;
    MG_CHECK(label == -100 || (label >= 0 && label < model->vocab_size()),
             "labels holds {}, outside of the vocabulary [0, {})", label, model->vocab_size());
    batch.tokens.push_back(static_cast<int32_t>(ids[index]));
    batch.positions.push_back(static_cast<int32_t>(i % length));
    batch.labels.push_back(static_cast<int32_t>(label));
    batch.loss_mask.push_back(label == -100 ? 0.0f : 1.0f);
  }
  batch.sample_ids.assign(static_cast<size_t>(shape[0]), 0);
  return batch;
}

// What a model makes of a batch, put together by its ranks.
struct Results {
  std::mutex mutex;
  TensorMap values;  // "hidden.0", "hidden.head", "logits"
  GatheredTensors gradients;
  double loss = 0, divisor = 1;
};

// One rank's part of a model.
class Subject {
 public:
  Subject(const checkpoint::ModelDirectory& directory, const models::Model& model,
          DeviceKind device, const VerifyOptions& options, comm::Group& world)
      : runtime_({device, 0}, options.threads),
        type_(device == DeviceKind::reference ? DType::f64 : DType::f32),
        model_(model, type_, 0, options.layout(), world, runtime_, {}),
        device_batch_(runtime_, type_) {
    training::load_weights(directory, model_.held(), training::whole_model(model, type_), {});
    model_.step.begin({.method = optim::Method::sgd, .sgd_momentum = 0});
  }

  // prefix: of the names of what is kept.
  void forward(const corpus::HostBatch& batch, const std::string& prefix, Results& results);
  void backward(const corpus::HostBatch& batch, Results& results);

 private:
  // All rows of what tensor-parallel ranks may hold slices of.
  std::vector<double> all_rows(Tensor rows);
  std::vector<double> flowing_value(const Bundle& bundle);
  void keep(const std::string& name, std::vector<double> values, Results& results) const {
    const std::lock_guard lock(results.mutex);
    results.values[name] = std::move(values);
  }

  Runtime runtime_;
  DType type_;
  training::TrainedModel model_;
  corpus::DeviceBatch device_batch_;
};

std::vector<double> Subject::all_rows(Tensor rows) {
  const parallel::TensorParallel tensor = model_.ranks.tensor();
  if (!tensor.divides_tokens()) return to_doubles(rows);
  const Tensor all =
      Tensor::empty(runtime_.arena(MemoryClass::activations),
                    {rows.size(0) * tensor.size(), rows.size(1)}, type_, "verify.rows");
  tensor.group->all_gather(rows, all, runtime_.stream(), "verify.rows").wait(runtime_.stream());
  return to_doubles(all);
}

std::vector<double> Subject::flowing_value(const Bundle& bundle) {
  std::vector<double> values = all_rows(bundle["hidden"].value);
  if (!bundle.contains("residual") || !bundle["residual"].value.defined()) return values;
  const std::vector<double> residual = all_rows(bundle["residual"].value);
  for (size_t i = 0; i < values.size(); ++i) values[i] += residual[i];
  return values;
}

// Segment by segment, so that all that flows between them is seen.
void Subject::forward(const corpus::HostBatch& host, const std::string& prefix, Results& results) {
  const models::Stage& stage = model_.parts.chunk(0);
  comm::Group* const stages = model_.ranks.stages();
  const models::Model& c = stage.model();
  const nn::Batch& batch = device_batch_.fill(host, settings::LossScope::token, c->vocab_size(),
                                              c->max_position_embeddings());
  Tape tape(runtime_, Tape::Mode::infer);
  Bundle bundle;
  int64_t place = stage.part().embedding ? 0 : stage.part().first_layer + 1;
  if (!stage.part().embedding) {
    const int64_t tokens = model_.ranks.tensor().tokens(host.sequences * host.length).size;
    const Tensor hidden = Tensor::empty(runtime_.arena(MemoryClass::activations),
                                        {tokens, c->hidden_size()}, type_, "verify.hidden");
    stages->recv(hidden, stages->rank() - 1, runtime_.stream(), "verify.hidden")
        .wait(runtime_.stream());
    bundle.set("hidden", Var(hidden));
  }
  for (const models::Segment& segment : stage.segments()) {
    bundle = segment.forward(tape, bundle, batch, models::Phase::evaluate);
    keep(fmt::format("{}hidden.{}", prefix, place++), flowing_value(bundle), results);
  }
  if (!stage.part().head) {
    stages
        ->send(models::flowing(tape, bundle).value, stages->rank() + 1, runtime_.stream(),
               "verify.hidden")
        .wait(runtime_.stream());
    return;
  }
  keep(prefix + "hidden.head", all_rows(stage.final_norm(tape, bundle).value), results);
  keep(prefix + "logits", to_doubles(stage.logits(tape, bundle).value), results);
}

void Subject::backward(const corpus::HostBatch& batch, Results& results) {
  double divisor = 1;
  const training::StepReport step = model_.step.accumulate({&batch, 1}, divisor);
  results.gradients.add(
      model_.shards(), [](const parallel::Shard& shard) { return shard.gradient; }, divisor);
  const std::lock_guard lock(results.mutex);
  results.loss = step.loss;
}

void compare_forward(Expected& expected, const Results& results, Report& report) {
  MG_CHECK(expected.contains("logits"), "expected.safetensors has no logits");
  for (const auto& [name, values] : results.values) {
    if (!expected.contains(name)) continue;
    report.compare(name == "logits" ? "logits" : "hidden states", name,
                   largest_difference(values, expected.doubles(name)),
                   tolerance::kGoldenLogitsAbsolute);
  }
}

void compare_gradients(Expected& expected, Results& results, Report& report) {
  if (expected.contains("loss")) {
    const std::vector<double> value = expected.doubles("loss");
    report.compare("loss", "loss",
                   value.size() == 1 ? relative_error(results.loss, value[0]) : INFINITY,
                   tolerance::kGoldenLossRelative);
  }
  for (const std::string& name : results.gradients.different())
    report.fail(fmt::format("ranks that hold {} have different gradients of it", name));
  for (const auto& [name, values] : results.gradients.tensors()) {
    const std::string key = "grad." + name;
    if (!expected.contains(key)) {
      report.fail(fmt::format("{} is not in expected.safetensors", key));
      continue;
    }
    const std::vector<double> wanted = expected.doubles(key);
    report.compare(
        "gradients", key, difference_norm(values, wanted),
        tolerance::kGoldenGradientRelative * norm(wanted) + tolerance::kGoldenGradientAbsolute);
  }
}

// The prompt with the greedy tokens that are wanted behind it: a model that chooses each of them
// where it sees those before would have generated them.
std::optional<corpus::HostBatch> greedy_batch(Expected& expected, const corpus::HostBatch& batch,
                                              const models::Model& model) {
  if (!expected.contains("greedy")) return std::nullopt;
  const std::vector<int64_t> wanted = expected.integers("greedy");
  const int64_t total = kPrompt + static_cast<int64_t>(wanted.size());
  MG_CHECK(batch.length >= kPrompt,
           "input_ids has {} tokens a sequence; greedy tokens follow the first {}", batch.length,
           kPrompt);
  MG_CHECK(total <= model->max_position_embeddings(),
           "{} tokens with the greedy ones are more than the model's {} positions", total,
           model->max_position_embeddings());
  corpus::HostBatch greedy{.sequences = 1, .length = total, .sample_ids = {0}};
  greedy.tokens.assign(batch.tokens.begin(), batch.tokens.begin() + kPrompt);
  for (const int64_t token : wanted) {
    MG_CHECK(token >= 0 && token < model->vocab_size(),
             "greedy holds {}, outside of the vocabulary [0, {})", token, model->vocab_size());
    greedy.tokens.push_back(static_cast<int32_t>(token));
  }
  for (int64_t i = 0; i < total; ++i) greedy.positions.push_back(static_cast<int32_t>(i));
  greedy.labels.assign(greedy.tokens.size(), 0);
  greedy.loss_mask.assign(greedy.tokens.size(), 0.0f);
  return greedy;
}

void compare_greedy(const corpus::HostBatch& greedy, const Results& results, int64_t vocabulary,
                    Report& report) {
  const std::vector<double>& logits = results.values.at("greedy.logits");
  int64_t different = 0;
  for (size_t i = kPrompt; i < greedy.tokens.size(); ++i) {
    const auto row = logits.begin() + static_cast<int64_t>(i - 1) * vocabulary;
    const auto best = std::max_element(row, row + vocabulary) - row;
    if (best != greedy.tokens[i]) ++different;
  }
  report.compare("greedy tokens", "greedy", static_cast<double>(different), 0);
}

}  // namespace

training::ModelLayout VerifyOptions::layout() const {
  return {.ranks = {.layout = {.tp = tensor_parallel, .pp = pipeline_parallel},
                    .sequence = sequence_parallel,
                    .pipeline = {.stages = pipeline_parallel}},
          .layers = {.uneven = true}};
}

std::string VerifyOptions::text() const {
  std::string text;
  const auto add = [&](std::string_view axis, int size) {
    if (size > 1) text += fmt::format(", {} parallel {}", axis, size);
  };
  add("tensor", tensor_parallel);
  if (sequence_parallel) text += ", sequence parallel";
  add("pipeline", pipeline_parallel);
  add("data", data_parallel);
  return text;
}

std::vector<Report> verify(const std::string& directory, const VerifyOptions& options) {
  MG_CHECK(options.data_parallel == 1,
           "{} has the expected values of one batch, which {} data-parallel ranks cannot share: "
           "leave out --data-parallel-size, which is for trajectories",
           directory, options.data_parallel);
  const checkpoint::ModelDirectory files(directory);
  const models::Model model =
      models::model_from_directory(directory)->with({.hidden_dropout = 0, .attention_dropout = 0});
  std::vector<Report> reports;
  for (const DeviceKind device : options.devices) {
    Expected expected(directory + "/expected.safetensors");
    Report report(fmt::format("{} on {} in {}{}", directory, name(device),
                              device == DeviceKind::reference ? "f64" : "f32", options.text()));
    const corpus::HostBatch batch = read_batch(expected, model);
    const auto greedy = greedy_batch(expected, batch, model);
    Results results;
    comm::run_ranks(options.ranks(), [&](comm::Group& world) {
      std::unique_ptr<comm::Group> made;
      Subject subject(files, model, device, options, comm::for_device(world, {device, 0}, made));
      subject.forward(batch, "", results);
      if (greedy) subject.forward(*greedy, "greedy.", results);
      subject.backward(batch, results);
    });
    compare_forward(expected, results, report);
    compare_gradients(expected, results, report);
    if (greedy) compare_greedy(*greedy, results, model->vocab_size(), report);
    expected.report_unused(report);
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace megatron::selftest
