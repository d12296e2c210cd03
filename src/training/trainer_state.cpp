#include "training/trainer_state.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/version.h"
#include "checkpoint/checkpoint_directory.h"

namespace megatron::training {
namespace {

constexpr std::array kRateStyles = {
    std::pair{optim::DecayStyle::constant, "constant"},
    std::pair{optim::DecayStyle::linear, "linear"}, std::pair{optim::DecayStyle::cosine, "cosine"},
    std::pair{optim::DecayStyle::inverse_square_root, "inverse-square-root"}};
constexpr std::array kDecayStyles = {std::pair{optim::DecayIncrease::constant, "constant"},
                                     std::pair{optim::DecayIncrease::linear, "linear"},
                                     std::pair{optim::DecayIncrease::cosine, "cosine"}};

template <class Styles, class Style>
std::string style_name(const Styles& styles, Style style) {
  for (const auto& [value, name] : styles)
    if (value == style) return name;
  return "";
}

// Typed reading that names the file and the key.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    MG_CHECK(json.is_object(), "{} is not a JSON object; the checkpoint is damaged", where_);
  }

  int64_t count(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_integer() && value.as_integer() >= 0,
             "{}: {} is {}; a whole number of at least 0 is wanted", where_, key, value.dump());
    return value.as_integer();
  }
  double number(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_number() && std::isfinite(value.as_number()),
             "{}: {} is {}; a number is wanted", where_, key, value.dump());
    return value.as_number();
  }
  std::string text(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_string(), "{}: {} is {}; a text is wanted", where_, key, value.dump());
    return value.as_string();
  }
  bool truth(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_bool(), "{}: {} is {}; true or false is wanted", where_, key, value.dump());
    return value.as_bool();
  }
  template <class Styles>
  auto style(std::string_view key, const Styles& styles) const {
    const std::string wanted = text(key);
    for (const auto& [value, name] : styles)
      if (wanted == name) return value;
    fail("{}: {} is '{}', which this version does not know", where_, key, wanted);
  }
  const Json& object(std::string_view key) const {
    const Json& value = at(key);
    MG_CHECK(value.is_object(), "{}: {} is {}; an object is wanted", where_, key, value.dump());
    return value;
  }
  Reader inside(std::string_view key) const {
    return {object(key), fmt::format("{}: {}", where_, key)};
  }

 private:
  const Json& at(std::string_view key) const {
    const Json* value = json_.find(key);
    MG_CHECK(value != nullptr, "{} has no {}; the checkpoint is damaged or no checkpoint", where_,
             key);
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

}  // namespace

Json TrainerState::to_json() const {
  const optim::LearningRate& r = learning_rate;
  const optim::WeightDecay& d = weight_decay;
  return Json::Object{
      {"format", checkpoint::kFormat},
      {"written_by", fmt::format("megatron {}", version())},
      {"iteration", iteration},
      {"consumed_samples", consumed_samples},
      {"seed", seed},
      {"precision", precision},
      {"optimizer",
       Json::Object{{"method", optimizer}, {"steps", optimizer_steps}, {"saved", has_optimizer}}},
      {"schedule", Json::Object{{"lr", r.max},
                                {"min_lr", r.min},
                                {"lr_warmup_init", r.warmup_init},
                                {"warmup_samples", r.warmup},
                                {"decay_samples", r.decay},
                                {"lr_decay_style", style_name(kRateStyles, r.style)},
                                {"start_weight_decay", d.start},
                                {"end_weight_decay", d.end},
                                {"weight_decay_samples", d.steps},
                                {"weight_decay_incr_style", style_name(kDecayStyles, d.style)}}},
      {"data", data},
      {"layout", layout}};
}

TrainerState TrainerState::from_json(const Json& json, const std::string& path) {
  const Reader in(json, fmt::format("{}/{}", path, checkpoint::kTrainerState));
  const Reader optimizer = in.inside("optimizer"), schedule = in.inside("schedule");
  TrainerState state;
  state.iteration = in.count("iteration");
  state.consumed_samples = in.count("consumed_samples");
  state.seed = in.count("seed");
  state.precision = in.text("precision");
  state.optimizer = optimizer.text("method");
  state.optimizer_steps = optimizer.count("steps");
  state.has_optimizer = optimizer.truth("saved");
  state.learning_rate = {.max = schedule.number("lr"),
                         .min = schedule.number("min_lr"),
                         .warmup_init = schedule.number("lr_warmup_init"),
                         .warmup = schedule.number("warmup_samples"),
                         .decay = schedule.number("decay_samples"),
                         .style = schedule.style("lr_decay_style", kRateStyles)};
  state.weight_decay = {.start = schedule.number("start_weight_decay"),
                        .end = schedule.number("end_weight_decay"),
                        .steps = schedule.count("weight_decay_samples"),
                        .style = schedule.style("weight_decay_incr_style", kDecayStyles)};
  state.data = in.object("data");
  state.layout = in.object("layout");
  return state;
}

