#include "selftest/verify.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/tolerances.h"
#include "checkpoint/model_directory.h"
#include "models/gpt/model.h"
#include "parallel/gradient_buffer.h"
#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "training/batch.h"

namespace megatron::selftest {
namespace {

constexpr int64_t kPrompt = 8;  // tokens before the greedy ones

// input_ids and labels of the file as a batch whose labels are already shifted.
training::HostBatch read_batch(Expected& expected, const models::GptConfig& config) {
  const Shape shape = expected.shape("input_ids");
  MG_CHECK(shape.rank() == 2 && shape.elements() > 0,
           "input_ids has shape {}; it must be [sequences, tokens]", shape.str());
  MG_CHECK(expected.shape("labels") == shape, "labels has shape {} but input_ids {}",
           expected.shape("labels").str(), shape.str());
  const int64_t length = shape[1];
  MG_CHECK(length <= config.max_position_embeddings,
           "input_ids has {} tokens a sequence but the model {} positions", length,
           config.max_position_embeddings);
  const std::vector<int64_t> ids = expected.integers("input_ids"),
                             labels = expected.integers("labels");
  training::HostBatch batch{.sequences = shape[0], .length = length};
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const auto index = static_cast<size_t>(i);
    MG_CHECK(ids[index] >= 0 && ids[index] < config.vocab_size,
             "input_ids holds {}, outside of the vocabulary [0, {})", ids[index],
             config.vocab_size);
    const int64_t label = i % length + 1 < length ? labels[index + 1] : -100;
    MG_CHECK(label == -100 || (label >= 0 && label < config.vocab_size),
             "labels holds {}, outside of the vocabulary [0, {})", label, config.vocab_size);
    batch.tokens.push_back(static_cast<int32_t>(ids[index]));
    batch.positions.push_back(static_cast<int32_t>(i % length));
    batch.labels.push_back(static_cast<int32_t>(label));
    batch.loss_mask.push_back(label == -100 ? 0.0f : 1.0f);
  }
  batch.samples.assign(static_cast<size_t>(shape[0]), 0);
  return batch;
}

// What leaves each segment, as the value that flows.
std::vector<Bundle> run_segments(const models::Stage& stage, Tape& tape, const nn::Batch& batch) {
  std::vector<Bundle> bundles;
  for (const models::Segment& segment : stage.segments()) {
    bundles.push_back(segment.forward(tape, bundles.empty() ? Bundle() : bundles.back(), batch,
                                      models::Phase::evaluate));
  }
  return bundles;
}

std::vector<double> flowing_value(const Bundle& bundle) {
  std::vector<double> values = to_doubles(bundle["hidden"].value);
  if (!bundle["residual"].value.defined()) return values;
  const std::vector<double> residual = to_doubles(bundle["residual"].value);
  for (size_t i = 0; i < values.size(); ++i) values[i] += residual[i];
  return values;
}

// One model on one device.
class Subject {
 public:
  Subject(const checkpoint::ModelDirectory& directory, DeviceKind device, int threads)
      : runtime_({device, 0}, threads),
        type_(device == DeviceKind::reference ? DType::f64 : DType::f32),
        model_(models::config_from_hugging_face(directory.config()), runtime_, type_, 0),
        device_batch_(runtime_, type_) {
    checkpoint::load(directory, model_.parameters());
  }

  const models::GptConfig& config() const { return model_.config(); }
  void compare_forward(Expected& expected, const training::HostBatch& batch, Report& report);
  void compare_gradients(Expected& expected, const training::HostBatch& batch, Report& report);
  void compare_greedy(Expected& expected, const training::HostBatch& batch, Report& report);

 private:
  const nn::Batch& fill(const training::HostBatch& batch) {
    return device_batch_.fill(batch, training::LossScope::token, config().vocab_size,
                              config().max_position_embeddings);
  }
  int32_t next_token(const std::vector<int32_t>& tokens);

