// The bytes that a rank sends in a training step, counted call by call on simulated ranks, equal
// the closed forms of traffic_formula.h.
#include "comm/traffic.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>

#include "golden/training/traffic_formula.h"
#include "models/model_flags.h"
#include "parallel/bucket_layout.h"
#include "plan/parameters.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

using namespace plan;
using parallel::ScheduleKind;
using parallel::Sharding;

constexpr int64_t kMicroBatches = 8, kSequences = 2, kLength = 32;

models::ModelFlags gpt2() {
  return {.num_layers = 8,
          .hidden_size = 64,
          .num_attention_heads = 4,
          .max_position_embeddings = 64,
          .vocab_size = 2048,
          .hidden_dropout = 0,
          .attention_dropout = 0};
}

models::ModelFlags llama(int64_t groups, bool untied) {
  models::ModelFlags f = gpt2();
  f.group_query_attention = true;
  f.num_query_groups = groups;
  f.ffn_hidden_size = 192;
  f.position_embedding = models::PositionEmbedding::rope;
  f.normalization = nn::Normalization::rms_norm;
  f.swiglu = true;
  f.untie = untied;
  f.add_bias_linear = false;
  return f;
}

std::vector<models::Model> all_models() {
  std::vector<models::Model> all;
  for (const models::ModelFlags& flags : {gpt2(), llama(4, true), llama(2, false), llama(1, true)})
    all.push_back(models::model_from_flags(flags, kLength));
  return all;
}

class Counter final : public comm::TrafficListener {
 public:
  void communicated(const comm::Traffic& traffic) override {
    if (traffic.call == "step.totals" || traffic.call == "gradient norm") return;
    const double bytes = comm::sent_bytes(traffic);
    sent += bytes;
    const bool exchange = traffic.call.starts_with("context, ");
    calls[exchange
              ? "context, "
              : std::string(traffic.call.substr(0, traffic.call.find_first_of("0123456789")))] +=
        bytes;
  }
  std::string text() const {
    std::string text;
    for (const auto& [call, bytes] : calls) text += fmt::format("  {}: {}\n", call, bytes);
    return text;
  }
  double sent = 0;
  std::map<std::string, double> calls;
};

struct RunOf {
  models::Model model;
  DType type = DType::f32;
  ModelLayout layout;
  parallel::DataParallelOptions data;
  int ranks = 1, rank = 0;

  TrafficShape shape() const {
    return {.model = model,
            .type = type,
            .micro_batches = kMicroBatches,
            .tokens = kSequences * kLength};
  }
};

// Counts the calls of one step, after begin() and an earlier step.
Counter counted(const RunOf& run, const std::function<void(TrainedModel&)>& look = {}) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  const auto ranks = comm::simulated(run.rank, run.ranks);
  Counter counter;
  const auto world = comm::observed(*ranks, counter);
  TrainedModel trained(run.model, run.type, 1, run.layout, *world, runtime,
                       {.data_parallel = run.data});
  if (look) look(trained);
  trained.step.begin({});
  const size_t tokens = kSequences * kLength;
  corpus::HostBatch batch{.layout = {.sequences = kSequences, .length = kLength},
                          .tokens = std::vector<int32_t>(tokens),
                          .positions = std::vector<int32_t>(tokens),
                          .labels = std::vector<int32_t>(tokens),
                          .loss_mask = std::vector<float>(tokens, 1),
                          .sample_ids = std::vector<int64_t>(kSequences),
                          .segment_starts = {}};
  corpus::keep_tokens(batch, trained.ranks.tokens(kSequences, kLength));
  const std::vector<corpus::HostBatch> batches(kMicroBatches, batch);
  trained.step.run(batches, {.learning_rate = 1e-3});
  counter.sent = 0;
  counter.calls.clear();
  trained.step.run(batches, {.learning_rate = 1e-3});
  return counter;
}

