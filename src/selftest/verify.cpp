#include "selftest/verify.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/tolerances.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "kernels/observer.h"
#include "models/adapters/adapter_rules.h"
#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "selftest/verify_batch.h"
#include "selftest/verify_encoder.h"
#include "selftest/verify_encoder_decoder.h"
#include "selftest/verify_hidden.h"
#include "training/merged_adapter.h"
#include "training/stored_names.h"
#include "training/whole_model.h"

namespace megatron::selftest {
namespace {

constexpr std::string_view kMerged = "merged.";

// Results of a model on a batch, gathered from its ranks.
struct Results {
  std::mutex mutex;
  TensorMap values;  // "hidden.0", "hidden.head", "logits", "merged.logits"
  std::map<int64_t, std::vector<double>> router_logits;  // [T,E], by layer
  GatheredTensors gradients;
  double loss = 0, divisor = 1;
};

// Records the logits of a layer's router. The gate of a shared expert is a router of one expert.
class RouterWatcher final : public kernels::Observer {
 public:
  explicit RouterWatcher(Stream& stream) : stream_(stream) { stream_.watch(this); }
  ~RouterWatcher() override { stream_.watch(nullptr); }
  RouterWatcher(const RouterWatcher&) = delete;
  RouterWatcher& operator=(const RouterWatcher&) = delete;

  void after(const kernels::Call& call) override {
    if (call.kernel != "route") return;
    for (const kernels::Operand& operand : call.operands)
      if (operand.name == "logits" && operand.tensor.size(1) > 1) logits_ = operand.tensor;
  }
  // Takes the logits of the calls since the last take(); undefined if there were none.
  Tensor take() { return std::exchange(logits_, {}); }

 private:
  Stream& stream_;
  Tensor logits_;
};

// One rank's part of a model.
class Subject {
 public:
  // objective: of the gradients; null: the mean loss. merged: gives the weights in place of the
  // directory.
  Subject(const checkpoint::ModelDirectory& directory, const models::Model& model,
          DeviceKind device, const VerifyOptions& options, comm::Group& world,
          std::shared_ptr<const training::Objective> objective = nullptr,
          const training::MergedAdapter* merged = nullptr)
      : runtime_({device, 0}, options.threads),
        type_(device == DeviceKind::reference ? DType::f64 : DType::f32),
        multiple_(options.length_multiple()),
        model_(
            model, type_, 0, options.layout(), world, runtime_,
            {.objective = std::move(objective), .data_parallel = {.sharding = options.sharding}}),
        device_batch_(runtime_, type_) {
    const training::WholeModel whole = training::whole_model(model, type_);
    if (merged == nullptr)
      training::load_weights(directory, model_.held(), whole, {.tells = world.rank() == 0});
    else training::load_merged(*merged, model_.held(), whole, runtime_.stream().pool());
    model_.step.begin({.method = optim::Method::sgd, .sgd_momentum = 0});
  }

  // prefix: prepended to the names of the results.
  void forward(const corpus::HostBatch& batch, const std::string& prefix, Results& results);
  void backward(const ExpectedBatch& batch, Results& results);

 private:
  // Returns this rank's tokens, after padding sequences that could not be divided otherwise.
  corpus::HostBatch own_tokens(corpus::HostBatch batch) const;
  Tensor gathered(const Tensor& rows, comm::Group& group);
  // Gathers the rows of all tokens except padding from the context-parallel ranks and, if
  // `divided`, from the sequence-parallel ranks, which hold slices of them.
  std::vector<double> all_rows(const Tensor& own, const nn::Batch& batch, bool divided = true);
  std::vector<double> flowing_value(const Bundle& bundle, const nn::Batch& batch);
  // Keeps what enters layer `place` of the model, under its name in expected.safetensors.
  void keep_hidden(const std::string& prefix, int64_t place, const Bundle& bundle,
                   const nn::Batch& batch, Results& results);
  void keep_router(int64_t layer, std::vector<double> logits, Results& results) const {
    const std::lock_guard lock(results.mutex);
    results.router_logits[layer] = std::move(logits);
  }
  void keep(const std::string& name, std::vector<double> values, Results& results) const {
    const std::lock_guard lock(results.mutex);
    results.values[name] = std::move(values);
  }