  Runtime runtime_;
  DType type_;
  models::GptModel model_;
  training::DeviceBatch device_batch_;
};

void Subject::compare_forward(Expected& expected, const training::HostBatch& batch,
                              Report& report) {
  Tape tape(runtime_, Tape::Mode::infer);
  const std::vector<Bundle> bundles = run_segments(model_, tape, fill(batch));
  const auto compare = [&](const std::string& kind, const std::string& name,
                           const std::vector<double>& values) {
    if (!expected.contains(name)) return;
    report.compare(kind, name, largest_difference(values, expected.doubles(name)),
                   tolerance::kGoldenLogitsAbsolute);
  };
  for (size_t i = 0; i < bundles.size(); ++i)
    compare("hidden states", fmt::format("hidden.{}", i), flowing_value(bundles[i]));
  compare("hidden states", "hidden.head",
          to_doubles(model_.final_norm(tape, bundles.back()).value));
  MG_CHECK(expected.contains("logits"), "expected.safetensors has no logits");
  compare("logits", "logits", to_doubles(model_.logits(tape, bundles.back()).value));
}

void Subject::compare_gradients(Expected& expected, const training::HostBatch& batch,
                                Report& report) {
  std::vector<Parameter*> parameters;
  for (parallel::Placed* placed : model_.parameters()) parameters.push_back(&placed->parameter);
  const std::unique_ptr<comm::Group> alone = comm::single();
  parallel::GradientBuffer gradients(parameters, *alone, runtime_);
  gradients.begin_step(1);
  Tape tape(runtime_);
  tape.listen(&gradients);
  const nn::Batch& device = fill(batch);
  const Bundle out = models::forward(model_, tape, device, models::Phase::evaluate);
  const std::vector<double> losses = to_doubles(model_.loss(tape, out, device));
  tape.backward();
  gradients.finish();
  const double counted = std::max(batch.counted(), 1.0);
  double loss = 0;
  for (const double l : losses) loss += l;
  if (expected.contains("loss")) {
    const std::vector<double> value = expected.doubles("loss");
    report.compare("loss", "loss",
                   value.size() == 1 ? relative_error(loss / counted, value[0]) : INFINITY,
                   tolerance::kGoldenLossRelative);
  }
  for (const auto& [name, values] : canonical_gradients(model_.parameters(), counted)) {
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

int32_t Subject::next_token(const std::vector<int32_t>& tokens) {
  training::HostBatch batch{.sequences = 1,
                            .length = static_cast<int64_t>(tokens.size()),
                            .tokens = tokens,
                            .samples = {0}};
  for (size_t i = 0; i < tokens.size(); ++i) batch.positions.push_back(static_cast<int32_t>(i));
  batch.labels.assign(tokens.size(), 0);
  batch.loss_mask.assign(tokens.size(), 0.0f);
  Tape tape(runtime_, Tape::Mode::infer);
  const std::vector<double> logits =
      to_doubles(model_.logits(tape, run_segments(model_, tape, fill(batch)).back()).value);
  const auto row = logits.end() - config().vocab_size;
  return static_cast<int32_t>(std::max_element(row, logits.end()) - row);
}

void Subject::compare_greedy(Expected& expected, const training::HostBatch& batch, Report& report) {
  if (!expected.contains("greedy")) return;
  const std::vector<int64_t> wanted = expected.integers("greedy");
  const int64_t total = kPrompt + static_cast<int64_t>(wanted.size());
  MG_CHECK(batch.length >= kPrompt,
           "input_ids has {} tokens a sequence; greedy tokens follow the first {}", batch.length,
           kPrompt);
  MG_CHECK(total <= config().max_position_embeddings,
           "{} tokens with the greedy ones are more than the model's {} positions", total,
           config().max_position_embeddings);
  std::vector<int32_t> tokens(batch.tokens.begin(), batch.tokens.begin() + kPrompt);
  int64_t different = 0;
  for (const int64_t token : wanted) {
    tokens.push_back(next_token(tokens));
    if (tokens.back() != token) ++different;
  }
  report.compare("greedy tokens", "greedy", static_cast<double>(different), 0);
}

}  // namespace

std::vector<Report> verify(const std::string& directory, const VerifyOptions& options) {
  const checkpoint::ModelDirectory files(directory);
  std::vector<Report> reports;
  for (const DeviceKind device : options.devices) {
    Expected expected(directory + "/expected.safetensors");
    Report report(fmt::format("{} on {} in {}", directory, name(device),
                              device == DeviceKind::reference ? "f64" : "f32"));
    Subject subject(files, device, options.threads);
    const training::HostBatch batch = read_batch(expected, subject.config());
    subject.compare_forward(expected, batch, report);
    subject.compare_gradients(expected, batch, report);
    subject.compare_greedy(expected, batch, report);
    expected.report_unused(report);
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace megatron::selftest
