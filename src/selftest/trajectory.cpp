#include "selftest/trajectory.h"

#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/tolerances.h"
#include "checkpoint/model_directory.h"
#include "models/gpt/model.h"
#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "training/settings.h"
#include "training/step.h"

namespace megatron::selftest {
namespace {

// '*' stands for any run of characters.
bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] != '*')
    return !text.empty() && pattern[0] == text[0] && matches(pattern.substr(1), text.substr(1));
  for (size_t i = 0; i <= text.size(); ++i) {
    if (matches(pattern.substr(1), text.substr(i))) return true;
  }
  return false;
}

struct Ignored {
  std::string pattern;
  int64_t begin = 0, end = 0;
};

struct Case {
  std::string start;
  training::BatchSettings batch;
  training::OptimizerSettings optimizer;
  models::GptFlags shape;  // for its dropout
  std::vector<Ignored> ignored;
};

Case read_case(const std::string& directory) {
  const std::string path = directory + "/case.json";
  const Json json = Json::read(path);
  Case c;
  c.start = directory + "/../" + json["start"].as_string();
  c.batch.per_token_loss = false;  // Megatron-LM's default
  Fields fields;
  c.batch.fields(fields);
  c.optimizer.fields(fields);
  c.shape.fields(fields);
  for (const auto& [flag, value] : json["flags"].as_object()) {
    Field* field = fields.find(flag);
    MG_CHECK(field != nullptr, "{} has the flag '{}', which is not known", path, flag);
    if (value.is_bool()) {
      MG_CHECK(field->is_switch, "{}: the flag '{}' needs a value", path, flag);
      if (value.as_bool()) field->assign({});
    } else {
      field->assign({value.is_string() ? value.as_string() : value.dump()});
    }
  }
  c.batch.finalize(1);
  c.optimizer.config.check();
  if (const Json* ignore = json.find("ignore")) {
    for (const auto& [pattern, range] : ignore->as_object()) {
      MG_CHECK(range.as_array().size() == 2, "{}: ignore of '{}' must be [from, to)", path,
               pattern);
      c.ignored.push_back(
          {pattern, range.as_array()[0].as_integer(), range.as_array()[1].as_integer()});
    }
  }
  return c;
}

// Rows of tokens.safetensors.
class Tokens {
 public:
  Tokens(const std::string& path, const Case& c, const models::GptConfig& config) : file_(path) {
    const Shape shape = file_.shape("tokens");
    MG_CHECK(shape.rank() == 3 && shape[0] > 0,
             "{}: tokens has shape {}; it must be [steps, batch, T]", path, shape.str());
    MG_CHECK(shape[1] == *c.batch.global_batch_size && shape[2] == *c.batch.seq_length,
             "{}: tokens has shape {}, but global-batch-size is {} and seq-length {}", path,
             shape.str(), *c.batch.global_batch_size, *c.batch.seq_length);
    MG_CHECK(file_.shape("labels") == shape, "{}: labels has shape {} but tokens {}", path,
             file_.shape("labels").str(), shape.str());
    steps_ = shape[0];
    sequences_ = shape[1];
    length_ = shape[2];
    tokens_ = file_.integers("tokens");
    labels_ = file_.integers("labels");
    mask_.assign(tokens_.size(), 1);
    if (file_.contains("loss_mask")) {
      MG_CHECK(file_.shape("loss_mask") == shape, "{}: loss_mask has shape {} but tokens {}", path,
               file_.shape("loss_mask").str(), shape.str());
      mask_ = file_.doubles("loss_mask");
    }
    for (size_t i = 0; i < tokens_.size(); ++i) {
      MG_CHECK(tokens_[i] >= 0 && tokens_[i] < config.vocab_size && labels_[i] >= 0 &&
                   labels_[i] < config.vocab_size,
               "{} holds token {} and label {}; the vocabulary is [0, {})", path, tokens_[i],
               labels_[i], config.vocab_size);
    }
  }

  int64_t steps() const { return steps_; }
  std::vector<training::HostBatch> micro_batches(int64_t step, int64_t size) const {
    std::vector<training::HostBatch> batches;
    for (int64_t first = 0; first < sequences_; first += size) {
      training::HostBatch batch{.sequences = size, .length = length_};
      for (int64_t i = 0; i < size * length_; ++i) {
        const auto from = static_cast<size_t>((step * sequences_ + first) * length_ + i);
        batch.tokens.push_back(static_cast<int32_t>(tokens_[from]));
        batch.labels.push_back(static_cast<int32_t>(labels_[from]));
        batch.positions.push_back(static_cast<int32_t>(i % length_));
        batch.loss_mask.push_back(static_cast<float>(mask_[from]));
      }
      for (int64_t s = 0; s < size; ++s) batch.samples.push_back(step * sequences_ + first + s);
      batches.push_back(std::move(batch));
    }
    return batches;
  }

 private:
  Expected file_;
  int64_t steps_ = 0, sequences_ = 0, length_ = 0;
  std::vector<int64_t> tokens_, labels_;
  std::vector<double> mask_;
};

class Comparison {
 public:
  Comparison(const Case& c, Expected& expected, TensorMap start, Report& report)
      : case_(c), expected_(expected), start_(std::move(start)), report_(report) {}

  void scalar(const std::string& name, int64_t step, double value, double tolerance) {
    if (!expected_.contains(name)) return;
    const std::vector<double> wanted = expected_.doubles(name);
    const auto index = static_cast<size_t>(step);
    const double error = index < wanted.size() ? relative_error(value, wanted[index]) : INFINITY;
    report_.compare(name, fmt::format("step {}", step), error, tolerance);
  }

