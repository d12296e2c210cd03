#include "training/derived_settings.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/machine_limits.h"

namespace megatron::training {
namespace {

class Describer {
 public:
  explicit Describer(const Derivation& derivation)
      : d_(derivation),
        given_(derivation.given),
        now_(derivation.settings),
        stages_(derivation.stages) {}

  std::vector<SettingNote> tell() {
    runtime();
    told("global-batch-size");
    told("train-iters");
    lengths();
    evaluation();
    d_.shape_source.empty() ? shape_of_flags() : shape_of_model();
    tokenizer();
    schedule();
    checkpoint();
    weights_and_biases();
    notes_.insert(notes_.end(), stages_.begin(), stages_.end());
    return std::move(notes_);
  }

 private:
  template <class Value>
  void note(std::string_view flag, const Value& value, std::string cause) {
    notes_.push_back({std::string(flag), fmt::format("{}", value), std::move(cause)});
  }

  // Lists the notes that a stage made about a setting, in the setting's place.
  void told(std::string_view flag) {
    const auto of_flag = [&](const SettingNote& note) { return note.flag == flag; };
    std::ranges::copy_if(stages_, std::back_inserter(notes_), of_flag);
    std::erase_if(stages_, of_flag);
  }

  void weights_and_biases() {
    const report::LogSettings& log = now_.log;
    const std::string cause =
        "logged for tools/wandb_import; wandb sync uploads the resulting run (docs/log.md)";
    if (log.wandb_project) note("wandb-project", *log.wandb_project, cause);
    if (log.wandb_exp_name) note("wandb-exp-name", *log.wandb_exp_name, cause);
    if (log.wandb_entity) note("wandb-entity", *log.wandb_entity, cause);
    if (log.wandb_save_dir) note("wandb-save-dir", *log.wandb_save_dir, cause);
  }

  void runtime() {
    const settings::RuntimeSettings& r = now_.runtime;
    const MachineLimits limits = machine_limits();
    told("ranks");
    for (const std::optional<SettingNote>& of_runtime :
         {r.hosts_note(), r.device_note(), r.instruction_set_note(), r.order_note(),
          r.attention_workspace_note(), r.gemm_tuning_note()})
      if (of_runtime) notes_.push_back(*of_runtime);
    if (!given_.runtime.threads || !r.launched_by.empty())
      note("threads", r.threads_per_rank(),
           fmt::format(
               "{} cores{} / {} on this machine", limits.processors,
               limits.processors_limit.empty() ? "" : fmt::format(" ({})", limits.processors_limit),
               r.ranks_here() == 1 ? "1 rank" : fmt::format("{} ranks", r.ranks_here())));
  }

  void lengths() {
    if (d_.model->facts().encoder_layers > 0 && !now_.batch.decoder_seq_length)
      note("decoder-seq-length", now_.batch.labelled_length(), "--seq-length");
  }

  void evaluation() {
    const settings::RunSettings& run = now_.run;
    told("eval-interval");
    if (!run.eval_interval && !run.skip_train) return;
    if (!run.eval_global_batch_size)
      note("eval-global-batch-size", now_.eval_batch(), "same as in training");
    if (!run.eval_micro_batch_size)
      note("eval-micro-batch-size", now_.eval_micro_batch(), "same as in training");
  }

  void shape_of_flags() {
    const models::ModelFlags& f = now_.shape;
    const models::ModelFacts& model = d_.model->facts();
    if (!f.ffn_hidden_size && !model.experts && model.feed_forward)
      note("ffn-hidden-size", model.feed_forward->width,
           f.swiglu ? fmt::format("8/3 x hidden size {}, rounded down to a multiple of 64",
                                  model.hidden_size)
                    : fmt::format("4 x hidden size {}", model.hidden_size));
    const bool heads = model.attention && !model.attention->latent;
    if (heads && !f.kv_channels)
      note("kv-channels", model.attention->head_size,
           fmt::format("hidden size {} / {} heads", model.hidden_size, model.attention->heads));
    if (heads && !f.group_query_attention)
      note("num-query-groups", model.attention->key_heads,
           f.num_query_groups == 1
               ? "without --group-query-attention every head has its own keys and values"
               : fmt::format("--num-query-groups {} has no effect without --group-query-attention",
                             f.num_query_groups));
    if (!f.max_position_embeddings)
      note("max-position-embeddings", *now_.batch.seq_length, "--seq-length");
    const auto dropout = [&](const char* flag, bool given, double value) {
      if (!given && value == 0)
        note(flag, 0,
             fmt::format("a config.json of type {} cannot represent this dropout; --model-family "
                         "megatron can",
                         model.family));
    };
    dropout("hidden-dropout", f.hidden_dropout.has_value(), model.hidden_dropout);
    dropout("attention-dropout", f.attention_dropout.has_value(), model.attention_dropout);
    if (f.vocab_size && *f.vocab_size != model.vocab_size)
      note("vocab-size", model.vocab_size,
           fmt::format("the tokenizer has more tokens than --vocab-size {}", *f.vocab_size));
  }