  Runtime runtime_;
  DType type_;
  int64_t multiple_;
  training::TrainedModel model_;
  corpus::DeviceBatch device_batch_;
};

corpus::HostBatch Subject::own_tokens(corpus::HostBatch batch) const {
  corpus::pad_sequences(batch, multiple_);
  corpus::keep_tokens(batch, model_.ranks.tokens(batch.layout.sequences, batch.layout.length));
  return batch;
}

Tensor Subject::gathered(const Tensor& rows, comm::Group& group) {
  const Tensor all =
      Tensor::empty(runtime_.arena(MemoryClass::activations),
                    {rows.size(0) * group.size(), rows.size(1)}, rows.dtype(), "verify.rows");
  group.all_gather(rows, all, runtime_.stream(), "verify.rows").wait(runtime_.stream());
  return all;
}

std::vector<double> Subject::all_rows(const Tensor& own, const nn::Batch& batch, bool divided) {
  const parallel::TensorParallel tensor = model_.ranks.tensor();
  const Tensor held = divided && tensor.divides_tokens() ? gathered(own, *tensor.group) : own;
  comm::Group* const context = model_.ranks.modules().context;
  const parallel::TokenLayout& layout = batch.layout;
  const int64_t width = held.size(1), text = batch.text_length();
  std::vector<double> all(static_cast<size_t>(layout.sequences * text * width));
  if (context == nullptr) {
    const std::vector<double> padded = to_doubles(held);
    for (int64_t s = 0; s < layout.sequences; ++s)
      std::copy_n(padded.begin() + s * layout.length * width, text * width,
                  all.begin() + s * text * width);
    return all;
  }
  const std::vector<double> by_rank = to_doubles(gathered(held, *context));
  const std::vector<double> indices = to_doubles(batch.context_tokens.rank_indices);
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t sequence = static_cast<int64_t>(i) / layout.held() % layout.sequences;
    const auto token = static_cast<int64_t>(indices[i]);
    if (token >= text) continue;  // padding
    std::copy_n(by_rank.begin() + static_cast<int64_t>(i) * width, width,
                all.begin() + (sequence * text + token) * width);
  }
  return all;
}

std::vector<double> Subject::flowing_value(const Bundle& bundle, const nn::Batch& batch) {
  std::vector<double> values = all_rows(bundle["hidden"].value, batch);
  if (!bundle.contains("residual") || !bundle["residual"].value.defined()) return values;
  const std::vector<double> residual = all_rows(bundle["residual"].value, batch);
  for (size_t i = 0; i < values.size(); ++i) values[i] += residual[i];
  return values;
}

// Both stacks of an encoder-decoder have numbers of their own: "encoder.hidden.0" is what the first
// layer reads.
void Subject::keep_hidden(const std::string& prefix, int64_t place, const Bundle& bundle,
                          const nn::Batch& batch, Results& results) {
  const int64_t encoder = model_.parts.chunk(0).model()->facts().encoder_layers;
  if (encoder == 0)
    return keep(fmt::format("{}hidden.{}", prefix, place), flowing_value(bundle, batch), results);
  if (bundle.contains(models::kTarget)) {
    keep(fmt::format("{}encoder.hidden.{}", prefix, place), flowing_value(bundle, *batch.encoder),
         results);
    return keep(fmt::format("{}decoder.hidden.0", prefix),
                all_rows(bundle[models::kTarget].value, batch), results);
  }
  keep(prefix + "encoder_last_hidden_state",
       all_rows(bundle[models::kEncoded].value, *batch.encoder), results);
  if (place > encoder)
    keep(fmt::format("{}decoder.hidden.{}", prefix, place - encoder), flowing_value(bundle, batch),
         results);
}

// Runs block by block, so that all values passed between blocks are recorded.
void Subject::forward(const corpus::HostBatch& whole, const std::string& prefix, Results& results) {
  const corpus::HostBatch host = own_tokens(whole);
  const models::Stage& stage = model_.parts.chunk(0);
  comm::Group* const stages = model_.ranks.stages();
  const models::Model& c = stage.model();
  const nn::Batch& batch = device_batch_.fill(host, c, settings::LossScope::token);
  Tape tape(runtime_, Tape::Mode::infer);
  tape.listen(static_cast<SpanListener*>(&model_.step.data_parallel()));
  Bundle bundle;
  int64_t place = stage.part().first_layer;  // number of layers before the hidden state
  if (!stage.part().embedding) {
    const auto forms = models::boundary_forms(
        stage, models::Edge::entry, training::boundary_rows(host, model_.ranks.tensor()), type_);
    const parallel::Payload payload = models::make_payload(forms, runtime_, "verify.hidden");
    for (const Tensor& tensor : payload)
      stages->recv(tensor, stages->rank() - 1, runtime_.stream(), "verify.hidden")
          .wait(runtime_.stream());
    bundle = models::entering(stage, payload);
    bundle.set("residual", Var());
  }
  RouterWatcher router(runtime_.stream());
  for (const models::Block& block : stage.blocks()) {
    bundle = block(tape, bundle, batch, models::Phase::evaluate);
    if (block.layer) ++place;
    keep_hidden(prefix, place, bundle, batch, results);
    if (const Tensor logits = router.take(); logits.defined() && prefix.empty())
      keep_router(place, all_rows(logits, batch), results);
  }
  if (!stage.part().head) {
    for (const Tensor& tensor : models::leaving_values(stage, tape, bundle))
      stages->send(tensor, stages->rank() + 1, runtime_.stream(), "verify.hidden")
          .wait(runtime_.stream());
    return;
  }
  const bool headless = c->facts().headless;
  const Bundle head = tape.span(stage.head(), bundle, [&](Tape& t, const Bundle& in) {
    return Bundle{{"norm", stage.output_input(t, in)},
                  {"logits", headless ? Var() : stage.logits(t, in, batch)},
                  {"pair logits", stage.pair_logits(t, in)}};
  });
  keep(prefix + "hidden.head", all_rows(head["norm"].value, batch), results);
  if (headless) return;
  keep(prefix + "logits", all_rows(head["logits"].value, batch, false), results);
  if (c->facts().pair_head)
    keep("pair_logits", all_rows(head["pair logits"].value, batch, false), results);
}

// All data-parallel ranks run forward over the whole batch; in backward each handles its share.
void Subject::backward(const ExpectedBatch& batch, Results& results) {
  const comm::Group& data = model_.ranks.samples();
  const corpus::HostBatch own = own_tokens(batch.share(data.rank(), data.size()));
  double divisor = 1;
  const training::StepReport step = model_.step.accumulate({&own, 1}, divisor);
  std::vector<parallel::Shard> trained;
  std::ranges::copy_if(model_.shards(), std::back_inserter(trained),
                       [](const auto& shard) { return shard.gradient.defined(); });
  results.gradients.add(
      trained, [](const parallel::Shard& shard) { return shard.gradient; }, divisor);
  const std::lock_guard lock(results.mutex);
  results.loss = step.loss;
}

std::vector<double> scores(const std::vector<double>& logits, const ExpectedBatch& batch) {
  const size_t width = logits.size() / batch.host.tokens.size();
  std::vector<double> result;
  for (const int64_t row : batch.score_rows) {
    const auto begin = logits.begin() + row * static_cast<int64_t>(width);
    result.insert(result.end(), begin, begin + static_cast<int64_t>(width));
  }
  return result;
}

// Sets rows of padding to 0. name: of the result.
std::vector<double> without_padding(std::vector<double> values, const ExpectedBatch& batch,
                                    std::string_view name) {
  const bool of_encoder = batch.host.encoder != nullptr && name.starts_with("encoder");
  const std::vector<bool>& padding = of_encoder ? batch.encoder_padding : batch.padding;
  const size_t width =
      values.size() / (of_encoder ? *batch.host.encoder : batch.host).tokens.size();
  for (size_t row = 0; row < padding.size(); ++row)
    if (padding[row]) std::fill_n(values.begin() + static_cast<int64_t>(row * width), width, 0.0);
  return values;
}

void compare_forward(Expected& expected, const Results& results, const ExpectedBatch& batch,
                     Report& report) {
  const auto is_output = [](std::string_view name) {
    return name.ends_with("logits") || name == "last_hidden_state" || name == "pooler_output";
  };
  MG_CHECK(std::ranges::any_of(results.values,
                               [&](const auto& result) {
                                 return is_output(result.first) && expected.contains(result.first);
                               }),
           "expected.safetensors has no logits");
  for (const auto& [result, values] : results.values) {
    const bool merged = result.starts_with(kMerged);
    const std::string name = merged ? result.substr(kMerged.size()) : result;
    if (!expected.contains(name)) continue;
    const bool logits = name.ends_with("logits"),
               of_texts = name == "seq_relationship_logits" || name == "pooler_output";
    const double difference =
        of_texts ? largest_difference(values, expected.doubles(name))
        : logits && !batch.score_rows.empty()
            ? largest_difference(scores(values, batch), expected.doubles(name))
            : largest_difference(without_padding(values, batch, name),
                                 without_padding(expected.doubles(name), batch, name));
    report.compare(merged   ? "merged model"
                   : logits ? "logits"
                            : "hidden states",
                   name, difference, tolerance::kGoldenLogitsAbsolute);
  }
}

// Compares the weights with the adapter merged into them, if they are expected.
void compare_merged(Expected& expected, const training::MergedAdapter& merged, int threads,
                    Report& report) {
  if (std::ranges::none_of(expected.names(),
                           [](const std::string& name) { return name.starts_with(kMerged); }))
    return;
  ThreadPool pool(threads);
  for (const training::MergedAdapter::Change& change : merged.changes()) {
    const std::string key = std::string(kMerged) + change.name;
    if (!expected.contains(key)) {
      // What a head that only the adapter has becomes is plain: the adapter's.
      if (!change.is_new) report.fail(fmt::format("{} is not in expected.safetensors", key));
      continue;
    }
    const std::vector<double> wanted = expected.doubles(key);
    const double difference =
        difference_norm(checkpoint::SafetensorsFile::doubles_of(merged.merged(change, pool),
                                                                merged.info(change).dtype),
                        wanted);
    report.compare("merged weights", key, difference, tolerance::kMergedFp32 * norm(wanted));
  }
}

// experts * sum over experts of f p, p the mean probability of an expert over the tokens of all
// layers, f the mean number of a token's choices that are that expert: how transformers defines it.
double pooled_aux_loss(const std::map<int64_t, std::vector<double>>& layers, size_t tokens,
                       int64_t choices) {
  std::vector<double> p, f;
  double rows = 0;
  for (const auto& [layer, logits] : layers) {
    const size_t experts = logits.size() / tokens;
    p.resize(experts);
    f.resize(experts);
    for (size_t t = 0; t < tokens; ++t, ++rows) {
      std::vector<std::pair<double, size_t>> order;
      double sum = 0;
      for (size_t e = 0; e < experts; ++e) {
        order.emplace_back(-logits[t * experts + e], e);
        sum += std::exp(logits[t * experts + e]);
      }
      for (size_t e = 0; e < experts; ++e) p[e] += std::exp(logits[t * experts + e]) / sum;
      std::ranges::sort(order);
      for (size_t j = 0; j < static_cast<size_t>(choices); ++j) f[order[j].second] += 1;
    }
  }
  double loss = 0;
  for (size_t e = 0; e < p.size(); ++e) loss += f[e] / rows * p[e] / rows;
  return loss * static_cast<double>(p.size());
}

void compare_routers(Expected& expected, const Results& results, const models::Model& model,
                     const ExpectedBatch& batch, Report& report) {
  if (results.router_logits.empty()) return;
  int64_t place = 0;
  for (const auto& [layer, logits] : results.router_logits) {
    const std::string name = fmt::format("router_logits.{}", place++);
    if (expected.contains(name))
      report.compare("router logits", name, largest_difference(logits, expected.doubles(name)),
                     tolerance::kGoldenLogitsAbsolute);
  }
  if (!expected.contains("aux_loss")) return;
  const double loss = pooled_aux_loss(results.router_logits, batch.host.tokens.size(),
                                      model->facts().experts->chosen);
  report.compare("loss", "aux_loss", relative_error(loss, expected.doubles("aux_loss").at(0)),
                 tolerance::kGoldenLossRelative);
}

// The size of the terms of which gradients consist: that of the loss's gradient with respect to the
// outputs, at most 1 for a mean cross entropy, and 2 sqrt(loss) for the sum of squared differences
// that is the loss of a model without a head.
double gradient_scale(Expected& expected, const models::Model& model) {
  if (!model->facts().headless || !expected.contains("loss")) return 1;
  return std::max(1.0, 2 * std::sqrt(expected.doubles("loss").at(0)));
}

// A gradient of `wanted` may differ by so much. scale: gradient_scale().
double gradient_tolerance(const std::vector<double>& wanted, double scale) {
  return tolerance::kGoldenGradientRelative * norm(wanted) +
         tolerance::kGoldenGradientAbsolute * scale;
}

// Gradients of tensors that the model does not have must be those of the pooler that it leaves out,
// and otherwise, since no computation needs them, 0.
void compare_surplus_gradients(Expected& expected, Results& results, const models::Model& model,
                               const TensorMap& of_pooler, Report& report) {
  constexpr std::string_view kPrefix = "grad.";
  const double scale = gradient_scale(expected, model);
  for (const std::string& name : expected.names()) {
    if (!name.starts_with(kPrefix)) continue;
    const std::string tensor = name.substr(kPrefix.size());
    if (results.gradients.tensors().contains(tensor) || !model->is_surplus(tensor)) continue;
    const std::vector<double> wanted = expected.doubles(name);
    const auto own = of_pooler.find(tensor);
    if (own == of_pooler.end()) report.compare("gradients", name, norm(wanted), 0);
    else
      report.compare("gradients", name, difference_norm(own->second, wanted),
                     gradient_tolerance(wanted, scale));
  }
}

// names: of the model's tensors in its directory.
void compare_gradients(Expected& expected, Results& results, const models::Model& model,
                       const training::StoredNames& names, Report& report) {
  if (expected.contains("loss")) {
    const std::vector<double> value = expected.doubles("loss");
    report.compare("loss", "loss",
                   value.size() == 1 ? relative_error(results.loss, value[0]) : INFINITY,
                   tolerance::kGoldenLossRelative);
  }
  for (const std::string& name : results.gradients.different())
    report.fail(fmt::format("ranks that share {} have different gradients of it", name));
  const double scale = gradient_scale(expected, model);
  for (const auto& [name, values] : results.gradients.tensors()) {
    const models::LoraConfig* const adapter = model->adapter();
    std::string key = "grad." + (adapter == nullptr ? names.of(name)
                                                    : models::stored_with_adapter(*adapter, name));
    if (!expected.contains(key)) key = "grad." + name;
    if (!expected.contains(key)) {
      report.fail(fmt::format("{} is not in expected.safetensors", key));
      continue;
    }
    const std::vector<double> wanted = expected.doubles(key);
    report.compare("gradients", key,
                   difference_norm(without_padding_row(values, name, model), wanted),
                   gradient_tolerance(wanted, scale));
  }
}

// prompt: the number of tokens that were given.
void compare_greedy(const corpus::HostBatch& greedy, const Results& results, int64_t vocabulary,
                    int64_t prompt, Report& report) {
  const std::vector<double>& logits = results.values.at("greedy.logits");
  int64_t different = 0;
  for (auto i = static_cast<size_t>(prompt); i < greedy.tokens.size(); ++i) {
    const auto row = logits.begin() + static_cast<int64_t>(i - 1) * vocabulary;
    const auto best = std::max_element(row, row + vocabulary) - row;
    if (best != greedy.tokens[i]) ++different;
  }
  report.compare("greedy tokens", "greedy", static_cast<double>(different), 0);
}

}  // namespace

