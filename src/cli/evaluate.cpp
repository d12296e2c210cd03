#include "training/evaluate.h"

#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "comm/threads.h"
#include "training/model_source.h"

namespace megatron::cli {
namespace {

struct EvaluateSettings {
  std::optional<std::string> load;
  std::string set = "valid";
  std::optional<int64_t> samples, seq_length;
  int64_t micro_batch_size = 4;
  bool bf16 = false;
  training::DataSettings data;
  training::RuntimeSettings runtime;

  Fields fields() {
    Fields f;
    f.add("load", &load, "Hugging Face model directory, or the --save directory of a run");
    f.add("eval-set", &set, {"train", "valid", "test"}, "part of --split to evaluate on");
    f.add("eval-samples", &samples, "sequences to evaluate; default one pass over the set");
    f.add("seq-length", &seq_length, "tokens of a sequence; default the model's positions");
    f.add("micro-batch-size", &micro_batch_size, "sequences that a rank takes at once");
    f.add_switch("bf16", &bf16, true, "compute in bfloat16; else fp32");
    data.fields(f);
    runtime.fields(f);
    return f;
  }
};

data::Split split_named(const std::string& name) {
  return name == "train"  ? data::Split::train
         : name == "test" ? data::Split::test
                          : data::Split::valid;
}

}  // namespace

int evaluate(const Arguments& arguments) {
  EvaluateSettings s;
  Fields fields = s.fields();
  if (const auto code =
          parse("megatron eval --load DIR --data-path PREFIX [flags]",
                "Loss and perplexity of a model on the documents that --split holds out.", fields,
                {}, arguments)) {
    return *code;
  }
  MG_CHECK(s.load.has_value(), "--load DIR is needed: the model to evaluate");
  MG_CHECK(s.micro_batch_size > 0, "--micro-batch-size is {}; it must be positive",
           s.micro_batch_size);
  s.runtime.check();
  const checkpoint::ModelDirectory directory(training::resolve_model_directory(*s.load));
  const models::GptConfig config = models::config_from_hugging_face(directory.config());
  if (!s.data.tokenizer_model && !s.data.tokenizer_type && !s.data.mock_data)
    s.data.tokenizer_model = training::tokenizer_path({}, directory.path());
  const training::Vocabulary vocabulary = training::open_vocabulary(s.data, config.vocab_size);
  const int64_t length = s.seq_length.value_or(config.max_position_embeddings);
  MG_CHECK(length > 0 && length <= config.max_position_embeddings,
           "--seq-length is {}; the model has {} positions", length,
           config.max_position_embeddings);
  const data::Split split = split_named(s.set);
  MG_CHECK(s.samples.value_or(1) > 0, "--eval-samples is {}; it must be positive", *s.samples);
  std::array<std::optional<int64_t>, 3> wanted = {0, 0, 0};
  wanted[static_cast<size_t>(split)] = s.samples;
  const training::Corpus corpus =
      training::open_corpus(s.data, vocabulary, length, s.runtime.seed, wanted);
  const data::Dataset& set = corpus.set(split);
  const int64_t count = std::min(s.samples.value_or(set.size()), set.size());
  MG_CHECK(
      count > 0,
      "the {} set has no full sequence of {} tokens; use a shorter --seq-length or change --split",
      s.set, length);
  const DType type = s.bf16 ? DType::bf16 : DType::f32;
  training::LossSum sum;
  comm::run_ranks(s.runtime.rank_count(), [&](comm::Group& world) {
    Runtime runtime(s.runtime.device_value(), s.runtime.threads_per_rank());
    const auto model = training::load_model(directory, config, runtime, type, 0);
    const training::StepOptions options{.vocabulary = config.vocab_size,
                                        .positions = config.max_position_embeddings};
    const training::LossSum mine = training::evaluate(
        *model, type, set, 0, count, s.micro_batch_size, length, world, runtime, options);
    if (world.rank() == 0) sum = mine;
  });
  const double entropy = training::unigram_entropy(set, 0, count, length);
  fmt::print("{} set: {} tokens of {} sequences\n", s.set, static_cast<int64_t>(sum.tokens), count);
  fmt::print("loss {:.4f} nats a token | perplexity {:.2f}\n", sum.mean(), std::exp(sum.mean()));
  fmt::print("unigram entropy of the same tokens: {:.4f} nats; the loss is {:.1f}% {} it\n",
             entropy, 100 * std::abs(1 - sum.mean() / entropy),
             sum.mean() < entropy ? "below" : "above");
  return 0;
}

}  // namespace megatron::cli
