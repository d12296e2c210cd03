// Context-parallel ranks divide sequences that have several documents, or a length that cannot be
// divided evenly. The loss and every gradient equal those of the documents as separate sequences,
// and those without padding.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/tolerances.h"
#include "comm/threads.h"
#include "comm/traffic.h"
#include "selftest/experiment.h"
#include "two_sided.h"

namespace megatron::selftest {
namespace {

using Batches = std::vector<corpus::HostBatch>;
using parallel::ContextExchange;

constexpr int64_t kRowTokens = 24;

// Two sequences whose documents have one token, fewer tokens than there are chunks, or a length
// that no number of chunks divides.
corpus::HostBatch packed(const models::Model& model) {
  const std::vector<std::vector<int64_t>> lengths = {{1, 13, 3, 7}, {5, 1, 1, 17}};
  corpus::HostBatch batch = random_batch(model, 0, std::ssize(lengths), kRowTokens);
  batch.positions.clear();
  for (const std::vector<int64_t>& of_sequence : lengths) {
    int32_t begin = 0;
    for (const int64_t length : of_sequence) {
      for (int32_t i = 0; i < length; ++i) {
        batch.positions.push_back(i);
        batch.segment_starts.push_back(begin);
      }
      begin += static_cast<int32_t>(length);
    }
  }
  return batch;
}

Batches apart(const corpus::HostBatch& batch) {
  Batches documents;
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.positions[i] == 0)
      documents.push_back({.layout = {.sequences = 1}, .sample_ids = {std::ssize(documents)}});
    corpus::HostBatch& document = documents.back();
    ++document.layout.length;
    document.tokens.push_back(batch.tokens[i]);
    document.labels.push_back(batch.labels[i]);
    document.positions.push_back(batch.positions[i]);
    document.loss_mask.push_back(batch.loss_mask[i]);
  }
  return documents;
}

struct Results {
  double loss = 0;
  TensorMap gradients;
  std::vector<MetricValue> metrics;
  double observed = 0;  // sum of what modules' states observed on the ranks
};

