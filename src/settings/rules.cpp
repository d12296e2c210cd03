#include "settings/rules.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"

namespace megatron::settings {
namespace {

using S = TrainSettings;
using enum RuleScope;

// Values used by rules besides those of flags; false is "".
struct Derived {
  std::string_view name;
  std::string (*get)(const S&);
  std::string_view stands_for = "";  // replacement in rule_sentences()
};

std::string text(bool value) { return value ? "true" : ""; }

const std::vector<Derived> kDerived = {
    {"shape", [](const S& s) { return s.shape.first_shape_flag(); },
     "num-layers (or another flag of the shape)"},
    {"data-parallel", [](const S& s) { return fmt::format("{}", s.data_parallel()); }, "INT"},
    {"sharding", [](const S& s) { return std::string(name(s.parallel.sharding())); }, "TEXT"},
    {"frees-gradients",
     [](const S& s) {
       return text(s.data_parallel() * s.parallel.context_parallel > 1 &&
                   s.parallel.sharding() >= parallel::Sharding::gradients);
     }},
    {"sums-losses-of-ranks",
     [](const S& s) {
       return text(s.data_parallel() > 1 && s.shape.moe.training().global_aux_loss != 0);
     }},
    {"tensor-ranks-share-tokens",
     [](const S& s) {
       return text(s.parallel.tensor_parallel > 1 && !s.parallel.sequence_parallel);
     }},
    {"experts-are-split-as-layers",
     [](const S& s) {
       return text(s.parallel.expert_tensor_parallel == s.parallel.tensor_parallel);
     }},
    {"overlaps-experts",
     [](const S& s) {
       return text(s.parallel.overlap_experts && s.parallel.expert_tokens_travel());
     }},
    {"recomputes-experts",
     [](const S& s) {
       return text(s.recompute.granularity == "full" ||
                   std::ranges::find(s.recompute.modules, "moe") != s.recompute.modules.end());
     }},
    {"exchanges-on-two-levels",
     [](const S& s) {
       return text(std::ranges::find(s.parallel.context_exchange, "a2a+p2p") !=
                   s.parallel.context_exchange.end());
     }},
    {"reads-sentences", [](const S& s) { return text(s.data.reads_sentences()); }},
    {"reads-two-texts", [](const S& s) { return text(s.data.reads_two_texts()); }},
    {"trains-adapter", [](const S& s) { return text(s.adapters.any()); }},
    {"zero-bubble",
     [](const S& s) { return text(s.parallel.schedule.value_or("").starts_with("zb-")); }},
};

struct Rule {
  RuleScope scope;
  std::string_view flags;  // "a|b": violated by each one without its default value
  // The rule applies if this condition holds: "a & !b & c=d", where a flag or derived value counts
  // as true unless it has its default, and c=d compares its value.
  std::string_view when;
  // {flag}, {value}: the violating flag of `flags` and its value; {twin}: the same flag in the
  // other unit of a run's length; {lr}: the value of --lr, given or derived.
  std::string_view sentence;
};

const std::vector<Rule> kRules = {
    {flags, "moe-use-upcycling", "model-config",
     "--moe-use-upcycling needs the weights of a dense model, and --model-config {model-config} "
     "has none; give --model DIR instead"},
    {flags, "moe-use-upcycling", "!model",
     "--moe-use-upcycling needs a dense model: give its directory with --model (or --load)"},
    {flags, "train-iters", "train-samples",
     "--train-iters {train-iters} and --train-samples {train-samples} are both given; give one"},
    {flags, "train-iters|train-samples", "epochs",
     "--{flag} {value} and --epochs {epochs} are both given; give one"},
    {flags, "epochs", "!task",
     "--epochs {epochs} counts passes over the examples of --task sft, dpo, reward, classify and "
     "the like; give --train-iters or --train-samples to train on token files"},
    {flags, "epochs", "reads-sentences",
     "--epochs {epochs} counts passes over the examples of --task sft, dpo, reward, classify and "
     "the like, but --task {task} draws samples from texts; give --train-iters or --train-samples"},
    {flags, "rampup-batch-size|step-batch-size-schedule", "epochs",
     "--epochs {epochs} needs batches of one size: drop --{flag}, or give --train-samples instead"},
    {flags, "extend-to-iters", "epochs",
     "--extend-to-iters {extend-to-iters} extends a number of steps, but --epochs {epochs} is "
     "given: give --train-iters, as many as the run's log says"},
    {flags, "global-batch-size", "step-batch-size-schedule",
     "--global-batch-size {global-batch-size} and --step-batch-size-schedule are both given; give "
     "one"},
    {flags, "rampup-batch-size|decrease-batch-size-if-needed", "step-batch-size-schedule",
     "--step-batch-size-schedule cannot be combined with --{flag}: drop one"},
    {flags, "bf16", "fp16", "--bf16 and --fp16 are mutually exclusive; give one of them"},
    {flags, "fp8-format", "fp4-format",
     "--fp8-format and --fp4-format are mutually exclusive; give one of them"},
    {flags, "loss-scale", "!loss-scale=0 & !fp16",
     "--{flag} is {value}, but the loss is scaled only with --fp16: add --fp16, or drop --{flag}"},
    {flags, "initial-loss-scale|min-loss-scale|loss-scale-window|hysteresis", "!fp16",
     "--{flag} is {value}, but the loss is scaled only with --fp16: add --fp16, or drop --{flag}"},
    {flags, "initial-loss-scale|min-loss-scale|loss-scale-window|hysteresis",
     "loss-scale & !loss-scale=0",
     "--{flag} applies to a dynamic loss scale, but --loss-scale {loss-scale} is constant; give "
     "one or the other"},
    {flags, "fp4-param-gather", "no-check-for-nan-in-loss-and-grad",
     "--fp4-param-gather sends codes of 4 bits, which have no NaN, and "
     "--no-check-for-nan-in-loss-and-grad updates weights that may become NaN; give one of them"},
    {flags, "on-non-finite", "no-check-for-nan-in-loss-and-grad",
     "--on-non-finite skip needs the check that --no-check-for-nan-in-loss-and-grad turns off; "
     "give one of them"},
    {flags, "skip-train", "eval-iters=0 & !full-validation",
     "--skip-train only evaluates, but --eval-iters 0 disables evaluation; give another "
     "--eval-iters, or --full-validation"},
    {flags, "start-eval-at-iter", "!eval-interval",
     "--start-eval-at-iter needs --eval-interval: the steps between evaluations"},
    {flags, "full-validation", "!eval-interval & !skip-train",
     "--full-validation needs --eval-interval: the steps between evaluations"},
    {flags, "multiple-validation-sets", "!full-validation",
     "--multiple-validation-sets needs --full-validation"},
    {flags, "validation-set-names", "!multiple-validation-sets",
     "--validation-set-names needs --multiple-validation-sets"},
    {flags, "no-data-sharding", "dataloader-type=single",
     "--no-data-sharding applies to --dataloader-type cyclic only; drop it"},
    {flags, "sample-interval", "!sample-prompt",
     "--sample-interval and --sample-prompt TEXT belong together: how often to generate, and the "
     "prompt; give both or neither"},
    {flags, "sample-prompt", "!sample-interval",
     "--sample-interval and --sample-prompt TEXT belong together: how often to generate, and the "
     "prompt; give both or neither"},
    {flags, "mock-data|data-args-path|per-split-data-args-path", "task & !reads-sentences",
     "--{flag} names no file that --task {task} reads: give --data-path FILE, or --train-data-path "
     "and the like"},
    {flags,
     "reset-position-ids|reset-attention-mask|dataloader-inter-document-masking|eod-mask-loss",
     "task",
     "--{flag} has no effect with --task {task}, whose texts never attend to each other: leave it "
     "out"},
    {flags, "fim-data", "task",
     "--fim-data rearranges the documents that a model of next tokens reads, but --task {task} "
     "trains something else: leave one out"},
    {flags, "chat-packing|chat-truncation|chat-template", "!task",
     "--{flag} {value} has no effect without --task sft, dpo, reward, classify or the like: add "
     "it, or leave --{flag} out"},
    {flags, "chat-packing|chat-truncation|chat-template", "reads-sentences",
     "--{flag} {value} has no effect with --task {task}, which reads texts without chats: leave it "
     "out"},
    {flags, "no-calculate-per-token-loss", "task & !task=sft & !reads-two-texts",
     "--no-calculate-per-token-loss weighs the tokens of micro-batches, but the loss of --task "
     "{task} is a mean over masked tokens, words, texts or pairs: leave it out"},
    {flags, "moe-use-upcycling", "task & !task=sft & !reads-sentences & !reads-two-texts",
     "--moe-use-upcycling makes a language model that is not trained yet; train it first, then "
     "give "
     "it to --task {task}"},
    {flags, "log-entropy", "cuda-graph-impl=local",
     "--log-entropy computes the logits of a number of tokens that --cuda-graph-impl local cannot "
     "capture: drop one of them"},
    {flags, "log-entropy", "task & !task=sft & !task=dpo & !reads-sentences & !reads-two-texts",
     "--log-entropy is of next tokens, but --task {task} trains scores: leave it out"},
    {flags, "decoder-seq-length", "!reads-two-texts",
     "--decoder-seq-length {decoder-seq-length} is for --task span-corruption and the like, which "
     "train encoder-decoders: leave it out"},
    {flags, "sample-interval", "reads-two-texts",
     "--sample-interval continues a prompt, but a model of --task {task} has an encoder that reads "
     "one: leave it out"},
    {flags, "sample-interval", "task & !task=sft & !task=dpo & !reads-two-texts",
     "--sample-interval generates texts, which a model of --task {task} cannot: leave it out"},
    {flags, "labels", "!task=classify & !task=token-classification",
     "--labels names classes, which only --task classify and token-classification have: add one, "
     "or leave --labels out"},
    {flags, "doc-stride", "!task=question-answering",
     "--doc-stride {doc-stride} is of windows of contexts, which only --task question-answering "
     "has: add it, or leave --doc-stride out"},
    {flags, "input-key|target-key", "!task=seq2seq",
     "--{flag} {value} names a key of records, which only --task seq2seq reads: add it, or leave "
     "--{flag} out"},
    {flags, "chat-template", "task=seq2seq",
     "--chat-template {value} has no effect with --task seq2seq, whose texts are no chats: leave "
     "it out"},
    {flags, "chat-template", "task=token-classification",
     "--chat-template {value} has no effect with --task token-classification, whose texts are "
     "words: leave it out"},
    {flags, "chat-truncation|chat-template", "task=question-answering",
     "--{flag} {value} has no effect with --task question-answering, which divides contexts into "
     "windows: leave it out"},
    {flags, "center-rewards-coefficient", "!task=reward",
     "--center-rewards-coefficient is of the loss of --task reward: add it, or leave the "
     "coefficient out"},
    {flags, "finetune", "!model & !load",
     "--finetune starts from the weights of --model or --load, but neither is given"},
    {flags,
     "save-interval|save-keep|save-retain-interval|async-save|exit-on-save-failure|exit-signal-"
     "handler",
     "!save", "--{flag} needs --save DIR: where to write checkpoints"},
    {flags,
     "ckpt-step|exit-on-missing-checkpoint|use-checkpoint-args|no-load-optim|no-load-rng|override-"
     "opt-param-scheduler|use-checkpoint-opt-param-scheduler",
     "!load", "--{flag} needs --load DIR: where the checkpoints are"},
    {flags, "override-opt-param-scheduler", "use-checkpoint-opt-param-scheduler",
     "--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler contradict each "
     "other; drop one"},
    {flags, "profile-dir", "!profile",
     "--profile-dir {profile-dir} has no effect without --profile; add it"},
    {flags, "pretrained-checkpoint", "model",
     "--pretrained-checkpoint {pretrained-checkpoint} and --model {model} both give the weights; "
     "drop one"},
    {flags, "model-config", "model",
     "--model {model} and --model-config {model-config} both give the model; drop one"},
    {flags, "model|model-config", "shape & !moe-use-upcycling",
     "--{shape} and --{flag} {value} both give the model's shape; drop one"},
    {flags, "lr-decay-iters|lr-warmup-iters|lr-wsd-decay-iters", "train-samples",
     "--{flag} cannot be combined with --train-samples: the run counts in samples; use --{twin}"},
    {flags, "lr-decay-samples|lr-warmup-samples|lr-wsd-decay-samples", "!train-samples",
     "--{flag} needs --train-samples: otherwise the run counts in iterations; use --{twin}"},
    {flags, "lr-warmup-iters|lr-warmup-samples", "lr-warmup-fraction",
     "--lr-warmup-fraction {lr-warmup-fraction} and --{flag} {value} both set the length of the "
     "warm-up: give one"},
    {flags, "decoupled-min-lr", "!decoupled-lr",
     "--decoupled-min-lr {decoupled-min-lr} needs --decoupled-lr: add it, or drop "
     "--decoupled-min-lr"},
    {flags, "lr-decay-style", "lr-decay-style=WSD & train-samples & !lr-wsd-decay-samples",
     "--lr-decay-style WSD needs --lr-wsd-decay-samples: how long the final decay is"},
    {flags, "lr-decay-style", "lr-decay-style=WSD & !train-samples & !lr-wsd-decay-iters",
     "--lr-decay-style WSD needs --lr-wsd-decay-iters: how long the final decay is"},
    {sizes, "expert-model-parallel-size", "tensor-ranks-share-tokens",
     "--expert-model-parallel-size {value} with --tensor-model-parallel-size "
     "{tensor-model-parallel-size} needs --sequence-parallel: give it, too"},
    {sizes, "expert-tensor-parallel-size",
     "tensor-ranks-share-tokens & !experts-are-split-as-layers",
     "--expert-tensor-parallel-size {value} differs from --tensor-model-parallel-size "
     "{tensor-model-parallel-size}, which needs --sequence-parallel: give it, or leave "
     "--expert-tensor-parallel-size out"},
    {sizes, "hierarchical-context-parallel-sizes", "!exchanges-on-two-levels",
     "--hierarchical-context-parallel-sizes {value} are the levels of --cp-comm-type a2a+p2p: give "
     "that, or drop the sizes"},
    {sizes, "cp-comm-type", "exchanges-on-two-levels & !hierarchical-context-parallel-sizes",
     "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes: the number of ranks that "
     "exchange heads and the number of their groups, whose product is --context-parallel-size"},
    {parallel, "num-virtual-stages-per-pipeline-rank|pipeline-model-parallel-layout",
     "num-layers-per-virtual-pipeline-stage",
     "--num-layers-per-virtual-pipeline-stage and --{flag} both set the number of chunks per "
     "stage: drop one"},
    {parallel, "pipeline-model-parallel-layout", "num-virtual-stages-per-pipeline-rank",
     "--num-virtual-stages-per-pipeline-rank and --{flag} both set the number of chunks per stage: "
     "drop one"},
    {parallel, "decoder-first-pipeline-num-layers|decoder-last-pipeline-num-layers",
     "num-layers-per-virtual-pipeline-stage",
     "--num-layers-per-virtual-pipeline-stage {num-layers-per-virtual-pipeline-stage} cannot be "
     "combined with --{flag}, which makes stages differ: use "
     "--num-virtual-stages-per-pipeline-rank"},
    {parallel, "decoder-first-pipeline-num-layers|decoder-last-pipeline-num-layers",
     "pipeline-schedule=zb-v",
     "--pipeline-schedule zb-v keeps both ends of the model on the first stage, so --{flag} does "
     "not determine the placement: use --pipeline-model-parallel-layout"},
    {parallel, "use-megatron-fsdp|use-custom-fsdp", "use-torch-fsdp2",
     "--use-torch-fsdp2 and --{flag} both shard the parameters: drop one"},
    {parallel, "use-distributed-optimizer", "use-torch-fsdp2",
     "--use-torch-fsdp2 also shards the optimizer state and cannot be combined with "
     "--use-distributed-optimizer: drop one"},
    {parallel, "data-parallel-sharding-strategy", "use-torch-fsdp2 & !sharding=optim_grads_params",
     "--use-torch-fsdp2 means --data-parallel-sharding-strategy optim_grads_params, but {value} is "
     "given: drop one of them"},
    {parallel, "use-distributed-optimizer",
     "sharding=no_shard & !use-megatron-fsdp & !use-custom-fsdp",
     "--data-parallel-sharding-strategy no_shard and --use-distributed-optimizer contradict each "
     "other: drop one"},
    {parallel, "num-distributed-optimizer-instances", "sharding=no_shard",
     "--num-distributed-optimizer-instances {value} needs --use-distributed-optimizer or a "
     "--data-parallel-sharding-strategy other than no_shard"},
    {parallel, "overlap-param-gather", "sharding=no_shard",
     "--overlap-param-gather needs parameters to gather: give --use-distributed-optimizer or a "
     "--data-parallel-sharding-strategy other than no_shard"},
    {parallel, "overlap-param-gather", "!overlap-grad-reduce",
     "--overlap-param-gather needs --overlap-grad-reduce: give it, too"},
    {parallel, "ddp-bucket-size", "ddp-num-buckets",
     "--ddp-bucket-size {ddp-bucket-size} and --ddp-num-buckets {ddp-num-buckets} both set the "
     "size of a bucket: drop one"},
    {memory, "recompute-activations", "recompute-granularity=full",
     "--recompute-activations means --recompute-granularity selective, but full is given; drop one "
     "of them"},
    {memory, "recompute-method|recompute-num-layers|distribute-saved-activations",
     "!recompute-activations & !recompute-granularity",
     "--{flag} applies to --recompute-granularity full, but nothing is recomputed; add "
     "--recompute-granularity full, or drop --{flag}"},
    {memory, "recompute-method|recompute-num-layers|distribute-saved-activations",
     "!recompute-granularity=full",
     "--{flag} applies to --recompute-granularity full, but selective is given; use full, or drop "
     "--{flag}"},
    {memory, "recompute-modules", "recompute-granularity=full",
     "--recompute-modules chooses parts of layers, but --recompute-granularity full recomputes "
     "whole layers; use selective, or drop --recompute-modules"},
    {memory, "recompute-modules", "!recompute-activations & !recompute-granularity",
     "--recompute-modules chooses parts of layers, but nothing is recomputed; add "
     "--recompute-granularity selective, or drop --recompute-modules"},
    {memory, "distribute-saved-activations", "tensor-model-parallel-size=1",
     "--distribute-saved-activations shards saved activations over tensor-parallel ranks, but "
     "--tensor-model-parallel-size is 1; raise it, or drop the flag"},
    {memory, "distribute-saved-activations", "sequence-parallel",
     "--distribute-saved-activations cannot be combined with --sequence-parallel, which already "
     "shards the layers' inputs; drop it"},
    {memory, "cpu-offloading-num-layers", "recompute-granularity",
     "--cpu-offloading-num-layers {value} offloads saved activations, but recomputation does not "
     "save them; drop it, or --recompute-granularity and --recompute-activations"},
    {memory, "cpu-offloading-num-layers", "recompute-activations",
     "--cpu-offloading-num-layers {value} offloads saved activations, but recomputation does not "
     "save them; drop it, or --recompute-granularity and --recompute-activations"},
    {memory, "mlp-chunks-for-training", "zero-bubble & sharding=optim_grads_params",
     "--mlp-chunks-for-training {value} computes weight gradients from the parameters again, but "
     "with --pipeline-schedule {pipeline-schedule} and --data-parallel-sharding-strategy "
     "optim_grads_params they are dropped before; use 1f1b, interleaved or optim_grads, or leave "
     "one out"},
    {memory, "mlp-chunks-for-training", "trains-adapter",
     "--mlp-chunks-for-training {value} computes feed-forward blocks without their adapters, but "
     "--lora-rank or --adapter is given; use --recompute-granularity selective "
     "--recompute-modules mlp to save memory, or leave one out"},
    {layout, "overlap-moe-expert-parallel-comm", "overlaps-experts & zero-bubble",
     "--{flag} pairs a forward pass with a backward pass, which --pipeline-schedule "
     "{pipeline-schedule} does not do; use 1f1b or interleaved"},
    {layout, "overlap-moe-expert-parallel-comm", "overlaps-experts & recomputes-experts",
     "--{flag} stops forward and backward passes within layers, which --recompute-granularity full "
     "and --recompute-modules moe run as a whole; recompute other modules (moe_act, core_attn, "
     "mlp, layernorm), or drop one of them"},
    {layout, "overlap-moe-expert-parallel-comm", "overlaps-experts & cpu-offloading-num-layers",
     "--{flag} cannot be combined with --cpu-offloading-num-layers, which expects layers one after "
     "another; drop one of them"},
    {layout, "overlap-moe-expert-parallel-comm", "overlaps-experts & sharding=optim_grads_params",
     "--{flag} works on layers of two micro-batches at once, but with "
     "--data-parallel-sharding-strategy optim_grads_params only the parameters of one layer are "
     "gathered at a time; use optim_grads, or drop one of them"},
    {layout, "optimizer", "optimizer=muon & !sharding=no_shard",
     "--optimizer muon needs whole matrices, but --use-distributed-optimizer or "
     "--data-parallel-sharding-strategy {sharding} shards them: drop the flag, or use adam, sgd or "
     "lion"},
    {graphs, "cuda-graph-impl", "overlaps-experts",
     "--cuda-graph-impl local captures a forward or backward pass as a whole, but with "
     "--overlap-moe-expert-parallel-comm the passes of two micro-batches alternate; drop one of "
     "them"},
    {graphs, "cuda-graph-impl", "zero-bubble",
     "--cuda-graph-impl local captures the backward of a micro-batch as a whole, but "
     "--pipeline-schedule {pipeline-schedule} computes weight gradients separately; use 1f1b or "
     "interleaved, or drop one of them"},
    {graphs, "cuda-graph-impl", "frees-gradients",
     "--cuda-graph-impl local needs gradients and parameters at fixed addresses, but with "
     "--data-parallel-sharding-strategy {sharding} they are allocated and freed in every "
     "micro-batch; use optim, or --cuda-graph-impl none"},
    {graphs, "cuda-graph-impl", "cpu-offloading-num-layers",
     "--cuda-graph-impl local captures the device's work only, but --cpu-offloading-num-layers "
     "{cpu-offloading-num-layers} moves activations to host memory; drop one of them"},
    {graphs, "cuda-graph-impl", "sums-losses-of-ranks",
     "--cuda-graph-impl local cannot capture messages between data-parallel ranks, but "
     "--moe-router-load-balancing-type global_aux_loss sums the counts of {data-parallel} of them "
     "in every micro-batch; use --cuda-graph-impl none, or aux_loss"},
};

// Replaces each name in braces by the result of `of`.
std::string filled(std::string_view sentence,
                   const std::function<std::string(std::string_view name)>& of) {
  std::string text;
  for (size_t open; (open = sentence.find('{')) != sentence.npos;) {
    const size_t close = sentence.find('}', open);
    text += std::string(sentence.substr(0, open)) + of(sentence.substr(open + 1, close - open - 1));
    sentence.remove_prefix(close + 1);
  }
  return text + std::string(sentence);
}

std::vector<std::string_view> parts_of(std::string_view list, std::string_view mark) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = list.find(mark)) != list.npos; list.remove_prefix(end + mark.size()))
    parts.push_back(list.substr(0, end));
  parts.push_back(list);
  return parts;
}

