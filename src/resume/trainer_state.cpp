#include "resume/trainer_state.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/version.h"
#include "checkpoint/checkpoint_directory.h"

namespace megatron::resume {
namespace {

constexpr std::array kRateStyles = {
    std::pair{optim::DecayStyle::constant, "constant"},
    std::pair{optim::DecayStyle::linear, "linear"}, std::pair{optim::DecayStyle::cosine, "cosine"},
    std::pair{optim::DecayStyle::inverse_square_root, "inverse-square-root"},
    std::pair{optim::DecayStyle::wsd, "WSD"}};
constexpr std::array kWsdStyles = {std::pair{optim::WsdStyle::exponential, "exponential"},
                                   std::pair{optim::WsdStyle::linear, "linear"},
                                   std::pair{optim::WsdStyle::cosine, "cosine"},
                                   std::pair{optim::WsdStyle::minus_sqrt, "minus_sqrt"}};
constexpr std::array kDecayStyles = {std::pair{optim::DecayIncrease::constant, "constant"},
                                     std::pair{optim::DecayIncrease::linear, "linear"},
                                     std::pair{optim::DecayIncrease::cosine, "cosine"}};

template <class Styles, class Style>
std::string style_name(const Styles& styles, Style style) {
  for (const auto& [value, name] : styles)
    if (value == style) return name;
  return "";
}

// Typed reading; errors name the file and the key.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    MG_CHECK(json.is_object(), "{} is not a JSON object; the checkpoint is damaged", where_);
  }

  int64_t count(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_integer() && value.as_integer() >= 0,
             "{}: {} is {}; expected a non-negative integer", where_, key, value.dump());
    return value.as_integer();
  }
  int64_t integer(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_integer(), "{}: {} is {}; expected an integer", where_, key, value.dump());
    return value.as_integer();
  }
  const std::string& where() const { return where_; }
  bool has(std::string_view key) const { return json_.contains(key); }
  double number(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_number() && std::isfinite(value.as_number()),
             "{}: {} is {}; expected a number", where_, key, value.dump());
    return value.as_number();
  }
  std::string text(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_string(), "{}: {} is {}; expected a string", where_, key, value.dump());
    return value.as_string();
  }
  bool truth(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_bool(), "{}: {} is {}; expected true or false", where_, key, value.dump());
    return value.as_bool();
  }
  template <class Styles>
  auto style(std::string_view key, const Styles& styles) const {
    const std::string wanted = text(key);
    for (const auto& [value, name] : styles)
      if (wanted == name) return value;
    fail("{}: {} is '{}', which this version does not support", where_, key, wanted);
  }
  const Json& object(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_object(), "{}: {} is {}; expected an object", where_, key, value.dump());
    return value;
  }
  Reader inside(std::string_view key) const {
    return {object(key), fmt::format("{}: {}", where_, key)};
  }

 private:
  const Json& at(std::string_view key) const {
    const Json* value = json_.find(key);
    MG_CHECK(value != nullptr,
             "{} has no {}; the checkpoint is damaged, or it is not a "
             "checkpoint",
             where_, key);
    return *value;
  }
  const Json& json_;
  std::string where_;
};

void add_difference(std::string& text, std::string_view what, const std::string& saved,
                    const std::string& now) {
  if (saved == now) return;
  text += fmt::format("{}{} {} in the checkpoint and {} now", text.empty() ? "" : "; ", what, saved,
                      now);
}

Json schedule_json(const optim::LearningRate& r, const optim::WeightDecay& d) {
  Json::Object json{{"lr", r.max},
                    {"min_lr", r.min},
                    {"lr_warmup_init", r.warmup_init},
                    {"warmup_samples", r.warmup},
                    {"decay_samples", r.decay},
                    {"lr_decay_style", style_name(kRateStyles, r.style)},
                    {"start_weight_decay", d.start},
                    {"end_weight_decay", d.end},
                    {"weight_decay_samples", d.steps},
                    {"weight_decay_incr_style", style_name(kDecayStyles, d.style)}};
  if (r.style == optim::DecayStyle::wsd) {
    json.emplace_back("lr_wsd_decay_style", style_name(kWsdStyles, r.wsd_style));
    json.emplace_back("wsd_decay_samples", r.wsd);
  }
  if (r.decoupled) {
    json.emplace_back("decoupled_lr", r.decoupled->max);
    json.emplace_back("decoupled_min_lr", r.decoupled->min);
  }
  return json;
}