training::ModelLayout VerifyOptions::layout() const {
  return {.ranks = {.layout = {.tp = tensor_parallel,
                               .cp = context_parallel,
                               .ep = expert_parallel,
                               .pp = pipeline_parallel,
                               .etp = expert_tensor_parallel,
                               .hierarchical_cp = context_levels},
                    .sequence = sequence_parallel,
                    .pipeline = {.stages = pipeline_parallel},
                    .sharding = sharding,
                    .context_exchange = context_exchange},
          .layers = {.uneven = true}};
}

std::string VerifyOptions::text() const {
  std::string text;
  const auto add = [&](std::string_view axis, int size) {
    if (size > 1) text += fmt::format(", {} parallel {}", axis, size);
  };
  add("tensor", tensor_parallel);
  if (sequence_parallel) text += ", sequence parallel";
  add("context", context_parallel);
  for (const parallel::ContextExchange exchange : context_exchange)
    text += fmt::format(" {}", name(exchange));
  if (!context_levels.empty()) text += fmt::format(" {}", fmt::join(context_levels, " x "));
  add("pipeline", pipeline_parallel);
  add("data", data_parallel);
  add("expert", expert_parallel);
  add("expert tensor", expert_tensor_parallel);
  if (sharding != parallel::Sharding::none) text += ", sharded";
  return text;
}