namespace {

// What decides which sample comes when.
struct SampleOrder {
  explicit SampleOrder(const TrainSettings& settings)
      : data(settings.data),
        seq_length(settings.batch.seq_length),
        seed(settings.runtime.seed),
        dataloader_type(settings.run.dataloader_type),
        data_sharding(settings.run.data_sharding) {
    if (!settings.batch.train_iters) return;
    train_samples = settings.batch.train_samples.value_or(settings.batch.total_samples());
    // Where an index and the tokenizer's files lie, how files are read and how many at a time change
    // no sample.
    const DataSettings plain;
    static_cast<TokenizerSettings&>(data) = plain;
    data.data_cache_path = plain.data_cache_path;
    data.mmap_bin_files = plain.mmap_bin_files;
    data.builder_threads = plain.builder_threads;
  }

  Fields fields() {
    Fields f;
    data.fields(f);
    f.add("seq-length", &seq_length, "");
    f.add("seed", &seed, "");
    f.add("dataloader-type", &dataloader_type, "");
    f.add_switch("no-data-sharding", &data_sharding, false, "");
    f.add("train-samples", &train_samples, "");
    return f;
  }

  DataSettings data;
  std::optional<int64_t> seq_length;
  int64_t seed = 0, train_samples = 0;
  std::string dataloader_type;
  bool data_sharding = true;
};

}  // namespace

Json data_settings(const TrainSettings& settings) {
  SampleOrder order(settings), plain{TrainSettings()};
  Json::Object object;
  for (auto& [name, value] : changed(order.fields(), plain.fields()))
    object.emplace_back(name, value);
  return object;
}

Json layout_of(const TrainSettings& settings) {
  const RuntimeSettings& r = settings.runtime;
  return Json::Object{{"ranks", r.rank_count()},
                      {"tensor_parallel", r.tensor_parallel},
                      {"pipeline_parallel", r.pipeline_parallel},
                      {"context_parallel", r.context_parallel},
                      {"expert_parallel", r.expert_parallel},
                      {"data_parallel", r.rank_count() / (r.tensor_parallel * r.pipeline_parallel *
                                                          r.context_parallel)}};
}

std::string schedule_differences(const TrainerState& saved, const optim::LearningRate& rate,
                                 const optim::WeightDecay& decay) {
  std::string text;
  const auto number = [&text](std::string_view what, double before, double now) {
    add_difference(text, what, fmt::format("{}", before), fmt::format("{}", now));
  };
  const optim::LearningRate& r = saved.learning_rate;
  number("lr", r.max, rate.max);
  number("min-lr", r.min, rate.min);
  number("lr-warmup-init", r.warmup_init, rate.warmup_init);
  number("warm-up samples", r.warmup, rate.warmup);
  number("decay samples", r.decay, rate.decay);
  add_difference(text, "lr-decay-style", style_name(kRateStyles, r.style),
                 style_name(kRateStyles, rate.style));
  const optim::WeightDecay& d = saved.weight_decay;
  number("start-weight-decay", d.start, decay.start);
  number("end-weight-decay", d.end, decay.end);
  if (d.start != d.end || decay.start != decay.end) {
    number("weight decay samples", static_cast<double>(d.steps), static_cast<double>(decay.steps));
    add_difference(text, "weight-decay-incr-style", style_name(kDecayStyles, d.style),
                   style_name(kDecayStyles, decay.style));
  }
  return text;
}

std::string differences(const Json& saved, const Json& now) {
  std::string text;
  const auto shown = [](const Json* value) {
    return value == nullptr     ? std::string("absent")
           : value->is_string() ? fmt::format("'{}'", value->as_string())
                                : value->dump();
  };
  for (const auto& [key, value] : saved.as_object())
    add_difference(text, key, shown(&value), shown(now.find(key)));
  for (const auto& [key, value] : now.as_object())
    if (!saved.contains(key)) add_difference(text, key, "absent", shown(&value));
  return text;
}

}  // namespace megatron::training