optim::LearningRate rate_from(const Reader& in) {
  optim::LearningRate rate{.max = in.number("lr"),
                           .min = in.number("min_lr"),
                           .warmup_init = in.number("lr_warmup_init"),
                           .warmup = in.number("warmup_samples"),
                           .decay = in.number("decay_samples"),
                           .style = in.style("lr_decay_style", kRateStyles)};
  if (rate.style == optim::DecayStyle::wsd) {
    rate.wsd_style = in.style("lr_wsd_decay_style", kWsdStyles);
    rate.wsd = in.number("wsd_decay_samples");
  }
  if (in.has("decoupled_lr"))
    rate.decoupled = {in.number("decoupled_lr"), in.number("decoupled_min_lr")};
  return rate;
}

}  // namespace

Json TrainerState::to_json() const {
  Json::Object json{{"format", checkpoint::kFormat},
                    {"written_by", fmt::format("megatron {}", version())},
                    {"iteration", iteration},
                    {"consumed_samples", consumed_samples},
                    {"scheduled_samples", scheduled_samples},
                    {"skipped_steps", skipped_steps},
                    {"seed", seed},
                    {"precision", precision},
                    {"optimizer", Json::Object{{"method", optimizer},
                                               {"steps", optimizer_steps},
                                               {"saved", has_optimizer},
                                               {"settings", optimizer_settings}}},
                    {"schedule", schedule_json(learning_rate, weight_decay)},
                    {"settings", settings},
                    {"data", data},
                    {"train_iters", train_iters},
                    {"layout", layout}};
  if (!examples.is_null()) json.emplace_back("examples", examples);
  if (!reference.empty()) json.emplace_back("reference", reference);
  if (!base.empty()) json.emplace_back("base", base);
  if (!gemm_tuning.is_null()) json.emplace_back("gemm_tuning", gemm_tuning);
  if (loss_scale)
    json.emplace_back("loss_scale", Json::Object{{"value", loss_scale->value},
                                                 {"good_steps", loss_scale->good_steps},
                                                 {"overflows_left", loss_scale->overflows_left}});
  return json;
}

namespace {

optim::LossScale::State scale_from(const Reader& in) {
  const double value = in.number("value");
  MG_CHECK(value > 0, "{}: value is {}; expected a scale above 0", in.where(), value);
  return {.value = value,
          .good_steps = in.count("good_steps"),
          .overflows_left = in.integer("overflows_left")};
}

}  // namespace

TrainerState TrainerState::from_json(const Json& json, const std::string& path) {
  const Reader in(json, fmt::format("{}/{}", path, checkpoint::kTrainerState));
  const Reader optimizer = in.inside("optimizer"), schedule = in.inside("schedule");
  TrainerState state;
  state.iteration = in.count("iteration");
  state.consumed_samples = in.count("consumed_samples");
  state.scheduled_samples =
      json.contains("scheduled_samples") ? in.count("scheduled_samples") : state.consumed_samples;
  if (json.contains("skipped_steps")) state.skipped_steps = in.count("skipped_steps");
  if (json.contains("loss_scale")) state.loss_scale = scale_from(in.inside("loss_scale"));
  state.seed = in.count("seed");
  state.precision = in.text("precision");
  state.optimizer = optimizer.text("method");
  state.optimizer_steps = optimizer.count("steps");
  state.has_optimizer = optimizer.truth("saved");
  if (optimizer.has("settings")) state.optimizer_settings = optimizer.object("settings");
  state.learning_rate = rate_from(schedule);
  state.weight_decay = {.start = schedule.number("start_weight_decay"),
                        .end = schedule.number("end_weight_decay"),
                        .steps = schedule.count("weight_decay_samples"),
                        .style = schedule.style("weight_decay_incr_style", kDecayStyles)};
  if (json.contains("settings")) state.settings = in.object("settings");
  if (json.contains("train_iters")) state.train_iters = in.count("train_iters");
  if (json.contains("examples")) state.examples = in.object("examples");
  if (json.contains("reference")) state.reference = in.text("reference");
  if (json.contains("base")) state.base = in.text("base");
  if (json.contains("gemm_tuning")) state.gemm_tuning = in.object("gemm_tuning");
  state.data = in.object("data");
  state.layout = in.object("layout");
  return state;
}