std::vector<Report> verify(const std::string& directory, const VerifyOptions& options) {
  const checkpoint::ModelDirectory files(directory, options.reading);
  const models::ModelChanges no_dropout = {.hidden_dropout = 0, .attention_dropout = 0};
  const models::Model model = models::model_of(files)->with(no_dropout);
  const training::StoredNames names(training::whole_model(model, DType::f32), files);
  std::optional<training::MergedAdapter> merged;
  if (files.is_adapter()) merged.emplace(files);
  std::vector<Report> reports;
  for (const DeviceKind device : options.devices) {
    Expected expected(directory + "/expected.safetensors");
    Report report(fmt::format("{} on {} in {}{}", directory, name(device),
                              device == DeviceKind::reference ? "f64" : "f32", options.text()));
    const bool translates = model->facts().encoder_layers > 0;
    const ExpectedBatch batch = translates ? read_encoder_decoder_batch(expected, model)
                                           : read_expected_batch(expected, model);
    corpus::HostBatch padded = batch.host;
    corpus::pad_sequences(padded, options.length_multiple());
    if (padded.layout.length != batch.host.layout.length)
      report.note(fmt::format("sequences of {} tokens padded to {}", batch.host.layout.length,
                              padded.layout.length));
    const auto greedy = translates ? read_encoder_decoder_greedy(expected, batch.host, model)
                                   : read_greedy_batch(expected, batch.host, model);
    std::optional<HiddenStates> hidden;
    if (model->facts().headless) hidden.emplace(expected, files, model, batch);
    const auto objective = hidden ? hidden->objective() : class_objective(model, batch.host);
    const bool learns = !hidden || objective != nullptr;
    Results results;
    comm::run_ranks(options.ranks(), [&](comm::Group& world) {
      std::unique_ptr<comm::Group> made;
      comm::Group& ranks = comm::for_device(world, {device, 0}, made);
      {
        Subject subject(files, model, device, options, ranks, objective);
        subject.forward(batch.host, "", results);
        if (greedy) subject.forward(*greedy, "greedy.", results);
        if (learns) subject.backward(batch, results);
      }
      if (merged)
        Subject(files, merged->model()->with(no_dropout), device, options, ranks, nullptr, &*merged)
            .forward(batch.host, std::string(kMerged), results);
    });
    rename_encoder_outputs(model, batch, results.values);
    const TensorMap of_pooler = hidden ? hidden->add_outputs(results.values) : TensorMap();
    compare_forward(expected, results, batch, report);
    if (merged) compare_merged(expected, *merged, options.threads, report);
    compare_routers(expected, results, model, batch, report);
    if (learns) compare_gradients(expected, results, model, names, report);
    compare_surplus_gradients(expected, results, model, of_pooler, report);
    if (greedy)
      compare_greedy(*greedy, results, model->vocab_size(), translates ? 1 : kGreedyPrompt, report);
    expected.report_unused(report);
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace megatron::selftest