  // Parameters after some steps: "step1", "final".
  void parameters(const std::string& prefix, const TensorMap& values) {
    double difference = 0, movement = 0;
    bool any = false;
    for (const auto& [name, value] : values) {
      const std::string key = prefix + "." + name;
      if (!expected_.contains(key)) continue;
      any = true;
      const std::vector<double> wanted = kept(name, expected_.doubles(key));
      const double d = difference_norm(kept(name, value), wanted),
                   m = difference_norm(kept(name, start_.at(name)), wanted);
      report_.compare("parameters", key, d, tolerance::kTrajectoryParameterOfMovement * m);
      difference += d * d;
      movement += m * m;
    }
    if (any) {
      report_.compare("all parameters", prefix, std::sqrt(difference),
                      tolerance::kTrajectoryMovementTotal * std::sqrt(movement));
    }
  }

  void state(const std::string& prefix, const TensorMap& values) {
    for (const auto& [name, value] : values) {
      const std::string key = prefix + "." + name;
      if (!expected_.contains(key)) continue;
      const std::vector<double> wanted = kept(name, expected_.doubles(key));
      report_.compare(prefix, key, difference_norm(kept(name, value), wanted),
                      tolerance::kTrajectoryState * norm(wanted));
    }
  }

 private:
  // Without the elements that are not to be compared.
  std::vector<double> kept(const std::string& name, std::vector<double> values) const {
    for (const Ignored& i : case_.ignored) {
      if (!matches(i.pattern, name)) continue;
      MG_CHECK(i.begin >= 0 && i.begin <= i.end && i.end <= static_cast<int64_t>(values.size()),
               "ignore of '{}' is [{}, {}), but {} has {} elements", i.pattern, i.begin, i.end,
               name, values.size());
      values.erase(values.begin() + i.begin, values.begin() + i.end);
    }
    return values;
  }

  const Case& case_;
  Expected& expected_;
  TensorMap start_;
  Report& report_;
};

Report run_case(const std::string& directory, const Case& c, DeviceKind device, int threads) {
  const DType type = device == DeviceKind::reference ? DType::f64 : DType::f32;
  Report report(fmt::format("{} on {} in {}", directory, name(device), name(type)));
  Runtime runtime({device, 0}, threads);
  const checkpoint::ModelDirectory files(c.start);
  models::GptConfig config = models::config_from_hugging_face(files.config());
  config.hidden_dropout = c.shape.hidden_dropout.value_or(0);
  config.attention_dropout = c.shape.attention_dropout.value_or(0);
  config.finalize();
  models::GptModel model(config, runtime, type, 0);
  checkpoint::load(files, model.parameters());
  const Tokens tokens(directory + "/tokens.safetensors", c, config);
  const int64_t steps = tokens.steps(), batch = *c.batch.global_batch_size;
  const optim::LearningRate rate = c.optimizer.learning_rate(c.batch);
  const optim::WeightDecay decay = c.optimizer.decay(c.batch);
  const std::unique_ptr<comm::Group> alone = comm::single();
  training::TrainStep train(model, type, c.optimizer.config, *alone, runtime,
                            {.loss_scope = c.batch.scope(),
                             .vocabulary = config.vocab_size,
                             .positions = config.max_position_embeddings});

  Expected expected(directory + "/expected.safetensors");
  MG_CHECK(expected.contains("loss"), "{}/expected.safetensors has no loss", directory);
  Comparison comparison(c, expected, canonical_values(model.parameters()), report);
  for (int64_t k = 0; k < steps; ++k) {
    const double lr = rate.at(k * batch), wd = decay.at(k * batch);
    const training::StepReport step = train.run(tokens.micro_batches(k, *c.batch.micro_batch_size),
                                                {lr, wd, rate.decoupled_at(k * batch)});
    comparison.scalar("loss", k, step.loss, tolerance::kTrajectoryLossRelative);
    comparison.scalar("grad_norm", k, step.gradient_norm,
                      tolerance::kTrajectoryGradientNormRelative);
    comparison.scalar("lr", k, lr, tolerance::kStoredFp32);
    comparison.scalar("weight_decay", k, wd, tolerance::kStoredFp32);
    if (k == 0) comparison.parameters("step1", canonical_values(model.parameters()));
  }
  for (const std::string name : {"loss", "grad_norm", "lr", "weight_decay"}) {
    if (expected.contains(name) && expected.shape(name).elements() != steps) {
      report.fail(fmt::format("{} has shape {}, but {} steps were made", name,
                              expected.shape(name).str(), steps));
    }
  }
  comparison.parameters("final", canonical_values(model.parameters()));
  for (const std::string state : {"exp_avg", "exp_avg_sq", "momentum_buffer"}) {
    comparison.state(state, canonical(model.parameters(), [&](const parallel::Placed& placed) {
                       return train.optimizer().state(placed, state);
                     }));
  }
  expected.report_unused(report);
  return report;
}

}  // namespace

std::vector<Report> verify_trajectory(const std::string& directory, const VerifyOptions& options) {
  const Case c = read_case(directory);
  std::vector<Report> reports;
  for (const DeviceKind device : options.devices)
    reports.push_back(run_case(directory, c, device, options.threads));
  return reports;
}

}  // namespace megatron::selftest