std::string text(const RunOf& run) {
  return fmt::format("{} layers, {} key groups, {}, {}, rank {} of {}", run.model->num_layers(),
                     run.model->facts().attention->key_heads,
                     run.model->facts().tied ? "tied" : "untied", name(run.type), run.rank,
                     run.ranks);
}

TEST(Traffic, OfTensorParallelism) {
  for (const models::Model& model : all_models()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const int ranks : {2, 4}) {
        for (const bool sequence : {false, true}) {
          for (const bool async : {false, true}) {
            RunOf run{.model = model, .type = type, .ranks = ranks, .rank = ranks - 1};
            run.layout.ranks.layout.tp = ranks;
            run.layout.ranks.sequence = sequence;
            run.layout.ranks.async = async;
            const Counter counter = counted(run);
            EXPECT_DOUBLE_EQ(counter.sent, tensor_parallel_bytes(run.shape(), ranks, sequence))
                << text(run) << (sequence ? ", tokens divided" : "") << "\n"
                << counter.text();
          }
        }
      }
    }
  }
}

// A border between shards may not cut a matrix that has at most one block of the gradient norm.
// Buckets are then padded, and the padding is not part of the model's parameters.
SpanElements padded(const RunOf& run, TrainedModel& trained) {
  std::vector<const Span*> spans;
  const models::Stage& stage = *trained.parts.chunks()[0];
  for (const models::Block& block : stage.blocks()) spans.push_back(&block.span);
  spans.push_back(&stage.head());
  const int64_t unit = 64 / size_of(run.type);
  const parallel::BucketRules rules{.shards = run.data.sharding == Sharding::none ? 1 : run.ranks,
                                    .unit = std::max<int64_t>(unit, 16),
                                    .bucket_elements = run.data.bucket_elements,
                                    .by_span = run.data.sharding >= Sharding::gradients,
                                    .shared_apart = run.data.sharding >= Sharding::gradients};
  SpanElements elements{.spans = std::vector<int64_t>(spans.size()), .shared = 0};
  for (const parallel::Bucket& b : parallel::lay_out(stage.parameters(), spans, rules)) {
    int64_t& of = b.shared ? elements.shared : elements.spans[static_cast<size_t>(b.spans[0])];
    of += rules.shards * b.shard;
  }
  return elements;
}

TEST(Traffic, OfDataParallelism) {
  for (const models::Model& model : all_models()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const int ranks : {2, 4}) {
        for (const Sharding sharding :
             {Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::parameters}) {
          for (const bool overlap : {false, true}) {
            RunOf run{.model = model, .type = type, .ranks = ranks, .rank = ranks - 1};
            run.layout.ranks.sharding = sharding;
            run.layout.ranks.async = overlap;
            run.data = {.sharding = sharding, .overlap_reduce = overlap, .overlap_gather = overlap};
            SpanElements elements;
            const Counter counter =
                counted(run, [&](TrainedModel& trained) { elements = padded(run, trained); });
            EXPECT_DOUBLE_EQ(counter.sent,
                             data_parallel_bytes(run.shape(), elements, ranks, run.data))
                << text(run) << ", " << name(sharding) << (overlap ? ", overlapped" : "") << "\n"
                << counter.text();
          }
        }
      }
    }
  }
}

TEST(Traffic, SpansHoldTheParametersOfTheModel) {
  for (const models::Model& model : all_models()) {
    const SpanElements elements = span_elements(model);
    EXPECT_EQ(elements.total(), model->parameter_count());
    RunOf run{.model = model};
    counted(run, [&](TrainedModel& trained) {
      const SpanElements laid_out = padded(run, trained);
      EXPECT_EQ(laid_out.total(), elements.total());
    });
  }
}

