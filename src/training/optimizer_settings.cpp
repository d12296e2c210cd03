#include "training/optimizer_settings.h"

#include "base/error.h"

namespace megatron::training {

void OptimizerSettings::fields(Fields& f) {
  f.add_enum<optim::Method>("optimizer", &config.method,
                            {{"adam", optim::Method::adam}, {"sgd", optim::Method::sgd}},
                            "adam is AdamW");
  f.add("lr", &lr, "highest learning rate");
  f.add("min-lr", &min_lr, "learning rate after the decay");
  f.add_enum<optim::DecayStyle>("lr-decay-style", &lr_decay_style,
                                {{"constant", optim::DecayStyle::constant},
                                 {"linear", optim::DecayStyle::linear},
                                 {"cosine", optim::DecayStyle::cosine},
                                 {"inverse-square-root", optim::DecayStyle::inverse_square_root}},
                                "how the learning rate falls after the warm-up");
  f.add("lr-decay-iters", &lr_decay_iters,
        "steps until --min-lr is reached; default --train-iters");
  f.add("lr-decay-samples", &lr_decay_samples,
        "the same in samples; default --train-samples where that is given");
  f.add("lr-warmup-iters", &lr_warmup_iters, "steps of linear warm-up");
  f.add("lr-warmup-samples", &lr_warmup_samples, "the same in samples");
  f.add("lr-warmup-fraction", &lr_warmup_fraction, "warm-up as a share of --lr-decay-iters");
  f.add("lr-warmup-init", &lr_warmup_init, "learning rate at the first step of the warm-up");
  f.add("weight-decay", &weight_decay, "weight decay; none on norms and biases");
  f.add("start-weight-decay", &start_weight_decay,
        "weight decay at the start; default --weight-decay");
  f.add("end-weight-decay", &end_weight_decay, "weight decay at the end; default --weight-decay");
  f.add_enum<optim::DecayIncrease>("weight-decay-incr-style", &weight_decay_increase,
                                   {{"constant", optim::DecayIncrease::constant},
                                    {"linear", optim::DecayIncrease::linear},
                                    {"cosine", optim::DecayIncrease::cosine}},
                                   "how weight decay grows from start to end");
  f.add("clip-grad", &config.clip_grad, "largest L2 norm of all gradients; 0: no clipping");
  f.add("adam-beta1", &config.adam_beta1, "decay of the first moment");
  f.add("adam-beta2", &config.adam_beta2, "decay of the second moment");
  f.add("adam-eps", &config.adam_eps, "added to the root of the second moment");
  f.add("sgd-momentum", &config.sgd_momentum, "momentum of SGD");
}

optim::LearningRate OptimizerSettings::learning_rate(const BatchSettings& batch) const {
  MG_CHECK(lr.has_value(), "--lr is needed");
  const int warm_ups = (lr_warmup_fraction ? 1 : 0) + (lr_warmup_iters != 0 ? 1 : 0) +
                       (lr_warmup_samples != 0 ? 1 : 0);
  MG_CHECK(warm_ups <= 1,
           "of --lr-warmup-fraction {}, --lr-warmup-iters {} and --lr-warmup-samples {} only one "
           "can be given",
           lr_warmup_fraction.value_or(0), lr_warmup_iters, lr_warmup_samples);
  MG_CHECK(!lr_decay_iters || !lr_decay_samples,
           "--lr-decay-iters {} and --lr-decay-samples {} are both given; give one",
           *lr_decay_iters, *lr_decay_samples);
  MG_CHECK(!lr_warmup_fraction || (*lr_warmup_fraction >= 0 && *lr_warmup_fraction < 1),
           "--lr-warmup-fraction is {}; it must lie in [0, 1)", *lr_warmup_fraction);
  const auto samples = [&](int64_t iterations, std::string_view flag) {
    MG_CHECK(iterations >= 0, "--{} is {}; it cannot be negative", flag, iterations);
    return static_cast<double>(batch.schedule.samples_after(iterations));
  };
  optim::LearningRate schedule;
  schedule.max = *lr;
  schedule.min = min_lr;
  schedule.warmup_init = lr_warmup_init;
  schedule.decay = lr_decay_samples ? static_cast<double>(*lr_decay_samples)
                   : lr_decay_iters
                       ? samples(*lr_decay_iters, "lr-decay-iters")
                       : static_cast<double>(batch.train_samples.value_or(batch.total_samples()));
  schedule.warmup = lr_warmup_fraction       ? *lr_warmup_fraction * schedule.decay
                    : lr_warmup_samples != 0 ? static_cast<double>(lr_warmup_samples)
                                             : samples(lr_warmup_iters, "lr-warmup-iters");
  schedule.style = lr_decay_style;
  schedule.check();
  return schedule;
}

optim::WeightDecay OptimizerSettings::decay(const BatchSettings& batch) const {
  const optim::WeightDecay schedule{.start = start_weight_decay.value_or(weight_decay),
                                    .end = end_weight_decay.value_or(weight_decay),
                                    .steps = batch.train_samples.value_or(batch.total_samples()),
                                    .style = weight_decay_increase};
  schedule.check();
  return schedule;
}

}  // namespace megatron::training
