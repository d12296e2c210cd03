#include "selftest/trajectory.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/tolerances.h"
#include "checkpoint/model_directory.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "models/stage.h"
#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "selftest/trajectory_comparison.h"
#include "settings/settings.h"
#include "training/trained_model.h"
#include "training/whole_model.h"

namespace megatron::selftest {
namespace {

struct Case {
  std::string start;  // a Hugging Face directory
  settings::BatchSettings batch;
  settings::OptimizerSettings optimizer;
  models::ModelFlags shape;  // provides its dropout
  std::vector<IgnoredElements> ignored;
};

// Checked before the flags, since those of other families are unknown as well.
void check_family(const std::string& start, const std::string& path) {
  try {
    models::model_from_directory(start);
  } catch (const Error& error) {
    fail("{} starts from {}, which cannot be trained here: {}", path, start, error.what());
  }
}

Case read_case(const std::string& directory) {
  const std::string path = directory + "/case.json";
  const Json json = Json::read(path);
  Case c;
  c.start = std::filesystem::path(directory + "/../" + json["start"].as_string())
                .lexically_normal()
                .string();
  check_family(c.start, path);
  c.batch.per_token_loss = false;  // Megatron-LM's default
  Fields fields;
  c.batch.fields(fields);
  c.optimizer.fields(fields);
  c.shape.fields(fields);
  for (const auto& [flag, value] : json["flags"].as_object()) {
    Field* field = fields.find(flag);
    MG_CHECK(field != nullptr, "{} contains the unknown flag '{}'", path, flag);
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

// Rows of tokens.safetensors. Of an encoder-decoder, `tokens` are the encoder's, of which
// encoder_mask shows some, and `decoder_tokens` the decoder's.
class Tokens {
 public:
  Tokens(const std::string& path, const Case& c, const models::Model& model) : file_(path) {
    const Shape given = file_.shape("tokens");
    MG_CHECK(given.rank() == 3 && given[0] > 0,
             "{}: tokens has shape {}; it must be [steps, batch, T]", path, given.str());
    MG_CHECK(given[1] == *c.batch.global_batch_size && given[2] == *c.batch.seq_length,
             "{}: tokens has shape {}, but global-batch-size is {} and seq-length {}", path,
             given.str(), *c.batch.global_batch_size, *c.batch.seq_length);
    const bool encodes = model->facts().encoder_layers > 0;
    const std::string own = encodes ? "decoder_tokens" : "tokens";
    const Shape shape = file_.shape(own);
    if (encodes) read_encoder(path, given, shape);
    const auto check_shape = [&](const std::string& name) {
      MG_CHECK(file_.shape(name) == shape, "{}: {} has shape {} but {} {}", path, name,
               file_.shape(name).str(), own, shape.str());
    };
    check_shape("labels");
    steps_ = shape[0];
    sequences_ = shape[1];
    length_ = shape[2];
    tokens_ = file_.integers(own);
    labels_ = file_.integers("labels");
    mask_.assign(tokens_.size(), 1);
    if (file_.contains("loss_mask")) {
      check_shape("loss_mask");
      mask_ = file_.doubles("loss_mask");
    }
    for (size_t i = 0; i < tokens_.size(); ++i) {
      MG_CHECK(tokens_[i] >= 0 && tokens_[i] < model->vocab_size() && labels_[i] >= 0 &&
                   labels_[i] < model->vocab_size(),
               "{} contains token {} and label {}; token ids must lie in [0, {})", path, tokens_[i],
               labels_[i], model->vocab_size());
    }
  }

  int64_t steps() const { return steps_; }

  // Returns the number of sequences per micro-batch with which all data-parallel ranks have equally
  // many: the case's number or, if the loss allows it (it is per token, or all sequences count
  // equally many tokens, so that the mean of means is unchanged), a smaller one.
  int64_t micro_batch_for(int64_t ranks, const settings::BatchSettings& batch) const {
    const int64_t wanted = *batch.micro_batch_size;
    if (sequences_ % (wanted * ranks) == 0) return wanted;
    MG_CHECK(batch.per_token_loss || std::ranges::all_of(mask_, [](double m) { return m == 1; }),
             "{} micro-batches per step cannot be divided among {} data-parallel ranks, and cannot "
             "be split, because the loss is a mean of micro-batch means with unequal token counts; "
             "change --data-parallel-size",
             sequences_ / wanted, ranks);
    for (int64_t size = wanted - 1; size >= 1; --size)
      if (wanted % size == 0 && sequences_ % (size * ranks) == 0) return size;
    fail(
        "{} sequences per step cannot be divided among {} data-parallel ranks; change "
        "--data-parallel-size",
        sequences_, ranks);
  }

  std::vector<corpus::HostBatch> micro_batches(int64_t step, int64_t size) const {
    std::vector<corpus::HostBatch> batches;
    for (int64_t first = 0; first < sequences_; first += size) {
      corpus::HostBatch batch{.layout = {.sequences = size, .length = length_}};
      for (int64_t i = 0; i < size * length_; ++i) {
        const auto from = static_cast<size_t>((step * sequences_ + first) * length_ + i);
        batch.tokens.push_back(static_cast<int32_t>(tokens_[from]));
        batch.labels.push_back(static_cast<int32_t>(labels_[from]));
        batch.positions.push_back(static_cast<int32_t>(i % length_));
        batch.loss_mask.push_back(static_cast<float>(mask_[from]));
      }
      for (int64_t s = 0; s < size; ++s) batch.sample_ids.push_back(step * sequences_ + first + s);
      if (encoder_length_ > 0) add_encoder(step * sequences_ + first, batch);
      batches.push_back(std::move(batch));
    }
    return batches;
  }

 private:
  void read_encoder(const std::string& path, const Shape& encoder, const Shape& decoder) {
    MG_CHECK(decoder.rank() == 3 && decoder[0] == encoder[0] && decoder[1] == encoder[1],
             "{}: decoder_tokens has shape {} but tokens {}", path, decoder.str(), encoder.str());
    MG_CHECK(file_.shape("encoder_mask") == encoder, "{}: encoder_mask has shape {} but tokens {}",
             path, file_.shape("encoder_mask").str(), encoder.str());
    encoder_length_ = encoder[2];
    encoder_tokens_ = file_.integers("tokens");
    shown_ = file_.integers("encoder_mask");
  }
  // The encoder's texts from row `first` on, whose padding is at their ends.
  void add_encoder(int64_t first, corpus::HostBatch& batch) const {
    const int64_t sequences = batch.layout.sequences;
    corpus::HostBatch texts{.layout = {.sequences = sequences, .length = encoder_length_}};
    texts.sample_ids = batch.sample_ids;
    for (int64_t s = 0; s < sequences; ++s) {
      const auto row = static_cast<size_t>((first + s) * encoder_length_);
      int32_t last = -1;
      for (int64_t t = 0; t < encoder_length_; ++t) {
        const size_t at = row + static_cast<size_t>(t);
        texts.tokens.push_back(static_cast<int32_t>(encoder_tokens_[at]));
        texts.positions.push_back(static_cast<int32_t>(t));
        if (shown_[at] != 0) last = static_cast<int32_t>(t);
      }
      texts.segment_ends.insert(texts.segment_ends.end(), static_cast<size_t>(encoder_length_),
                                last);
      batch.encoder_ends.insert(batch.encoder_ends.end(), static_cast<size_t>(length_), last);
    }
    texts.segment_starts.assign(texts.tokens.size(), 0);
    batch.encoder = std::make_shared<const corpus::HostBatch>(std::move(texts));
  }

  Expected file_;
  int64_t steps_ = 0, sequences_ = 0, length_ = 0;
  int64_t encoder_length_ = 0;  // 0: the model has no encoder
  std::vector<int64_t> tokens_, labels_, encoder_tokens_, shown_;
  std::vector<double> mask_;
};

// Results of a run on the rows, gathered from its ranks.
struct Run {
  std::vector<training::StepReport> steps;  // equal on all ranks
  GatheredTensors start, first, last;       // parameters
  std::map<std::string, GatheredTensors> states;
};

constexpr std::string_view kStates[] = {"exp_avg", "exp_avg_sq", "momentum_buffer"};

Tensor value_of(const parallel::Shard& shard) { return shard.value; }

void run_rank(const checkpoint::ModelDirectory& files, const models::Model& model, const Case& c,
              const Tokens& tokens, DeviceKind device, const VerifyOptions& options,
              comm::Group& world, Run& run) {
  const DType type = device == DeviceKind::reference ? DType::f64 : DType::f32;
  Runtime runtime({device, 0}, options.threads);
  training::TrainedModel trained(
      model, type, 0, options.layout(), world, runtime,
      {.loss_scope = c.batch.scope(), .data_parallel = {.sharding = options.sharding}});
  training::load_weights(files, trained.held(), training::whole_model(model, type),
                         {.tells = world.rank() == 0});
  trained.step.begin(c.optimizer.config);
  run.start.add(trained.shards(), value_of);
  const optim::LearningRate rate = c.optimizer.learning_rate(c.batch);
  const optim::WeightDecay decay = c.optimizer.decay(c.batch);
  const int64_t batch = *c.batch.global_batch_size;
  const comm::Group& data = trained.ranks.samples();
  const int64_t size = tokens.micro_batch_for(data.size(), c.batch);
  for (int64_t k = 0; k < tokens.steps(); ++k) {
    std::vector<corpus::HostBatch> all = tokens.micro_batches(k, size);
    for (corpus::HostBatch& of_all : all)
      corpus::keep_tokens(of_all, trained.ranks.tokens(size, of_all.layout.length));
    const size_t share = all.size() / static_cast<size_t>(data.size());
    const training::StepReport step =
        trained.step.run(std::span(all).subspan(share * static_cast<size_t>(data.rank()), share),
                         {rate.at(k * batch), decay.at(k * batch), rate.decoupled_at(k * batch)});
    if (world.rank() == 0) run.steps.push_back(step);
    if (k == 0) run.first.add(trained.shards(), value_of);
  }
  run.last.add(trained.shards(), value_of);
  for (const std::string_view state : kStates) {
    run.states.at(std::string(state)).add(trained.shards(), [&](const parallel::Shard& shard) {
      return trained.step.optimizer().state(*shard.placed, state);
    });
  }
}

// The metric is a mean over the layers that have it; the file lists these layers.
void compare_aux_loss(Expected& expected, int64_t k, const training::StepReport& step,
                      Report& report) {
  if (!expected.contains("aux_loss")) return;
  const std::vector<double> all = expected.doubles("aux_loss");
  const auto layers = static_cast<size_t>(expected.shape("aux_loss")[1]);
  const auto row = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(k) * layers);
  const double mean =
      std::accumulate(row, row + static_cast<ptrdiff_t>(layers), 0.0) / static_cast<double>(layers);
  const auto found = std::ranges::find(step.metrics, nn::kAuxLoss, &MetricValue::name);
  const double value = found == step.metrics.end() ? NAN : found->value;
  report.compare("aux_loss", fmt::format("step {}", k), relative_error(value, mean),
                 tolerance::kTrajectoryLossRelative);
}

Report run_case(const std::string& directory, const Case& c, DeviceKind device,
                const VerifyOptions& options) {
  Report report(fmt::format("{} on {} in {}{}", directory, name(device),
                            device == DeviceKind::reference ? "f64" : "f32", options.text()));
  const checkpoint::ModelDirectory files(c.start, options.reading);
  const models::Model model = models::model_from_directory(c.start)->with(
      {.hidden_dropout = c.shape.hidden_dropout.value_or(0),
       .attention_dropout = c.shape.attention_dropout.value_or(0),
       .router = c.shape.moe.training()});
  const Tokens tokens(directory + "/tokens.safetensors", c, model);
  Run run;
  for (const std::string_view state : kStates) run.states[std::string(state)];
  comm::run_ranks(options.ranks(), [&](comm::Group& world) {
    std::unique_ptr<comm::Group> made;
    run_rank(files, model, c, tokens, device, options, comm::for_device(world, {device, 0}, made),
             run);
  });

  Expected expected(directory + "/expected.safetensors");
  MG_CHECK(expected.contains("loss"), "{}/expected.safetensors has no loss", directory);
  TrajectoryComparison comparison(expected, std::move(run.start.tensors()), c.ignored, report);
  const optim::LearningRate rate = c.optimizer.learning_rate(c.batch);
  const optim::WeightDecay decay = c.optimizer.decay(c.batch);
  const int64_t steps = tokens.steps(), batch = *c.batch.global_batch_size;
  SignSteps first, all;
  for (int64_t k = 0; k < steps; ++k) {
    const training::StepReport& step = run.steps[static_cast<size_t>(k)];
    comparison.scalar("loss", k, step.loss, tolerance::kTrajectoryLossRelative);
    comparison.scalar("grad_norm", k, step.gradient_norm,
                      tolerance::kTrajectoryGradientNormRelative);
    compare_aux_loss(expected, k, step, report);
    comparison.scalar("lr", k, rate.at(k * batch), tolerance::kStoredFp32);
    comparison.scalar("weight_decay", k, decay.at(k * batch), tolerance::kStoredFp32);
    if (c.optimizer.config.method != optim::Method::lion) continue;
    all.add(rate.at(k * batch));
    if (k == 0) first = all;
  }
  for (const std::string name : {"loss", "grad_norm", "lr", "weight_decay"}) {
    if (expected.contains(name) && expected.shape(name).elements() != steps) {
      report.fail(fmt::format("{} has shape {}, but {} steps were run", name,
                              expected.shape(name).str(), steps));
    }
  }
  comparison.parameters("step1", run.first.tensors(), first);
  comparison.parameters("final", run.last.tensors(), all);
  for (auto& [state, values] : run.states) comparison.state(state, values.tensors());
  for (const std::string& name : run.last.different())
    report.fail(fmt::format("ranks that share {} have different values of it", name));
  expected.report_unused(report);
  return report;
}

}  // namespace

std::vector<Report> verify_trajectory(const std::string& directory, const VerifyOptions& options) {
  const Case c = read_case(directory);
  std::vector<Report> reports;
  for (const DeviceKind device : options.devices)
    reports.push_back(run_case(directory, c, device, options));
  return reports;
}

}  // namespace megatron::selftest