// "lr-decay-samples" for "lr-decay-iters", and the other way round.
std::string twin(std::string_view flag) {
  const std::string stem(flag.substr(0, flag.rfind('-')));
  return stem + (flag.ends_with("-iters") ? "-samples" : "-iters");
}

const Derived* derived(std::string_view name) {
  const auto found = std::ranges::find(kDerived, name, &Derived::name);
  return found == kDerived.end() ? nullptr : &*found;
}

// Settings by the names used in rules.
class Named {
 public:
  Named() : fields_(settings.fields()) {
    for (const Field& field : fields_.all()) by_name_.emplace(field.name, &field);
  }

  const Field& field(std::string_view name) const { return *by_name_.at(name); }
  std::string value(std::string_view name) const {
    const Derived* const one = derived(name);
    return one != nullptr ? one->get(settings) : field(name).get();
  }
  bool is_set(std::string_view name) const {
    return value(name) != (derived(name) != nullptr ? "" : field(name).initial);
  }
  bool holds(std::string_view when) const {
    return std::ranges::all_of(parts_of(when, " & "), [this](std::string_view term) {
      const bool wanted = !term.starts_with('!');
      if (!wanted) term.remove_prefix(1);
      const size_t equal = term.find('=');
      return wanted == (equal == term.npos
                            ? is_set(term)
                            : value(term.substr(0, equal)) == term.substr(equal + 1));
    });
  }

