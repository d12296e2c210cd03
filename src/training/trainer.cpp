#include "training/trainer.h"

#include "base/log.h"
#include "comm/doing.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "data/blended_dataset.h"
#include "device/cuda_library.h"
#include "kernels/table.h"
#include "plan/figures.h"
#include "plan/kept_rates.h"
#include "plan/page.h"
#include "training/rank_run.h"

namespace megatron::training {
namespace {

// Peak over all machines of the run.
struct MachinePeak {
  double value = 0;  // FLOP/s
  int hosts = 1;
  std::string origin;
};

std::string text_lengths(const RunPlan& plan) {
  const settings::BatchSettings& b = plan.settings.batch;
  if (plan.model->facts().encoder_layers == 0) return fmt::format("{} tokens", *b.seq_length);
  return fmt::format("{} tokens for the encoder and {} for the decoder", *b.seq_length,
                     b.labelled_length());
}

void announce_data(const RunPlan& plan) {
  const settings::BatchSettings& b = plan.settings.batch;
  const data::Dataset& set = plan.corpus.set(data::Split::train);
  const auto* blend = dynamic_cast<const data::BlendedDataset*>(&set);
  log::info(
      "data: {} training samples of {}{}; global batch {} = {} data-parallel ranks x {} "
      "micro-batches of {}",
      set.size(), text_lengths(plan),
      blend != nullptr ? fmt::format(" of {} data sets", blend->parts().size()) : "",
      b.schedule.batch(0), plan.settings.data_parallel(), b.schedule.micro_batches(0),
      *b.micro_batch_size);
  if (b.schedule.stages().size() > 1) {
    log::info("the global batch size grows to {} by sample {}", b.schedule.last(),
              b.schedule.stages().back().begin);
  }
  if (b.schedule.batch(0) != b.schedule.target(0)) {
    log::warning(
        "--decrease-batch-size-if-needed: global batch size {} is lowered to {}, a multiple of "
        "micro-batch size x ranks",
        b.schedule.target(0), b.schedule.batch(0));
  }
  if (!b.rampup_batch_size.empty()) {
    log::warning(
        "--rampup-batch-size takes effect here; today's Megatron-LM accepts the flag but ignores "
        "it, and would train with the global batch size {} from the first step",
        *b.global_batch_size);
  }
}

// FLOPs of the steps that the run has still to do.
double remaining_work(const RunPlan& plan) {
  const auto steps = static_cast<double>(*plan.settings.batch.train_iters - plan.first_iteration());
  return steps * plan.expected.flops.front().flops;
}

// FLOPs of a run below which the GEMM peak is not measured: about those of the measurement itself
// on a few cores.
constexpr double kLeastWork = 2e11;

void announce(const RunPlan& plan, const MachinePeak& peak) {
  const settings::TrainSettings& s = plan.settings;
  for (const std::string& line : plan::summary(plan.expected)) log::info("{}", line);
  if (plan.vocabulary.padded_size > plan.model->vocab_size()) {
    log::info("Megatron-LM would pad the vocabulary to {} rows; this program does not pad it",
              plan.vocabulary.padded_size);
  }
  if (plan.model->family() == "megatron" && plan.model->facts().encoder_layers > 0)
    log::info(
        "the model is Megatron-LM's own T5, with the norms, positions and biases that its flags "
        "give; --model-config t5_base, or --model DIR, gives the published T5");
  announce_data(plan);
  if (!plan.notes.empty()) log::info("settings derived from others:");
  for (const std::string& line : note_lines(plan.notes)) log::info("{}", line);
  if (!plan.changes.empty())
    log::info("settings that differ from those of {}:", plan.start.checkpoint->path());
  for (const resume::SettingChange& change : plan.changes) log::info("  {}", change.text());
  if (s.runtime.gpu_backend() == comm::GpuBackend::nccl &&
      s.runtime.device_kind() != DeviceKind::cuda) {
    log::info(
        "--distributed-backend nccl has no effect: ranks on the {} communicate through host memory",
        name(s.runtime.device_kind()));
  }
  const std::string_view remark =
      kernels::remark_on_products(s.runtime.device_value().kind, s.precision.type());
  if (!remark.empty()) log::info("{}", remark);
  if (peak.value == 0) {
    log::info("GEMM peak: not measured for a run of {}; --measure-peak measures it",
              plan::flops_text(remaining_work(plan)));
  } else {
    log::info(
        "{} GEMM peak of {}: {:.3f} TFLOP/s, {}", name(s.precision.type()),
        peak.hosts == 1 ? "this machine" : fmt::format("{} machines of this kind", peak.hosts),
        peak.value * 1e-12, peak.origin);
  }
}

// "by NCCL 2.27.7 (/usr/lib/x86_64-linux-gnu/libnccl.so.2)"
std::string nccl_by_version() {
  const CudaLibrary nccl = cuda_library("NCCL");
  return nccl.path.empty() ? "by NCCL" : fmt::format("by NCCL {} ({})", nccl.version, nccl.path);
}

// The machine's matrix-product rate with all its threads, by the program's own kernels or oneDNN's,
// whichever are faster, times `hosts` machines. 0 if no earlier run cached it and this run is too
// short to measure it. Only the first process of a run measures it.
MachinePeak peak_of_machines(const RunPlan& plan, const TrainHooks& hooks, int ranks_here,
                             int hosts) {
  if (hooks.peak) return {*hooks.peak, hosts, "measured before"};
  const settings::RuntimeSettings& r = plan.settings.runtime;
  plan::RateKeeping keeping = hooks.rates;
  keeping.renew = keeping.renew || r.measure_peak;
  keeping.measure = remaining_work(plan) >= kLeastWork;
  const Device device = r.device_value();
  const int threads = ranks_here * r.threads_per_rank();
  const DType type = plan.settings.precision.type();
  const plan::Rate own = plan::gemm_peak(device, threads, type, keeping),
                   library = plan::library_gemm_peak(device, threads, type, keeping);
  if (own.value == 0) return {.hosts = hosts};
  if (library.value <= own.value) return {hosts * own.value, hosts, own.origin()};
  return {hosts * library.value, hosts,
          fmt::format("with oneDNN, {}; this program's own kernels reach {:.3f}", library.origin(),
                      hosts * own.value * 1e-12)};
}

}  // namespace

TrainResult train(const settings::TrainSettings& given, const TrainHooks& hooks,
                  comm::Processes* processes) {
  settings::TrainSettings settings = given;
  const bool launched = processes != nullptr && processes->launched();
  const std::unique_ptr<comm::Group> alone = comm::single();
  comm::Group& group = launched ? processes->group() : *alone;
  if (launched) settings.runtime.join(*processes);
  RunPlan plan = make_run_plan(settings, group, hooks.composed, hooks.task);
  const int ranks = plan.settings.runtime.rank_count();
  const int ranks_here = launched ? processes->local_size() : ranks;
  MachinePeak peak;
  if (group.rank() == 0) peak = peak_of_machines(plan, hooks, ranks_here, ranks / ranks_here);
  group.barrier("peak");
  if (group.rank() == 0) announce(plan, peak);
  TrainResult result;
  const comm::WaitLimits limits = plan.settings.runtime.wait_limits();
  const auto body = [&](comm::Group& ranks_of_run) {
    std::unique_ptr<comm::Group> made;
    const settings::RuntimeSettings& runtime = plan.settings.runtime;
    comm::Group& world = comm::for_device(ranks_of_run, runtime.device_value(ranks_of_run.rank()),
                                          made, runtime.gpu_backend());
    if (runtime.device_kind() == DeviceKind::cuda && world.size() > 1 && world.rank() == 0)
      log::info("the ranks' GPUs communicate {}",
                world.queued() ? nccl_by_version() : "through host memory");
    if (comm::Doing* doing = world.doing()) doing->phase("start", true);
    RankRun run(plan, peak.value, world, hooks);
    world.barrier("model.filled");
    if (launched || world.rank() == 0) {  // the files are no longer needed
      plan.start.weights.reset();
      plan.start.checkpoint.reset();
      if (plan.reference) plan.reference->weights.reset();
    }
    world.barrier("model.ready");
    TrainResult mine = run.loop();
    if (launched || world.rank() == 0) result = std::move(mine);
  };
  if (processes != nullptr) {
    processes->run(ranks, body, limits);
  } else {
    comm::run_ranks(ranks, body, limits);
  }
  result.model = plan.model;
  result.settings = plan.settings;
  return result;
}

}  // namespace megatron::training
