#include "settings/optimizer_settings.h"

#include "base/error.h"

namespace megatron::settings {

void OptimizerSettings::fields(Fields& f) {
  f.begin_group("optimizer");
  add_rule_fields(f);
  f.add("lr", &lr, "peak learning rate").in_short_help();
  f.add("min-lr", &min_lr, "learning rate after the decay").in_short_help();
  f.add_enum<optim::DecayStyle>("lr-decay-style", &lr_decay_style,
                                {{"constant", optim::DecayStyle::constant},
                                 {"linear", optim::DecayStyle::linear},
                                 {"cosine", optim::DecayStyle::cosine},
                                 {"inverse-square-root", optim::DecayStyle::inverse_square_root},
                                 {"WSD", optim::DecayStyle::wsd}},
                                "how the learning rate decays after the warm-up; WSD: constant, "
                                "then decays over the last --lr-wsd-decay-iters")
      .in_short_help();
  f.add_enum<optim::WsdStyle>("lr-wsd-decay-style", &lr_wsd_decay_style,
                              {{"exponential", optim::WsdStyle::exponential},
                               {"linear", optim::WsdStyle::linear},
                               {"cosine", optim::WsdStyle::cosine},
                               {"minus_sqrt", optim::WsdStyle::minus_sqrt}},
                              "shape of the final decay of WSD");
  f.add("lr-wsd-decay-iters", &lr_wsd_decay_iters,
        "steps of WSD's final decay, which ends at --lr-decay-iters");
  f.add("lr-wsd-decay-samples", &lr_wsd_decay_samples,
        "samples of WSD's final decay, which ends at --lr-decay-samples");
  f.add("lr-decay-iters", &lr_decay_iters,
        "steps until --min-lr is reached; default --train-iters");
  f.add("lr-decay-samples", &lr_decay_samples,
        "samples until --min-lr is reached; default --train-samples if given");
  f.add("lr-warmup-iters", &lr_warmup_iters, "steps of linear warm-up").in_short_help();
  f.add("lr-warmup-samples", &lr_warmup_samples, "samples of linear warm-up");
  f.add("lr-warmup-fraction", &lr_warmup_fraction, "warm-up as a fraction of --lr-decay-iters");
  f.add("lr-warmup-init", &lr_warmup_init, "learning rate at the first step of the warm-up")
      .of([this] {
        const bool warms_up =
            lr_warmup_fraction.value_or(0) > 0 || lr_warmup_iters != 0 || lr_warmup_samples != 0;
        return warms_up ? "" : "the run has no warm-up";
      });
  f.add("decoupled-lr", &decoupled_lr,
        "peak learning rate of the embedding and output layer; default --lr");
  f.add("decoupled-min-lr", &decoupled_min_lr,
        "learning rate of the embedding and output layer after the decay, with --decoupled-lr; "
        "default --min-lr");
  f.add("weight-decay", &weight_decay, "weight decay; not applied to norms and biases")
      .in_short_help()
      .of([this] {
        return start_weight_decay && end_weight_decay
                   ? "--start-weight-decay and --end-weight-decay are given"
                   : "";
      });
  f.add("start-weight-decay", &start_weight_decay,
        "weight decay at the start; default --weight-decay");
  f.add("end-weight-decay", &end_weight_decay, "weight decay at the end; default --weight-decay");
  f.add_enum<optim::DecayIncrease>("weight-decay-incr-style", &weight_decay_increase,
                                   {{"constant", optim::DecayIncrease::constant},
                                    {"linear", optim::DecayIncrease::linear},
                                    {"cosine", optim::DecayIncrease::cosine}},
                                   "schedule of the weight decay from its start to its end value");
  f.add("clip-grad", &config.clip_grad, "clip gradients to this global L2 norm; 0: no clipping")
      .in_short_help();
  f.add("freeze", &freeze,
        "parameters that keep their values, by patterns of their names in checkpoints, such as "
        "'model.layers.[0-3].*': they have no gradient and no optimizer state")
      .in_short_help();
  name_modes(f);
}

void OptimizerSettings::name_modes(Fields& f) const {
  using optim::DecayStyle;
  const auto style = [now = f.find("lr-decay-style")->get] {
    return "--lr-decay-style is " + now();
  };
  f.of({"lr-wsd-decay-style", "lr-wsd-decay-iters", "lr-wsd-decay-samples"},
       [this, style] { return lr_decay_style == DecayStyle::wsd ? "" : style(); });
  f.of({"min-lr", "decoupled-min-lr"},
       [this, style] { return lr_decay_style == DecayStyle::constant ? style() : ""; });
  f.of({"lr-decay-iters", "lr-decay-samples"}, [this, style] {
    return lr_decay_style == DecayStyle::constant && !lr_warmup_fraction ? style() : "";
  });
}

Fields OptimizerSettings::rule_fields() {
  Fields f;
  add_rule_fields(f);
  return f;
}

void OptimizerSettings::add_rule_fields(Fields& f) {
  using optim::Method;
  f.add_enum<Method>("optimizer", &config.method,
                     {{"adam", Method::adam},
                      {"sgd", Method::sgd},
                      {"lion", Method::lion},
                      {"muon", Method::muon}},
                     "update rule; adam is AdamW")
      .in_short_help();
  f.add("adam-beta1", &config.adam_beta1, "Adam's beta1, the decay of the first moment");
  f.add("adam-beta2", &config.adam_beta2, "Adam's beta2, the decay of the second moment");
  f.add("adam-eps", &config.adam_eps, "epsilon added to the root of the second moment");
  const std::vector<std::pair<std::string, DType>> types = {
      {"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp8", DType::u8}};
  f.add_enum<DType>("exp-avg-dtype", &config.exp_avg_type, types,
                    "data type of Adam's first moment");
  f.add_enum<DType>("exp-avg-sq-dtype", &config.exp_avg_sq_type, types,
                    "data type of Adam's second moment");
  f.add("sgd-momentum", &config.sgd_momentum, "momentum of SGD");
  f.add("lion-beta1", &config.lion_beta1,
        "Lion's beta1: weight of the momentum in the update's "
        "sign");
  f.add("lion-beta2", &config.lion_beta2, "Lion's beta2: decay of the momentum");
  add_muon_fields(f);
  const auto of = [&](const std::vector<std::string>& flags, Method method) {
    f.of(flags, [this, method, now = f.find("optimizer")->get,
                 scalar = f.find("muon-scalar-optimizer")->get] {
      if (config.uses(method)) return std::string();
      const bool muon = config.method == Method::muon && method != Method::sgd;
      return "--optimizer is " + now() + (muon ? " with --muon-scalar-optimizer " + scalar() : "");
    });
  };
  of({"adam-beta1", "adam-beta2", "adam-eps"}, Method::adam);
  of({"sgd-momentum"}, Method::sgd);
  of({"lion-beta1", "lion-beta2"}, Method::lion);
  of({"muon-momentum", "muon-nesterov", "muon-no-split-qkv", "muon-scale-mode",
      "muon-extra-scale-factor", "muon-coefficient-type", "muon-num-ns-steps",
      "muon-fp32-matmul-prec", "muon-scalar-optimizer"},
     Method::muon);
}

void OptimizerSettings::add_muon_fields(Fields& f) {
  using optim::MuonScale, optim::NewtonSchulz, optim::ProductPrecision;
  optim::MuonConfig& m = config.muon;
  f.add("muon-momentum", &m.momentum, "Muon: decay of the momentum");
  f.add_switch("muon-nesterov", &m.nesterov, true, "Muon: Nesterov's form of the momentum");
  f.add_switch("muon-no-split-qkv", &m.split_qkv, false,
               "Muon: orthogonalize q, k and v as one matrix, not separately");
  f.add_enum<MuonScale>("muon-scale-mode", &m.scale,
                        {{"spectral", MuonScale::spectral},
                         {"unit_rms_norm", MuonScale::unit_rms_norm},
                         {"shape_scaling", MuonScale::shape_scaling}},
                        "Muon: scale of the orthogonalized M x N update: sqrt(max(M, N)), sqrt(M "
                        "/ N) or sqrt(max(1, M / N))");
  f.add("muon-extra-scale-factor", &m.extra_scale, "Muon: extra scale factor of the update");
  f.add_enum<NewtonSchulz>("muon-coefficient-type", &m.coefficients,
                           {{"simple", NewtonSchulz::simple},
                            {"quintic", NewtonSchulz::quintic},
                            {"polar_express", NewtonSchulz::polar_express},
                            {"cans", NewtonSchulz::cans},
                            {"aol", NewtonSchulz::aol}},
                           "Muon: coefficients of the Newton-Schulz iterations");
  f.add("muon-num-ns-steps", &m.iterations, "Muon: Newton-Schulz iterations");
  f.add_enum<ProductPrecision>(
      "muon-fp32-matmul-prec", &m.precision,
      {{"low", ProductPrecision::low},
       {"medium", ProductPrecision::medium},
       {"high", ProductPrecision::high},
       {"highest", ProductPrecision::highest}},
      "Muon: low runs the whole iteration in bf16, medium rounds the inputs of each matmul to "
      "bf16, high and highest compute in fp32");
  f.add_enum<optim::Method>("muon-scalar-optimizer", &config.muon_scalar,
                            {{"adam", optim::Method::adam}, {"lion", optim::Method::lion}},
                            "Muon: optimizer for the embedding, the output layer and all "
                            "non-matrix parameters");
}

// Uses the unit of the run, in which the flags are given.
void OptimizerSettings::check_warmup(const BatchSettings& batch) const {
  const bool by_samples = batch.train_samples.has_value();
  const std::string unit = by_samples ? "samples" : "iters";
  const int64_t warmup = by_samples ? lr_warmup_samples : lr_warmup_iters;
  const std::optional<int64_t>& given = by_samples ? lr_decay_samples : lr_decay_iters;
  const int64_t decay =
      given.value_or(by_samples ? batch.scheduled_samples() : batch.scheduled_iters());
  MG_CHECK(decay > 0, "--lr-decay-{} is {}; it must be positive", unit, decay);
  const int64_t most = by_samples ? INT64_MAX : int64_t{1} << 31;
  MG_CHECK(warmup >= 0 && warmup <= most, "--lr-warmup-{} is {}; it must lie in [0, {}]", unit,
           warmup, most);
  MG_CHECK(warmup < decay,
           "--lr-warmup-{} is {}, but the learning rate decays over {} {} (--{}): the warm-up must "
           "be shorter; lower the warm-up or raise the decay",
           unit, warmup, decay, by_samples ? "samples" : "iterations",
           given          ? "lr-decay-" + unit
           : batch.epochs ? "epochs"
                          : "train-" + unit);
}

optim::LearningRate OptimizerSettings::learning_rate(const BatchSettings& batch) const {
  MG_CHECK(lr.has_value(), "--lr is needed");
  check_warmup(batch);
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
                   : lr_decay_iters ? samples(*lr_decay_iters, "lr-decay-iters")
                                    : static_cast<double>(batch.scheduled_samples());
  schedule.warmup = lr_warmup_fraction       ? *lr_warmup_fraction * schedule.decay
                    : lr_warmup_samples != 0 ? static_cast<double>(lr_warmup_samples)
                                             : samples(lr_warmup_iters, "lr-warmup-iters");
  schedule.style = lr_decay_style;
  schedule.wsd_style = lr_wsd_decay_style;
  if (lr_decay_style == optim::DecayStyle::wsd) schedule.wsd = wsd_samples(batch);
  if (decoupled_lr) schedule.decoupled = {*decoupled_lr, decoupled_min_lr.value_or(min_lr)};
  schedule.check();
  return schedule;
}

// Length of the final decay before --lr-decay-iters, in samples.
double OptimizerSettings::wsd_samples(const BatchSettings& batch) const {
  if (lr_wsd_decay_samples) return static_cast<double>(*lr_wsd_decay_samples);
  const int64_t last = lr_decay_iters.value_or(batch.scheduled_iters());
  MG_CHECK(*lr_wsd_decay_iters > 0, "--lr-wsd-decay-iters is {}; it must be positive",
           *lr_wsd_decay_iters);
  MG_CHECK(*lr_wsd_decay_iters <= last,
           "--lr-wsd-decay-iters is {}; it must lie in [1, {}], the steps until --min-lr",
           *lr_wsd_decay_iters, last);
  return static_cast<double>(batch.schedule.samples_after(last) -
                             batch.schedule.samples_after(last - *lr_wsd_decay_iters));
}

optim::WeightDecay OptimizerSettings::decay(const BatchSettings& batch) const {
  const optim::WeightDecay schedule{.start = start_weight_decay.value_or(weight_decay),
                                    .end = end_weight_decay.value_or(weight_decay),
                                    .steps = batch.scheduled_samples(),
                                    .style = weight_decay_increase};
  schedule.check();
  return schedule;
}

}  // namespace megatron::settings