namespace {

// Settings that determine the order of samples.
struct SampleOrder {
  SampleOrder(const settings::TrainSettings& settings, int64_t asked)
      : data(settings.data),
        seq_length(settings.batch.seq_length),
        decoder_seq_length(settings.data.reads_two_texts()
                               ? std::optional(settings.batch.labelled_length())
                               : std::nullopt),
        seed(settings.runtime.seed),
        train_samples(asked),
        dataloader_type(settings.run.dataloader_type),
        data_sharding(settings.run.data_sharding) {
    // The location of indices and tokenizer files, and how files are read, do not affect samples.
    const settings::DataSettings plain;
    static_cast<settings::TokenizerSettings&>(data) = plain;
    data.data_cache_path = plain.data_cache_path;
    data.mmap_bin_files = plain.mmap_bin_files;
    data.builder_threads = plain.builder_threads;
    data.center_rewards_coefficient = plain.center_rewards_coefficient;
    data.preferences = plain.preferences;
    data.reference_model = plain.reference_model;
    data.precompute_reference = plain.precompute_reference;
    data.labels = plain.labels;
  }

  Fields fields() {
    Fields f;
    data.fields(f);
    f.add("seq-length", &seq_length, "");
    f.add("decoder-seq-length", &decoder_seq_length, "");
    f.add("seed", &seed, "");
    f.add("dataloader-type", &dataloader_type, "");
    f.add_switch("no-data-sharding", &data_sharding, false, "");
    f.add("train-samples", &train_samples, "");
    return f;
  }

  settings::DataSettings data;
  std::optional<int64_t> seq_length, decoder_seq_length;
  int64_t seed = 0, train_samples = 0;
  std::string dataloader_type;
  bool data_sharding = true;
};

}  // namespace

Json data_settings(const settings::TrainSettings& settings, int64_t train_samples) {
  SampleOrder order(settings, train_samples), plain(settings::TrainSettings(), 0);
  Json::Object object;
  for (auto& [name, value] : changed(order.fields(), plain.fields()))
    object.emplace_back(name, value);
  return object;
}

Json layout_of(const settings::TrainSettings& settings, int64_t num_layers) {
  const settings::ParallelSettings& p = settings.parallel;
  const parallel::PipelineShape shape = p.pipeline(num_layers);
  return Json::Object{{"ranks", settings.runtime.rank_count()},
                      {"tensor_parallel", p.tensor_parallel},
                      {"sequence_parallel", p.sequence_parallel && p.tensor_parallel > 1},
                      {"pipeline_parallel", p.pipeline_parallel},
                      {"schedule", std::string(parallel::name(shape.kind))},
                      {"chunks", shape.chunks},
                      {"context_parallel", p.context_parallel},
                      {"expert_parallel", p.expert_parallel},
                      {"data_parallel", settings.data_parallel()},
                      {"sharding", std::string(parallel::name(p.sharding()))},
                      {"instances", p.optimizer_instances}};
}

std::vector<ScheduleDifference> schedule_differences(const TrainerState& saved,
                                                     const optim::LearningRate& rate,
                                                     const optim::WeightDecay& decay) {
  std::vector<ScheduleDifference> found;
  const auto compare = [&found](std::string_view setting, std::string before, std::string now) {
    if (before != now) found.push_back({std::string(setting), std::move(before), std::move(now)});
  };
  const auto number = [&compare](std::string_view setting, double before, double now) {
    compare(setting, fmt::format("{}", before), fmt::format("{}", now));
  };
  const optim::LearningRate& r = saved.learning_rate;
  number("lr", r.max, rate.max);
  using optim::DecayStyle;
  const bool decays = r.style != DecayStyle::constant || rate.style != DecayStyle::constant;
  if (decays) number("min-lr", r.min, rate.min);
  number("lr-warmup-init", r.warmup_init, rate.warmup_init);
  number("lr-warmup-samples", r.warmup, rate.warmup);
  if (decays) number("lr-decay-samples", r.decay, rate.decay);
  compare("lr-decay-style", style_name(kRateStyles, r.style), style_name(kRateStyles, rate.style));
  if (r.style == DecayStyle::wsd && rate.style == DecayStyle::wsd) {
    number("lr-wsd-decay-samples", r.wsd, rate.wsd);
    compare("lr-wsd-decay-style", style_name(kWsdStyles, r.wsd_style),
            style_name(kWsdStyles, rate.wsd_style));
  }
  const auto decoupled = [](const optim::LearningRate& l,
                            double optim::LearningRate::Range::* end) {
    return l.decoupled ? fmt::format("{}", *l.decoupled.*end) : std::string("absent");
  };
  using Range = optim::LearningRate::Range;
  compare("decoupled-lr", decoupled(r, &Range::max), decoupled(rate, &Range::max));
  compare("decoupled-min-lr", decoupled(r, &Range::min), decoupled(rate, &Range::min));
  const optim::WeightDecay& d = saved.weight_decay;
  number("start-weight-decay", d.start, decay.start);
  number("end-weight-decay", d.end, decay.end);
  if (d.start != d.end || decay.start != decay.end) {
    const auto growth = [](const optim::WeightDecay& w) {
      return fmt::format("{} over {} samples", style_name(kDecayStyles, w.style), w.steps);
    };
    compare("weight-decay-incr-style", growth(d), growth(decay));
  }
  return found;
}