TEST(Traffic, OfEachPipelineStage) {
  const std::vector<std::pair<ScheduleKind, int>> kinds = {{ScheduleKind::one_f_one_b, 1},
                                                           {ScheduleKind::zero_bubble_h1, 1},
                                                           {ScheduleKind::interleaved, 2},
                                                           {ScheduleKind::zero_bubble_v, 2}};
  for (const models::Model& model : all_models()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const int stages : {2, 4}) {
        for (const auto& [kind, chunks] : kinds) {
          for (int stage = 0; stage < stages; ++stage) {
            RunOf run{.model = model, .type = type, .ranks = stages, .rank = stage};
            parallel::RanksOptions& options = run.layout.ranks;
            options.layout.pp = stages;
            options.pipeline = {.kind = kind, .stages = stages, .chunks = chunks};
            options.async = true;
            const Counter counter = counted(run);
            EXPECT_DOUBLE_EQ(counter.sent, pipeline_bytes(run.shape(), options.pipeline, stage))
                << text(run) << ", " << name(kind) << "\n"
                << counter.text();
          }
        }
      }
    }
  }
}

// Bytes of attention's exchanges over all ranks, per layer and micro-batch.
double exchanged(RunOf run) {
  double sum = 0;
  for (run.rank = 0; run.rank < run.ranks; ++run.rank)
    for (const auto& [call, bytes] : counted(run).calls)
      if (call.starts_with("context, ")) sum += bytes;
  return sum / static_cast<double>(kMicroBatches * run.model->num_layers());
}

constexpr int kContextRanks = 4;

RunOf with_context(models::ModelFlags flags, DType type, parallel::ContextExchange exchange) {
  RunOf run{
      .model = models::model_from_flags(flags, kLength), .type = type, .ranks = kContextRanks};
  run.layout.ranks.layout.cp = kContextRanks;
  run.layout.ranks.context_exchange = {exchange};
  if (exchange == parallel::ContextExchange::a2a_p2p)
    run.layout.ranks.layout.hierarchical_cp = {2, 2};
  return run;
}

// Checks the closed forms of docs/parallelism.md.
TEST(Traffic, OfContextParallelism) {
  using parallel::ContextExchange;
  constexpr double n = kContextRanks;
  for (const int64_t groups : {4, 2}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const double element = static_cast<double>(size_of(type)),
                   head = kSequences * kLength * 16,  // elements of all tokens
          queries = 4 * head, keys = 2 * static_cast<double>(groups) * head;
      const auto expect = [&](ContextExchange exchange, double bytes) {
        EXPECT_DOUBLE_EQ(exchanged(with_context(llama(groups, true), type, exchange)), bytes)
            << name(exchange) << " of " << groups << " groups, " << name(type);
      };
      // Backward passes keys and values again, and brings their f32 gradients to their rank.
      expect(ContextExchange::p2p, (n - 1) * keys * (2 * element + 4));
      expect(ContextExchange::all_gather, 2 * (n - 1) * keys * element);
      // With fewer key heads than ranks, a key head is sent to each rank that shares it.
      const double sent_keys = 2 * std::max<double>(static_cast<double>(groups), n) * head;
      expect(ContextExchange::a2a, 2 * (n - 1) / n * (2 * queries + sent_keys) * element);
      // Exchanges within groups of two ranks, then rings of two with half of the heads each.
      expect(ContextExchange::a2a_p2p,
             2 * 0.5 * (2 * queries + keys) * element + keys * (2 * element + 4));
    }
  }
}

// The window is an eighth of the sequence, the size of a chunk. Seven chunks see their predecessor,
// and six of them get three of its tokens from another rank.
TEST(Traffic, OfAWindowIsThatOfTheSeenTokens) {
  using parallel::ContextExchange;
  models::ModelFlags windowed = llama(2, true);
  windowed.window_size = "3,0";
  for (const DType type : {DType::f32, DType::bf16})
    for (const ContextExchange exchange : {ContextExchange::p2p, ContextExchange::all_gather}) {
      const double token = 2 * 2 * 16 * static_cast<double>(size_of(type)),  // keys and values
          all = exchanged(with_context(llama(2, true), type, exchange));
      const double seen = exchanged(with_context(windowed, type, exchange));
      EXPECT_DOUBLE_EQ(seen, 2 * 6 * 3 * kSequences * token);
      EXPECT_LT(seen, all / 4);
    }
}

}  // namespace
}  // namespace megatron::training