  void shape_of_model() {
    const models::ModelFlags& f = given_.shape;
    const models::ModelFacts& model = d_.model->facts();
    const std::string source = "config.json of " + d_.shape_source;
    note("model-config", d_.shape_source, model.summary());
    if (d_.grown)
      note("vocab-size", model.vocab_size,
           fmt::format("the tokenizer has more tokens than {}", d_.shape_source));
    if (!f.hidden_dropout) note("hidden-dropout", model.hidden_dropout, source);
    if (!f.attention_dropout) note("attention-dropout", model.attention_dropout, source);
    if (model.init_std != models::ModelFacts{}.init_std)
      note("init-method-std", model.init_std, source);
    if (now_.checkpoint.upcycle) {
      note("moe-ffn-hidden-size", model.experts->each.width,
           "--moe-upcycling-granularity: one part of the dense model's width");
    } else if (now_.checkpoint.use_checkpoint_args &&
               (f.vocab_size || !f.first_shape_flag().empty())) {
      const std::string different = overridden(f);
      if (!different.empty())
        note("use-checkpoint-args", true,
             fmt::format("{} overrides the given flags: {}", source, different));
    }
  }

  std::string overridden(const models::ModelFlags& flags) const {
    try {
      const auto [own, stated] = models::disagreement(d_.model, flags);
      return resume::differences(own, stated);
    } catch (const Error& error) {  // the flags do not define a valid model
      return error.what();
    }
  }

  void tokenizer() {
    const settings::DataSettings& now = now_.data;
    told("tokenizer-model");
    const std::optional<std::string> type = now.type_by_flags();
    if (!now.tokenizer_type && type)
      note("tokenizer-type", *type,
           *type == "NullTokenizer" ? "--tokenizer-model is not given"
           : now.merge_file         ? "--vocab-file and --merge-file"
                                    : "--vocab-file");
    if (type == "NullTokenizer" && now.tiktoken_pattern)
      note("tiktoken-pattern", "none", "NullTokenizer does not tokenize text");
    const bool counted = d_.shape_source.empty() && !now_.shape.vocab_size;
    if (counted) note("vocab-size", d_.model->vocab_size(), "vocabulary size of the tokenizer");
  }

  void schedule() {
    const settings::OptimizerSettings& o = now_.optimizer;
    const settings::BatchSettings& b = now_.batch;
    if (d_.resumed != nullptr) {
      schedule_of_checkpoint(o.learning_rate(b), o.decay(b));
      if (now_.checkpoint.use_checkpoint_scheduler) return;
    }
    if (!o.lr) return;  // --lr is optional for a plan
    // The run has no end if neither flag is given.
    const bool ends = given_.batch.train_iters || given_.batch.train_samples || given_.batch.epochs;
    const bool extended = b.extend_to_iters && b.schedule_extended;
    const bool decays = o.lr_decay_style != optim::DecayStyle::constant;
    if (ends && decays && !o.lr_decay_iters && !o.lr_decay_samples) {
      if (b.train_samples) {
        note("lr-decay-samples", b.scheduled_samples(),
             extended ? "--extend-to-iters" : "--train-samples");
      } else {
        note("lr-decay-iters", b.scheduled_iters(),
             extended   ? "--extend-to-iters"
             : b.epochs ? "--epochs"
                        : "--train-iters");
      }
    }
    if (ends && o.lr_warmup_fraction) note_warmup(o.learning_rate(b));
    if (o.start_weight_decay.has_value() != o.end_weight_decay.has_value())
      note(o.start_weight_decay ? "end-weight-decay" : "start-weight-decay", o.weight_decay,
           "--weight-decay");
    if (o.decoupled_lr && !o.decoupled_min_lr) note("decoupled-min-lr", o.min_lr, "--min-lr");
  }

  // Rounded to a whole number in the unit of the run.
  void note_warmup(const optim::LearningRate& typed) {
    const settings::BatchSettings& b = now_.batch;
    const auto samples = static_cast<int64_t>(typed.warmup);
    note(b.train_samples ? "lr-warmup-samples" : "lr-warmup-iters",
         b.train_samples ? samples : b.schedule.iterations_within(samples),
         fmt::format("{} x {} decay samples = {} samples", *now_.optimizer.lr_warmup_fraction,
                     typed.decay, typed.warmup));
  }

  // If the command line's schedule applies, it is listed among the changes (setting_changes.h).
  void schedule_of_checkpoint(const optim::LearningRate& rate, const optim::WeightDecay& decay) {
    if (!now_.checkpoint.use_checkpoint_scheduler) return;
    for (const resume::ScheduleDifference& d :
         resume::schedule_differences(*d_.resumed, rate, decay))
      note(d.setting, d.saved,
           fmt::format("--use-checkpoint-opt-param-scheduler: from {}, instead of {}",
                       d_.resumed_from, d.now));
  }

  void checkpoint() {
    const settings::CheckpointSettings& c = now_.checkpoint;
    for (const char* flag : {"model", "load", "finetune"}) told(flag);
    if (c.save_retain_interval && !c.save_keep) note("save-keep", 1, "--save-retain-interval");
    if (d_.resumed != nullptr && d_.resumed->seed != now_.runtime.seed)
      note("seed", d_.resumed->seed,
           fmt::format("dropout continues with the seed of {} (with --no-load-rng: --seed {})",
                       d_.resumed_from, now_.runtime.seed));
    if (c.save && !now_.log.log_jsonl)
      note("log-jsonl", *c.save + "/log.jsonl", "in the --save folder");
  }

  const Derivation& d_;
  const settings::TrainSettings &given_, &now_;
  std::vector<SettingNote> stages_, notes_;
};

}  // namespace

std::vector<SettingNote> derived_settings(const Derivation& derivation) {
  return Describer(derivation).tell();
}

}  // namespace megatron::training
