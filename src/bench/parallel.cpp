// `megatron bench parallel`: each axis of parallelism on two ranks against one rank.
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <tuple>

#include "base/clock.h"
#include "base/error.h"
#include "base/median.h"
#include "base/philox.h"
#include "base/progress.h"
#include "bench/bench.h"
#include "comm/delaying.h"
#include "comm/threads.h"
#include "comm/traffic.h"
#include "training/trained_model.h"

namespace megatron::bench {
namespace {

struct Flags {
  int64_t num_layers = 12, hidden_size = 768, num_attention_heads = 12, vocab_size = 50257;
  int64_t seq_length = 256, micro_batch_size = 1, micro_batches = 32;
  int64_t rounds = 3, threads = 1;
  double delay = 0;  // milliseconds
  std::string device = "cpu";
  bool bf16 = false;
  std::string only;
};

// Layout of a step over ranks; batches are divided among data-parallel ranks.
struct Spread {
  std::string name;
  training::ModelLayout layout;
  parallel::DataParallelOptions data;

  int data_ranks() const {
    const parallel::Layout& l = layout.ranks.layout;
    return ranks() / (l.tp * l.cp * l.pp);
  }
  int ranks() const { return name == "one rank" ? 1 : 2; }
};

models::Model model_of(const Flags& f) {
  return models::model_from_flags({.num_layers = f.num_layers,
                                   .hidden_size = f.hidden_size,
                                   .num_attention_heads = f.num_attention_heads,
                                   .vocab_size = f.vocab_size,
                                   .hidden_dropout = 0,
                                   .attention_dropout = 0},
                                  f.seq_length);
}

// Number of layers of the first of two stages that balances the work, including the output layer: a
// matrix of p parameters costs 2p per token.
int64_t balanced_first_stage(const models::Model& c) {
  const double layer = 12.0 * static_cast<double>(c->hidden_size() * c->hidden_size()),
               head = static_cast<double>(c->vocab_size() * c->hidden_size());
  const double layers = static_cast<double>(c->num_layers());
  const double first = (layers + head / layer) / 2;
  return std::clamp<int64_t>(static_cast<int64_t>(first + 0.5), 1, c->num_layers() - 1);
}

Spread pipeline(const std::string& name, parallel::ScheduleKind kind, const models::Model& c) {
  Spread s{.name = name};
  s.layout.ranks.layout.pp = 2;
  s.layout.ranks.pipeline = {.kind = kind, .stages = 2};
  s.layout.ranks.async = true;
  const int64_t first = balanced_first_stage(c);
  s.layout.layers.first_stage_layers = first;
  s.layout.layers.last_stage_layers = c->num_layers() - first;
  return s;
}

Spread data_parallel(const std::string& name, parallel::Sharding sharding) {
  Spread s{.name = name};
  s.layout.ranks.sharding = sharding;
  s.layout.ranks.async = true;
  s.data = {.sharding = sharding, .overlap_reduce = true, .overlap_gather = true};
  return s;
}

std::vector<Spread> spreads(const models::Model& c, const Flags& f) {
  std::vector<Spread> all = {{.name = "one rank"},
                             data_parallel("DP 2", parallel::Sharding::none),
                             data_parallel("DP 2, ZeRO-1", parallel::Sharding::optimizer),
                             data_parallel("DP 2, ZeRO-3", parallel::Sharding::parameters)};
  if (c->num_layers() > 1) {
    all.push_back(pipeline("PP 2, 1F1B", parallel::ScheduleKind::one_f_one_b, c));
    all.push_back(pipeline("PP 2, ZB-H1", parallel::ScheduleKind::zero_bubble_h1, c));
  }
  Spread tensor{.name = "TP 2"};
  tensor.layout.ranks.layout.tp = 2;
  tensor.layout.ranks.async = true;
  all.push_back(tensor);
  tensor.name = "TP 2 + SP";
  tensor.layout.ranks.sequence = true;
  all.push_back(tensor);
  using enum parallel::ContextExchange;
  for (const parallel::ContextExchange exchange : {p2p, all_gather, a2a}) {
    Spread context{.name = fmt::format("CP 2, {}", parallel::name(exchange))};
    context.layout.ranks.layout.cp = 2;
    context.layout.ranks.context_exchange = {exchange};
    context.layout.ranks.async = true;
    all.push_back(context);
    if (f.delay == 0 || exchange != p2p) continue;
    context.name += ", serial";
    context.layout.ranks.async = false;
    all.push_back(context);
  }
  return all;
}

// The rank's part of micro-batches that begin with number `first`.
std::vector<corpus::HostBatch> batches(const Flags& f, int64_t count, int64_t first,
                                       const parallel::Ranks& ranks) {
  const RandomStream stream(7, "bench.tokens");
  std::vector<corpus::HostBatch> all;
  uint64_t at = static_cast<uint64_t>(first * f.micro_batch_size * f.seq_length);
  for (int64_t b = 0; b < count; ++b) {
    corpus::HostBatch batch{.layout = {.sequences = f.micro_batch_size, .length = f.seq_length}};
    for (int64_t i = 0; i < f.micro_batch_size * f.seq_length; ++i, ++at) {
      const auto token = [&](uint64_t k) {
        return static_cast<int32_t>(stream.bits(k) % static_cast<uint64_t>(f.vocab_size));
      };
      batch.tokens.push_back(token(at));
      batch.labels.push_back(token(at + 1));
      batch.positions.push_back(static_cast<int32_t>(i % f.seq_length));
      batch.loss_mask.push_back(1);
    }
    for (int64_t s = 0; s < f.micro_batch_size; ++s)
      batch.sample_ids.push_back((first + b) * f.micro_batch_size + s);
    corpus::keep_tokens(batch, ranks.tokens(f.micro_batch_size, f.seq_length));
    all.push_back(std::move(batch));
  }
  return all;
}

// Counts the bytes that a rank sends, except the few numbers summed for loss and gradient norm.
class Counter final : public comm::TrafficListener {
 public:
  void communicated(const comm::Traffic& traffic) override {
    if (on && traffic.call != "step.totals" && traffic.call != "gradient norm")
      sent += comm::sent_bytes(traffic);
  }
  bool on = false;
  double sent = 0;
};

struct ParallelRun {
  double seconds = 0, processor = 0, loss = 0;
  double sent = 0;  // bytes sent by rank 0
};

// Waits for parameters that are gathered during the compute.
void settle(const training::TrainedModel& trained) {
  if (comm::Group* const async = trained.ranks.data_parallel().dense.async; async != nullptr)
    async->barrier("bench.settle");
}

// Runs a warm-up step, which changes no parameter, and a timed step, from the moment when all ranks
// are ready until all have finished.
ParallelRun run_once(const Spread& spread, const Flags& f, const models::Model& model) {
  ParallelRun timed;
  comm::run_ranks(spread.ranks(), [&](comm::Group& threads) {
    Counter counter;
    comm::Delaying delaying(threads, comm::Delaying::Duration(f.delay));
    const auto world =
        comm::observed(f.delay > 0 ? static_cast<comm::Group&>(delaying) : threads, counter);
    Runtime runtime({DeviceKind::cpu, 0}, static_cast<int>(f.threads));
    training::TrainedModel trained(model, f.bf16 ? DType::bf16 : DType::f32, 1, spread.layout,
                                   *world, runtime, {.data_parallel = spread.data});
    trained.initialize(1);
    trained.step.begin({});
    const int64_t share = f.micro_batches / spread.data_ranks();
    const auto mine = batches(f, share, trained.ranks.samples().rank() * share, trained.ranks);
    trained.step.run(std::span(mine).first(static_cast<size_t>(std::min<int64_t>(share, 2))),
                     {.learning_rate = 0});
    settle(trained);
    world->barrier("bench.begin");
    const double begin = now_seconds(), processor = processor_seconds();
    counter.on = true;
    const training::StepReport report =
        trained.step.run(mine, {.learning_rate = 1e-4, .weight_decay = 0.1});
    settle(trained);
    world->barrier("bench.end");
    if (world->rank() != 0) return;
    timed.seconds = now_seconds() - begin;
    timed.processor = processor_seconds() - processor;
    timed.sent = counter.sent;
    timed.loss = report.loss;
  });
  return timed;
}

double median_of(const std::vector<ParallelRun>& runs, double ParallelRun::* of) {
  std::vector<double> values;
  for (const ParallelRun& run : runs) values.push_back(run.*of);
  return median(std::move(values));
}

void print_head() {
  fmt::print("{:<18} {:>9} {:>9} {:>9} {:>8} {:>9} {:>8} {:>10} {:>7}  loss\n", "layout",
             "median s", "least s", "tokens/s", "speed", "CPU s", "CPU", "MB sent", "bubble");
}

// one: of one rank.
void print_row(const Spread& spread, const std::vector<ParallelRun>& runs,
               const std::vector<ParallelRun>& one, const Flags& f) {
  const double tokens = static_cast<double>(f.micro_batches * f.micro_batch_size * f.seq_length);
  const double middle = median_of(runs, &ParallelRun::seconds),
               processor = median_of(runs, &ParallelRun::processor);
  std::string bubble = "-";
  if (const auto& shape = spread.layout.ranks.pipeline; shape.stages > 1) {
    const auto step = parallel::simulate(shape, static_cast<int>(f.micro_batches));
    bubble = fmt::format("{:.1f}%", 100 * step.idle[0] / step.seconds);
  }
  fmt::print(
      "{:<18} {:>9.3f} {:>9.3f} {:>9.0f} {:>7.2f}x {:>9.3f} {:>7.2f}x {:>10.2f} {:>7}  {:.6f}\n",
      spread.name, middle, std::ranges::min(runs, {}, &ParallelRun::seconds).seconds,
      tokens / middle, median_of(one, &ParallelRun::seconds) / middle, processor,
      processor / median_of(one, &ParallelRun::processor), runs.back().sent * 1e-6, bubble,
      runs.back().loss);
}

void check_sizes(const Flags& f) {
  for (const auto& [value, flag] : {std::pair{f.num_layers, "num-layers"},
                                    {f.hidden_size, "hidden-size"},
                                    {f.num_attention_heads, "num-attention-heads"},
                                    {f.vocab_size, "vocab-size"},
                                    {f.seq_length, "seq-length"},
                                    {f.micro_batch_size, "micro-batch-size"},
                                    {f.micro_batches, "micro-batches"},
                                    {f.rounds, "rounds"},
                                    {f.threads, "threads"}})
    MG_CHECK(value > 0 && value < (1 << 20), "--{} is {}; it must lie in [1, 2^20)", flag, value);
  MG_CHECK(f.delay >= 0 && f.delay <= 1e5, "--delay is {}; it must lie in [0, 100000] milliseconds",
           f.delay);
}

void check_divides(const Flags& f, std::span<const Spread> spreads) {
  for (const Spread& spread : spreads) {
    const parallel::Layout& layout = spread.layout.ranks.layout;
    for (const auto& [ranks, value, flag] :
         {std::tuple{spread.data_ranks(), f.micro_batches, "micro-batches"},
          {layout.tp * layout.cp, f.num_attention_heads, "num-attention-heads"},
          {layout.tp * layout.cp, f.seq_length, "seq-length"}}) {
      MG_CHECK(value % ranks == 0,
               "--{} {} cannot be divided between the two ranks of '{}'; give an even number, or "
               "--only other rows",
               flag, value, spread.name);
    }
  }
}

}  // namespace

int measure_parallel(const ReadFlags& read) {
  Flags f;
  settings::RuntimeSettings runtime;
  Fields fields;
  fields.add("num-layers", &f.num_layers, "layers");
  fields.add("hidden-size", &f.hidden_size, "hidden size");
  fields.add("num-attention-heads", &f.num_attention_heads, "attention heads");
  fields.add("vocab-size", &f.vocab_size, "vocabulary size");
  fields.add("seq-length", &f.seq_length, "tokens per sequence");
  fields.add("micro-batch-size", &f.micro_batch_size, "sequences per micro-batch");
  fields.add("micro-batches", &f.micro_batches, "sequences per step, over all ranks");
  fields.add("rounds", &f.rounds, "number of measurements of each layout, taken in turn");
  fields.add("threads", &f.threads, "CPU threads of each rank");
  fields.add("delay", &f.delay,
             "milliseconds that each call between ranks takes without using a core, as over a slow "
             "link; adds a row whose calls do not overlap with compute");
  fields.add("device", &f.device, {"cpu"},
             "only cpu: ranks that share a GPU would not run at the same time");
  runtime.add_instruction_set(fields);
  fields.add_switch("bf16", &f.bf16, true, "compute in bfloat16 instead of fp32");
  fields.add("only", &f.only,
             "measure only rows whose name contains this, and the one-rank baseline");
  if (const auto code = read(
          "megatron bench parallel [flags]",
          "Measures a training step on two ranks (threads), for each kind of parallelism, "
          "against the same step on one rank: GPT-2 124M, sequence length 256, 32 "
          "micro-batches. For context parallelism: --only CP --num-layers 2 --seq-length "
          "16384 --micro-batches 1. Each rank needs its own core. Columns: CPU, CPU seconds of all "
          "threads, also as a multiple of one rank's; MB sent, those of rank 0.",
          fields)) {
    return *code;
  }
  check_sizes(f);
  runtime.limit_instruction_set();
  const models::Model model = model_of(f);
  std::vector<Spread> all = spreads(model, f);
  const auto is_meant = [&](const Spread& s) {
    return s.ranks() > 1 && s.name.find(f.only) != std::string::npos;
  };
  if (std::ranges::none_of(all, is_meant)) {
    std::string names;
    for (const Spread& s : all) names += fmt::format("{}{}", names.empty() ? "" : "; ", s.name);
    fail("--only {}: no row's name contains this; the rows are {}", f.only, names);
  }
  std::erase_if(all, [&](const Spread& s) { return s.ranks() > 1 && !is_meant(s); });
  check_divides(f, all);
  std::map<std::string, std::vector<ParallelRun>> runs;
  Progress progress("measuring", f.rounds * static_cast<int64_t>(all.size()), "runs");
  int64_t done = 0;
  for (int64_t round = 0; round < f.rounds; ++round) {
    for (const Spread& spread : all) {
      runs[spread.name].push_back(run_once(spread, f, model));
      progress.update(++done, spread.name);
    }
  }
  progress.finish();
  const std::vector<ParallelRun>& one = runs[all[0].name];
  print_head();
  for (const Spread& spread : all) print_row(spread, runs[spread.name], one, f);
  const auto [least, most] = std::ranges::minmax(one, {}, &ParallelRun::seconds);
  const double spread = most.seconds / least.seconds - 1;
  fmt::print("the one-rank steps vary by {:.0f}%{}\n", 100 * spread,
             spread > 0.15 ? ": too noisy, do not rely on this run" : "");
  return 0;
}

}  // namespace megatron::bench