  S settings;

 private:
  Fields fields_;  // fields of `settings`, whose values were defaults
  std::map<std::string_view, const Field*> by_name_;
};

}  // namespace

void check_rules(RuleScope scope, const TrainSettings& settings) {
  static thread_local Named named;  // reused, since plans check thousands of times
  named.settings = settings;
  for (const Rule& rule : kRules) {
    if (rule.scope != scope) continue;
    const auto flags = parts_of(rule.flags, "|");
    const auto set = std::ranges::find_if(flags, [&](auto flag) { return named.is_set(flag); });
    if (set == flags.end() || !named.holds(rule.when)) continue;
    fail("{}", filled(rule.sentence, [&](std::string_view name) {
           if (name == "flag") return std::string(*set);
           return name == "twin" ? twin(*set) : named.value(name == "value" ? *set : name);
         }));
  }
}

std::vector<std::string> rule_sentences() {
  const Named named;
  std::vector<std::string> sentences;
  for (const Rule& rule : kRules) {
    const auto flags = parts_of(rule.flags, "|");
    const auto each = [&](auto&& text_of) {
      std::string all;
      for (const std::string_view flag : flags)
        all += (all.empty() ? "" : flag == flags.back() ? " or --" : ", --") + text_of(flag);
      return all;
    };
    std::string sentence = filled(rule.sentence, [&](std::string_view name) {
      if (name == "flag") return each([](std::string_view flag) { return std::string(flag); });
      if (name == "twin") return each(twin);
      if (const Derived* one = derived(name)) return std::string(one->stands_for);
      return named.field(name == "value" ? flags[0] : name).type;
    });
    if (std::ranges::find(sentences, sentence) == sentences.end())
      sentences.push_back(std::move(sentence));
  }
  return sentences;
}

}  // namespace megatron::settings