std::string how_to_extend(const TrainerState& saved, const settings::BatchSettings& now) {
  if (saved.train_iters == 0 || *now.train_iters <= saved.train_iters) return "";
  const Json* samples = saved.data.find("train-samples");
  const bool counts_samples = now.train_samples && samples != nullptr && samples->is_string();
  return fmt::format("{} and --extend-to-iters {}",
                     counts_samples ? "--train-samples " + samples->as_string()
                                    : fmt::format("--train-iters {}", saved.train_iters),
                     *now.train_iters);
}

void settle_schedule(const TrainerState& saved, const std::string& path,
                     const settings::CheckpointSettings& settings, optim::LearningRate& rate,
                     optim::WeightDecay& decay, const std::string& longer) {
  std::string different;
  for (const ScheduleDifference& d : schedule_differences(saved, rate, decay))
    add_difference(different, d.setting, d.saved, d.now);
  MG_CHECK(different.empty() || settings.override_scheduler || settings.use_checkpoint_scheduler,
           "the schedule differs from that of {}: {}. Choose one: --override-opt-param-scheduler "
           "uses the schedule of this command line, --use-checkpoint-opt-param-scheduler that of "
           "the checkpoint{}",
           path, different,
           longer.empty()
               ? ""
               : ". To train longer with the checkpoint's schedule and order of samples, give " +
                     longer);
  if (!settings.use_checkpoint_scheduler) return;
  rate = saved.learning_rate;
  decay = saved.weight_decay;
}

Json optimizer_settings(const settings::OptimizerSettings& settings) {
  settings::OptimizerSettings copy = settings;
  const optim::OptimizerConfig& c = settings.config;
  const auto of = [&c](std::string_view name) {
    if (name.starts_with("adam-") || name.starts_with("exp-")) return c.uses(optim::Method::adam);
    if (name.starts_with("sgd-")) return c.uses(optim::Method::sgd);
    if (name.starts_with("lion-")) return c.uses(optim::Method::lion);
    return name.starts_with("muon-") && c.uses(optim::Method::muon);
  };
  Json::Object object;
  const Fields fields = copy.rule_fields();
  for (const Field& field : fields.all())
    if (of(field.name)) object.emplace_back(field.name, field.get());
  if (!settings.freeze.empty())
    object.emplace_back("freeze", Json::Array(settings.freeze.begin(), settings.freeze.end()));
  return object;
}

std::string differences(const Json& saved, const Json& now) {
  std::string text;
  const auto lists_objects = [](const Json* value) {
    return value != nullptr && value->is_array() && !value->as_array().empty() &&
           value->as_array()[0].is_object();
  };
  const auto shown = [&](const Json* value) {
    return value == nullptr       ? std::string("absent")
           : value->is_string()   ? fmt::format("'{}'", value->as_string())
           : lists_objects(value) ? fmt::format("a list of {}", value->as_array().size())
                                  : value->dump();
  };
  for (const auto& [key, value] : saved.as_object()) {
    const Json* other = now.find(key);
    if (lists_objects(&value) && lists_objects(other)) {
      const Json::Array &a = value.as_array(), &b = other->as_array();
      const auto [in_a, in_b] = std::ranges::mismatch(a, b);
      if (in_a != a.end() && in_b != b.end()) {
        text += fmt::format("{}{}[{}]: {}", text.empty() ? "" : "; ", key, in_a - a.begin(),
                            differences(*in_a, *in_b));
        continue;
      }
    }
    add_difference(text, key, shown(&value), shown(other));
  }
  for (const auto& [key, value] : now.as_object())
    if (!saved.contains(key)) add_difference(text, key, "absent", shown(&value));
  return text;
}

}  // namespace megatron::resume
