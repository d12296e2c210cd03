// Requirements of a run, found before it begins by running the model's own code on the meta device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/setting_note.h"
#include "device/arena.h"
#include "kernels/cost.h"

namespace megatron::plan {

// Number of parameters of one class in one span of the model.
struct ParameterCount {
  std::string span;   // "embedding", "layers.0", "head"
  std::string group;  // "embedding", "position", "norm", "attention", "mlp", "output"
  int64_t count = 0;
};

// Calls of one kernel in a step, all shapes together.
struct KernelWork {
  std::string kernel;
  DType type = DType::f32;  // of its first floating operand
  int64_t calls = 0;
  kernels::Cost cost;             // over all calls
  std::optional<double> seconds;  // estimated
};

// Calls of one collective in a step, as one rank makes them.
struct TrafficWork {
  std::string collective, call;
  int ranks = 1;
  int64_t calls = 0;
  double bytes = 0, sent = 0;  // see comm/traffic.h
};

// A run in which all layers exchange the tokens of context-parallel ranks in one way
// (--cp-comm-type), as rank 0 executes it.
struct ContextExchange {
  std::string name;     // "p2p"
  std::string refused;  // why the run cannot have it; "": it can, and the other values are set
  int64_t calls = 0;    // in a step
  // Bytes on the rank's link in a step, and those of calls that overlap with compute.
  double sent = 0, overlapped = 0;
  int64_t activations = 0;  // bytes of activations and of buffers for communication
};
// All ways in which a run with context parallelism can exchange tokens.
struct ContextExchanges {
  int64_t layers = 0;  // of rank 0
  std::vector<ContextExchange> all;
  std::vector<std::string> given;  // of the run: one for all layers, or one per layer