// Sums the bytes of attention's exchanges over all ranks.
class ExchangedBytes final : public comm::TrafficListener {
 public:
  void communicated(const comm::Traffic& traffic) override {
    if (traffic.call.starts_with("context, ")) bytes_ += static_cast<int64_t>(sent_bytes(traffic));
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::atomic<int64_t> bytes_ = 0;
};

Results results_of(const models::Model& model, const Layout& layout, const Batches& whole,
                   ExchangedBytes* listener = nullptr) {
  Results results;
  GatheredTensors gathered;
  comm::run_ranks(layout.ranks(), [&](comm::Group& group) {
    const auto listened = listener ? comm::observed(group, *listener) : nullptr;
    comm::Group& world = listener ? *listened : group;
    Runtime runtime({DeviceKind::reference, 0}, 1);
    training::TrainedModel trained(model, DType::f64, 3, layout.model_layout(), world, runtime, {});
    nn::initialize(trained.step.states(), 4, runtime.stream());
    randomize(trained.shards(), 4, runtime.stream());
    trained.step.begin({.method = optim::Method::sgd});
    Batches batches = whole;
    for (corpus::HostBatch& batch : batches)
      corpus::keep_tokens(batch, trained.ranks.tokens(batch.layout.sequences, batch.layout.length));
    double divisor = 1;
    const training::StepReport step = trained.step.accumulate(batches, divisor);
    gathered.add(
        trained.shards(), [](const parallel::Shard& shard) { return shard.gradient; }, divisor);
    const Tensor observed =
        Tensor::empty(runtime.arena(MemoryClass::activations), {}, DType::f64, "observed");
    double sum = 0;
    for (const nn::ModuleState* state : trained.step.states())
      for (const double value : to_doubles(state->observed)) sum += value;
    *observed.data<double>() = sum;
    world.all_reduce(observed, comm::Reduce::sum, runtime.stream(), "observed")
        .wait(runtime.stream());
    if (world.rank() != 0) return;
    results.loss = step.loss;
    results.metrics = step.metrics;
    results.observed = *observed.data<double>();
  });
  EXPECT_EQ(gathered.different(), std::vector<std::string>());
  EXPECT_EQ(gathered.incomplete(), std::vector<std::string>());
  results.gradients = gathered.tensors();
  return results;
}

void expect_equal(const std::string& what, const Results& found, const Results& expected) {
  EXPECT_LE(std::abs(found.loss - expected.loss), tolerance::kLayoutFp64 * expected.loss) << what;
  for (const auto& [name, error] : metrics(found.gradients, expected.gradients))
    EXPECT_LE(error, tolerance::kLayoutFp64) << what << ", " << name;
}

models::ModelFlags flags_with_heads(models::ModelFlags flags) {
  flags.num_attention_heads = 8;
  flags.num_query_groups = 4;
  return flags;
}
models::Model with_heads(const models::ModelFlags& flags) {
  return models::model_from_flags(flags_with_heads(flags), 0);
}

std::vector<Layout> layouts() {
  return {{.cp = 2, .exchange = ContextExchange::p2p},
          {.cp = 2, .exchange = ContextExchange::all_gather},
          {.cp = 2, .exchange = ContextExchange::a2a},
          {.cp = 4, .exchange = ContextExchange::a2a},
          {.cp = 4, .exchange = ContextExchange::a2a_p2p, .context_levels = {2, 2}},
          {.tp = 2, .cp = 2, .sequence = true, .exchange = ContextExchange::p2p}};
}

TEST(PackedDocuments, AreTheDocumentsAlone) {
  models::ModelFlags windowed = tiny_models()[1].flags;
  windowed.window_size = "4,0";
  for (const models::ModelFlags& flags : {tiny_models()[1].flags, windowed}) {
    const models::Model model = with_heads(flags);
    const corpus::HostBatch batch = packed(model);
    const Results expected = results_of(model, {}, apart(batch));
    expect_equal("one rank", results_of(model, {}, {batch}), expected);
    for (Layout layout : layouts())
      expect_equal(layout.str(), results_of(model, layout, {batch}), expected);
  }
}

// Forward and backward bring keys and values of the rows that other ranks' queries see, and
// backward returns their gradients.
TEST(PackedDocuments, ExchangeOnlyWhatWindowsSee) {
  models::ModelFlags flags = tiny_models()[1].flags;
  flags.window_size = "2,0";
  const models::Model model = with_heads(flags);
  const models::AttentionFacts attention = *model->facts().attention;
  const corpus::HostBatch batch = packed(model);
  for (const ContextExchange exchange : {ContextExchange::p2p, ContextExchange::all_gather}) {
    const Layout layout{.cp = 4, .exchange = exchange};
    parallel::TokenLayout tokens{.sequences = 2, .length = kRowTokens, .ranks = layout.cp};
    const auto indices = parallel::tokens_by_rank(tokens, batch.segment_starts);
    int64_t rows = 0;
    for (tokens.rank = 0; tokens.rank < layout.cp; ++tokens.rank)
      for (const auto& step :
           parallel::seen_rows(tokens, indices, batch.segment_starts, {}, {.window = 3}).sent)
        rows += std::ssize(step);
    const int64_t row = 2 * attention.key_heads * attention.head_size * 8;  // of f64
    ExchangedBytes exchanged;
    results_of(model, layout, {batch}, &exchanged);
    EXPECT_EQ(exchanged.bytes(), model->num_layers() * 3 * rows * row);
    EXPECT_LT(rows, 3 * 2 * kRowTokens / 3);  // a third of all keys in three steps
  }
}

// Encoders: attention sees later tokens of the document, and of no other.
TEST(PackedDocuments, AreTheDocumentsAloneWithTwoSidedAttention) {
  models::ModelFlags windowed = tiny_models()[1].flags;
  windowed.window_size = "4,0";
  for (const models::ModelFlags& flags : {tiny_models()[1].flags, windowed}) {
    const models::Model model = testing::two_sided(flags_with_heads(flags));
    corpus::HostBatch batch = packed(model);
    corpus::set_segment_ends(batch);
    const Results expected = results_of(model, {}, apart(batch));
    expect_equal("one rank", results_of(model, {}, {batch}), expected);
    for (const Layout& layout : layouts())
      expect_equal(layout.str(), results_of(model, layout, {batch}), expected);
  }
}

TEST(PackedDocuments, NeedEndsForTwoSidedAttention) {
  const models::Model model = testing::two_sided(flags_with_heads(tiny_models()[1].flags));
  corpus::HostBatch batch = packed(model);
  EXPECT_THROW(results_of(model, {}, {batch}), Error);
  corpus::set_segment_ends(batch);
  const corpus::HostBatch good = batch;
  batch.segment_ends[3] = -1;
  EXPECT_THROW(results_of(model, {}, {batch}), Error) << "before its segment";
  batch.segment_ends[3] = kRowTokens;
  EXPECT_THROW(results_of(model, {}, {batch}), Error) << "behind the sequence";
  batch.segment_ends.pop_back();
  EXPECT_THROW(results_of(model, {}, {batch}), Error) << "not one per token";
  EXPECT_GT(results_of(model, {}, {good}).loss, 0);
}

// The experts' losses and capacities do not count sequences, since here each document would be one.
TEST(PackedDocuments, AreTheDocumentsAloneWithExperts) {
  models::ModelFlags flags = tiny_models()[1].flags;
  flags.moe.num_experts = 4;
  flags.moe.ffn_hidden_size = 12;
  const models::Model model = with_heads(flags);
  const corpus::HostBatch batch = packed(model);
  const Results expected = results_of(model, {}, apart(batch));
  for (Layout layout : layouts()) {
    layout.ep = 2;
    expect_equal(layout.str(), results_of(model, layout, {batch}), expected);
  }
}

// The documents are confined: if their starts are removed, the gradients differ.
TEST(PackedDocuments, DoNotSeeEachOther) {
  const models::Model model = with_heads(tiny_models()[1].flags);
  corpus::HostBatch batch = packed(model);
  const Layout layout{.cp = 2};
  const Results confined = results_of(model, layout, {batch});
  batch.segment_starts.clear();
  EXPECT_GT(std::abs(results_of(model, layout, {batch}).loss - confined.loss), 1e-3);
}

models::ModelFlags with_experts() {
  models::ModelFlags flags = tiny_models()[1].flags;
  flags.moe.num_experts = 4;
  flags.moe.ffn_hidden_size = 12;
  flags.moe.score = kernels::RouterScore::sigmoid;
  flags.moe.enable_expert_bias = true;
  return flags;
}

bool counts_loads(const Results& results) {
  return std::ranges::any_of(results.metrics, [](const MetricValue& metric) {
    return metric.name == "expert_load" && std::isfinite(metric.value);
  });
}

// Each of 3 layers with experts observes 2 choices of every token for its bias.
TEST(Padding, IsInNoGradientAndNoCountOfExperts) {
  const models::Model model = with_heads(with_experts());
  const corpus::HostBatch batch = random_batch(model, 0, 2, 13);
  const Results expected = results_of(model, {}, {batch});
  EXPECT_EQ(expected.observed, 3 * 2 * 2 * 13);
  EXPECT_TRUE(counts_loads(expected));
  for (Layout layout : layouts()) {
    layout.ep = 2;
    corpus::HostBatch padded = batch;
    corpus::pad_sequences(padded, 2 * layout.cp * layout.tp);
    ASSERT_EQ(padded.layout.length, 16);
    const Results found = results_of(model, layout, {padded});
    expect_equal(layout.str(), found, expected);
    EXPECT_EQ(found.observed, 0);
    EXPECT_FALSE(counts_loads(found));
  }
}

TEST(Padding, IsNotSeenByTwoSidedAttention) {
  const models::Model model = testing::two_sided(flags_with_heads(tiny_models()[1].flags));
  const corpus::HostBatch batch = random_batch(model, 0, 2, 13);
  const Results expected = results_of(model, {}, {batch});
  for (const Layout& layout : layouts()) {
    corpus::HostBatch padded = batch;
    corpus::pad_sequences(padded, 16);
    expect_equal(layout.str(), results_of(model, layout, {padded}), expected);
  }
}

// Losses and capacities of experts would count padding, so such training is refused.
TEST(Padding, IsRefusedWhereRoutersCountTokens) {
  for (void (*change)(models::MoeFlags&) :
       {+[](models::MoeFlags& m) { m.z_loss_coeff = 0.1; },
        +[](models::MoeFlags& m) { m.aux_loss_coeff = {"0.1"}; },
        +[](models::MoeFlags& m) { m.capacity_factor = 1; }}) {
    models::ModelFlags flags = with_experts();
    change(flags.moe);
    const models::Model model = with_heads(flags);
    corpus::HostBatch batch = random_batch(model, 0, 2, 13);
    corpus::pad_sequences(batch, 4);
    EXPECT_THROW(results_of(model, {.cp = 2}, {batch}), InternalError);
  }
}

// Rows of these lengths as examples are packed: padding at their ends.
corpus::HostBatch with_padding(const corpus::HostBatch& batch, const std::vector<int64_t>& texts) {
  corpus::HostBatch rows = batch;
  const int64_t length = batch.layout.length;
  for (int64_t i = 0; i < std::ssize(batch.tokens); ++i) {
    const bool padding = i % length >= texts[static_cast<size_t>(i / length)];
    rows.segment_starts.push_back(padding ? static_cast<int32_t>(i % length) : 0);
    rows.sources.push_back(padding ? -1 : 0);
    if (padding) rows.loss_mask[static_cast<size_t>(i)] = 0;
  }
  return rows;
}

// The same texts without padding, each a micro-batch.
Batches without_padding(const corpus::HostBatch& batch, const std::vector<int64_t>& texts) {
  Batches parts;
  for (int64_t s = 0; s < batch.layout.sequences; ++s) {
    corpus::HostBatch part = corpus::sequence_of(batch, s);
    const int64_t length = texts[static_cast<size_t>(s)];
    part.layout.length = length;
    const auto kept = static_cast<size_t>(length);
    for (auto* values : {&part.tokens, &part.positions, &part.labels}) values->resize(kept);
    part.loss_mask.resize(kept);
    parts.push_back(std::move(part));
  }
  return parts;
}

void expect_same_metrics(const std::string& what, const Results& found, const Results& expected,
                         const std::vector<std::string>& others = {}) {
  ASSERT_EQ(found.metrics.size(), expected.metrics.size()) << what;
  for (size_t i = 0; i < found.metrics.size(); ++i) {
    if (std::ranges::find(others, found.metrics[i].name) != others.end()) continue;
    EXPECT_NEAR(found.metrics[i].value, expected.metrics[i].value, 1e-9)
        << what << ", " << found.metrics[i].name;
  }
}

TEST(PaddingOfRows, IsInNoLossAndNoCountOfRouters) {
  for (const bool sequences : {true, false}) {
    models::ModelFlags flags = with_experts();
    flags.moe.z_loss_coeff = 0.1;
    flags.moe.load_balancing_type = {sequences ? "seq_aux_loss" : "aux_loss"};
    flags.moe.aux_loss_coeff = {"0.3"};
    const models::Model model = with_heads(flags);
    const corpus::HostBatch batch = random_batch(model, 0, 2, 16);
    // A loss of a micro-batch's load is that of one text, too, if there is only one.
    const std::vector<int64_t> texts = {11, sequences ? int64_t{5} : int64_t{0}};
    Batches alone = without_padding(batch, texts);
    if (!sequences) alone.pop_back();
    const Results expected = results_of(model, {}, alone);
    EXPECT_EQ(expected.observed, static_cast<double>(3 * 2 * (texts[0] + texts[1])));
    const corpus::HostBatch rows = with_padding(batch, texts);
    const Results padded = results_of(model, {}, {rows});
    expect_equal("one rank", padded, expected);
    EXPECT_EQ(padded.observed, expected.observed);
    // Micro-batches of one text each have the same weight in their means.
    expect_same_metrics("one rank", padded, expected,
                        sequences ? std::vector<std::string>{"router_z_loss", "router_entropy"}
                                  : std::vector<std::string>());
    std::vector<Layout> all = layouts();
    for (Layout& layout : all) layout.ep = 2;
    all.push_back({.tp = 2, .sequence = true});
    all.push_back({.tp = 2, .etp = 1, .sequence = true});
    for (const Layout& layout : all) {
      const Results found = results_of(model, layout, {rows});
      expect_equal(layout.str(), found, expected);
      expect_same_metrics(layout.str(), found, padded);
    }
  }
}

// Capacities, assignments and quantiles are those of the texts alone, each a micro-batch: of both
// texts if they count each sequence, otherwise of the only one.
TEST(PaddingOfRows, IsInNoCapacityAssignmentOrQuantile) {
  struct Kind {
    const char* balancing;
    double capacity = 0;
    bool of_sequence = true, every_layout = true, pads = false;
    kernels::KeptRows kept = kernels::KeptRows::largest;
  };
  for (const Kind& kind :
       {Kind{.balancing = "none", .capacity = 0.75},
        Kind{.balancing = "none",
             .capacity = 0.75,
             .every_layout = false,
             .pads = true,
             .kept = kernels::KeptRows::first},
        Kind{.balancing = "none", .capacity = 0.6, .of_sequence = false, .every_layout = false},
        Kind{.balancing = "sinkhorn", .of_sequence = false},
        Kind{.balancing = "quantile_balancing", .of_sequence = false}}) {
    SCOPED_TRACE(kind.balancing);
    models::ModelFlags flags = with_experts();
    flags.moe.load_balancing_type = {kind.balancing};
    if (kind.capacity > 0) flags.moe.capacity_factor = kind.capacity;
    flags.moe.capacity_of_sequence = kind.of_sequence;
    flags.moe.drop_policy = kind.kept;
    flags.moe.pad_to_capacity = kind.pads;
    const std::string_view balancing = kind.balancing;
    flags.moe.enable_expert_bias = balancing == "none";
    if (balancing == "sinkhorn") flags.moe.score = kernels::RouterScore::softmax;
    const models::Model model = with_heads(flags);
    const corpus::HostBatch batch = random_batch(model, 0, 2, 16);
    const std::vector<int64_t> texts = {11, kind.of_sequence ? int64_t{5} : int64_t{0}};
    Batches alone = without_padding(batch, texts);
    if (!kind.of_sequence) alone.pop_back();
    const Results expected = results_of(model, {}, alone);
    const corpus::HostBatch rows = with_padding(batch, texts);
    const Results padded = results_of(model, {}, {rows});
    expect_equal("one rank", padded, expected);
    EXPECT_NEAR(padded.observed, expected.observed, 1e-9);
    expect_same_metrics("one rank", padded, expected, {"router_entropy"});
    // As many rows without padding have room for more, or divide other tokens.
    EXPECT_GT(std::abs(results_of(model, {}, {batch}).loss - padded.loss), 1e-6);
    if (!kind.every_layout) continue;
    std::vector<Layout> all = layouts();
    for (Layout& layout : all) layout.ep = 2;
    all.push_back({.tp = 2, .sequence = true});
    for (const Layout& layout : all) {
      const Results found = results_of(model, layout, {rows});
      expect_equal(layout.str(), found, expected);
      expect_same_metrics(layout.str(), found, padded);
    }
  }
}

}  // namespace
}  // namespace megatron::selftest
