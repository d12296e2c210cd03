#include "settings/batch_settings.h"

#include <cmath>

#include "base/error.h"
#include "base/text_parts.h"
#include "models/facts.h"

namespace megatron::settings {

void BatchSettings::fields(Fields& f) {
  f.begin_group("batch");
  f.add("seq-length", &seq_length, "sequence length in tokens").in_short_help();
  f.add("decoder-seq-length", &decoder_seq_length,
        "encoder-decoders: sequence length of the decoder in tokens; --seq-length is then that of "
        "the encoder; default --seq-length. --task span-corruption needs about a fifth of it");
  f.add("micro-batch-size", &micro_batch_size, "sequences per rank and forward pass")
      .in_short_help();
  f.add("global-batch-size", &global_batch_size,
        "sequences per optimizer step; default micro-batch size x data-parallel ranks")
      .in_short_help();
  f.add("train-iters", &train_iters, "optimizer steps").in_short_help();
  f.add("train-samples", &train_samples,
        "number of sequences to train on, instead of --train-iters; rounded down to whole steps");
  f.add(
      "epochs", &epochs,
      "passes over the rows of the training set, instead of --train-iters (every --task that reads "
      "examples); the last one is filled up to a whole step");
  f.add("extend-to-iters", &extend_to_iters,
        "continue training until this step, beyond --train-iters or --train-samples; their sample "
        "order and learning-rate schedule do not change (with --override-opt-param-scheduler the "
        "learning rate decays until the new end), and newly shuffled epochs follow");
  f.add("step-batch-size-schedule", &step_batch_size_schedule,
        "global batch size by tokens consumed, instead of --global-batch-size: \"0:768 250B:1536 "
        "500B:3072\"");
  f.add(
      "rampup-batch-size", &rampup_batch_size,
      "START INCREMENT SAMPLES: the global batch size grows from START to --global-batch-size in "
      "equal steps of INCREMENT over SAMPLES sequences (today's Megatron-LM accepts this flag and "
      "ignores it)");
  f.add_switch(
      "decrease-batch-size-if-needed", &decrease_batch_size, true,
      "round the global batch size down to a multiple of micro-batch size x data-parallel ranks");
  f.add_switch("calculate-per-token-loss", &per_token_loss, true,
               "average the loss over all counted tokens of a step (the default)");
  f.add_switch(
      "no-calculate-per-token-loss", &per_token_loss, false,
      "average the loss per micro-batch, then over micro-batches, as Megatron-LM does without "
      "--calculate-per-token-loss");
}

namespace {

constexpr int64_t kMostIterations = (int64_t{1} << 31) - 1;

int64_t integer(const std::string& text, std::string_view flag) {
  const auto value = parse_number<int64_t>(text);
  MG_CHECK(value, "--{}: '{}' is not an integer", flag, text);
  return *value;
}

data::BatchSchedule make_schedule(const BatchSettings& s) {
  const std::vector<std::string>& ramp = s.rampup_batch_size;
  if (s.step_batch_size_schedule)
    return data::BatchSchedule::steps(*s.step_batch_size_schedule, *s.seq_length);
  if (ramp.empty()) return data::BatchSchedule::constant(*s.global_batch_size);
  constexpr std::string_view kFlag = "rampup-batch-size";
  MG_CHECK(ramp.size() == 3, "--{} takes three numbers, START INCREMENT SAMPLES, but {} were given",
           kFlag, ramp.size());
  return data::BatchSchedule::ramp(integer(ramp[0], kFlag), integer(ramp[1], kFlag),
                                   integer(ramp[2], kFlag), *s.global_batch_size);
}

}  // namespace

void BatchSettings::finalize(int data_parallel) {
  const auto positive = [](const std::optional<int64_t>& value, std::string_view flag,
                           int64_t most = kMostIterations) {
    MG_CHECK(value.has_value(), "--{} is needed", flag);
    MG_CHECK(*value > 0 && *value <= most, "--{} is {}; it must lie in [1, {}]", flag, *value,
             most);
  };
  positive(seq_length, "seq-length", models::kMaxPositions);
  if (decoder_seq_length) positive(decoder_seq_length, "decoder-seq-length", models::kMaxPositions);
  positive(micro_batch_size, "micro-batch-size");
  if (train_samples) {
    positive(train_samples, "train-samples", int64_t{1} << 53);
  } else if (epochs) {
    positive(epochs, "epochs");
    train_iters = kMostIterations;
  } else {
    positive(train_iters, "train-iters");
  }
  if (!step_batch_size_schedule) {
    if (!global_batch_size) global_batch_size = *micro_batch_size * data_parallel;
    positive(global_batch_size, "global-batch-size");
  }
  schedule = make_schedule(*this);
  schedule.divide(*micro_batch_size, data_parallel, decrease_batch_size);
  global_batch_size = schedule.last();
  if (train_samples) {
    train_iters = schedule.iterations_within(*train_samples);
    MG_CHECK(*train_iters > 0, "--train-samples {} is less than the first global batch of {}",
             *train_samples, schedule.batch(0));
    positive(train_iters, "train-samples, in iterations,");
  }
  base_iters = *train_iters;
  if (!extend_to_iters) return;
  positive(extend_to_iters, "extend-to-iters");
  MG_CHECK(
      *extend_to_iters >= base_iters,
      "--extend-to-iters is {}, but {} already gives {} steps; give a larger value, or drop it",
      *extend_to_iters,
      train_samples ? fmt::format("--train-samples {}", *train_samples) : "--train-iters",
      base_iters);
  train_iters = extend_to_iters;
}

void BatchSettings::count_epochs(int64_t rows) {
  const double batch = static_cast<double>(schedule.batch(0)),
               steps = std::ceil(static_cast<double>(*epochs) * static_cast<double>(rows) / batch);
  MG_CHECK(steps <= static_cast<double>(kMostIterations),
           "--epochs {} of {} rows are {} steps of {}, but at most {} are possible", *epochs, rows,
           steps, batch, kMostIterations);
  train_iters = base_iters = static_cast<int64_t>(steps);
}

}  // namespace megatron::settings