  const ContextExchange* cheapest() const;  // sends the fewest bytes; null: all are refused
};

struct FlopCount {
  std::string formula;  // plan/flops.h
  double flops = 0;     // per step: all ranks, forward and backward
};

// Bytes that one rank holds.
struct MemoryUse {
  std::array<int64_t, kMemoryClasses> arenas{};  // high-water marks, by MemoryClass
  int64_t host = 0;  // prefetched batches, snapshots, buffers of threads
  int64_t arena_bytes() const {
    int64_t sum = 0;
    for (const int64_t bytes : arenas) sum += bytes;
    return sum;
  }
};

// Megatron-LM's estimate for the same flags (plan/megatron_memory.h).
struct MegatronEstimate {
  int64_t weights_and_optimizer = 0, activations = 0;
};

// The GPU that ranks of a CUDA run compute on.
struct GpuMemory {
  std::string name;         // "NVIDIA H200"
  int64_t bytes = 0;        // its memory
  int ranks = 1;            // most ranks of this machine that share one GPU
  int processes = 1;        // number of processes that these ranks belong to
  std::string assumed;      // "" for a GPU of this machine; else why another one is assumed
  bool known_rates = true;  // whether its rates are known (plan/assumed_time.h)
  // Allowance for the driver's context and the libraries' code in each process, and for memory that
  // arenas map ahead of use.
  static constexpr int64_t kOverhead = int64_t{1} << 30;
};

// A part of a micro-batch's work at an assumed rate; the rate is absent if parts have different
// ones.
struct AssumedItem {
  std::string name;
  double seconds = 0;
  std::optional<double> flops_per_second, bytes_per_second;
};
// Time of the rank with the most compute, without communication (plan/assumed_time.h).
struct AssumedTime {
  std::vector<AssumedItem> items;  // per micro-batch
  AssumedItem optimizer;           // per step
  double micro_batch_seconds = 0, step_seconds = 0;
};

// Number of rows of a rank's experts in a layer, for a micro-batch (plan/expert_rows.h).
struct ExpertRows {
  enum class Bound { any_load, expert_capacity, rank_capacity };
  Bound bound = Bound::any_load;  // what determines the size of the buffers
  double factor = 0;              // capacity factor
  int64_t room = 0;               // rows of the buffers
  double even = 0;                // rows with an even load
  // Upper bound of the load of the fullest rank (not divided: expert) relative to the mean.
  double most = 1;
  bool divided = false;  // each rank has some of the experts; else all
  bool padded = false;   // every row of the buffers is computed
  bool fixed = false;    // buffers use their full memory regardless of their contents
};
// The run if the fullest rank has `load` times the mean load. If experts are not divided, it is the
// fullest expert.
struct ExpertLoad {
  double load = 1;
  int64_t rows = 0;   // rows of the fullest rank's experts per layer
  int64_t bytes = 0;  // memory of a rank in the most loaded stage
  // Seconds of a step, estimated for this machine or assumed for a GPU.
  std::optional<double> seconds;
};

// Number of ranks along each axis that divides a model and its samples. Experts are divided over
// the ranks of a stage.
struct PlanAxes {
  int64_t tensor = 1, pipeline = 1, context = 1, data = 1;
  int64_t expert = 1, expert_tensor = 1;  // 0 for a model without experts
};

// What an engine that generates with the whole model on one rank keeps of a sequence.
struct GenerationMemory {
  int64_t token_bytes = 0;     // of each token, up to a layer's window: keys and values, or latents
  int64_t sequence_bytes = 0;  // of any number of tokens: states of state spaces
};

struct Plan {
  std::string model;   // "124M parameters, 12 layers, hidden 768, vocabulary 50257"
  std::string device;  // "cpu"
  DType type = DType::f32;
  std::string low_precision;                   // which products have quantized operands; "": none
  int ranks = 1, ranks_here = 1, threads = 1;  // total; on this machine; per rank
  PlanAxes axes;
  int64_t sequences = 0, length = 0;  // sequences of a global batch, and their length in tokens
  int64_t encoder_length = 0;  // tokens of each sequence's text for the encoder; 0: no encoder
  int64_t micro_batches = 0, micro_batch_size = 0;
  int64_t iterations = 0;
  std::vector<ParameterCount> parameters;
  std::optional<GenerationMemory> generation;  // none: it generates no text, or was not counted
  std::optional<int64_t> trained;              // number of them that --freeze leaves to train
  bool reference = false;         // a reference model with as many runs before each step
  std::vector<FlopCount> flops;   // formula "model" first
  MemoryUse memory;               // memory of rank 0
  std::vector<MemoryUse> stages;  // of one rank of each pipeline stage
  // `stages` at the worst load of experts, if the other figures have a different load; otherwise
  // empty.
  std::vector<MemoryUse> worst_stages;
  bool exact = true;    // false if the figures may be off by a few per cent
  int64_t program = 0;  // bytes of a process besides its ranks
  int64_t machine = 0;  // bytes of memory for this process; 0: unknown
  // File of the limit in `machine`; "": the limit is the machine's whole memory.
  std::string cgroup;
  std::optional<GpuMemory> gpu;  // for a CUDA run; all arenas except `offload` lie there
  std::vector<KernelWork> kernels;
  std::vector<TrafficWork> traffic;
  std::optional<double> step_seconds;  // estimated for this machine
  std::optional<AssumedTime> assumed;  // set if there is no GPU to measure
  double peak = 0;                     // FLOP/s of matrix products over all ranks; 0: not measured
  std::string peak_origin;             // "kept from 2026-11-23 04:24 UTC ...", "measured now ..."
  std::optional<MegatronEstimate> megatron;   // not of an encoder-decoder
  std::optional<ContextExchanges> exchanges;  // set if they were compared
  std::optional<ExpertRows> experts;          // set for a model with experts
  std::vector<ExpertLoad>
      // The load of the other figures, and the worst; empty if the figures have full buffers.
      loads;
  std::vector<SettingNote> derived;  // settings that were derived, or changed from what was given
  std::vector<std::string> suggestions;  // flags with which a run that does not fit would fit

  int64_t parameter_count() const;
  int64_t tokens() const { return sequences * (length + encoder_length); }  // of a step
  std::string length_text() const;  // "128 tokens", of an encoder-decoder "512 + 128 tokens"
  // Bytes at the worst load of experts. rank_bytes(): a rank of the stage that takes the most.
  // process_bytes(): host memory of a process with ranks_here ranks. gpu_bytes(): the fullest GPU,
  // 0 without one.
  int64_t rank_bytes() const;
  int64_t process_bytes() const;
  int64_t gpu_bytes() const;
  bool fits_gpu() const { return !gpu || gpu_bytes() <= gpu->bytes; }
  // Formats "the machine has 24.1 GB", "its cgroup (FILE) allows 200 MB".
  std::string memory_text() const;
  bool fits() const { return fits_gpu() && (machine == 0 || process_bytes() <= machine); }
};

}  // namespace megatron::plan
