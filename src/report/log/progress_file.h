// progress.txt in the --save directory (--log-progress): one line when a job starts and one for
// each checkpoint, over all jobs of a run, in Megatron-LM's form; fields are separated by tabs:
//
//   2026-01-31 12:00:00  Job ID: 17  # GPUs: 8  Starting job
//   2026-01-31 13:00:00  Job ID: 17  # GPUs: 8  Saved checkpoint  Iteration: 1000
//       Job throughput: 400.0 TFLOP/s/GPU  Cumulative throughput: 380.0 TFLOP/s/GPU
//       Floating-point operations: 1.20e+19  Tokens (in billions): 4.19        (one line)
#pragma once

#include <cstdint>
#include <string>

namespace megatron::report {

class ProgressFile {
 public:
  // Appends the line of a start. ranks: of the job, "GPUs" in the file. flops: of the run so far,
  // in all jobs. The job ID is Slurm's, if available. Throws Error naming the file if it cannot be
  // written.
  ProgressFile(const std::string& save_directory, int ranks, double flops);

  // Appends the line of a checkpoint. flops, tokens: of the run up to it, in all jobs.
  void saved(int64_t iteration, double flops, double tokens);

 private:
  void append(const std::string& text) const;

  std::string path_;
  int ranks_;
  double job_begin_, job_flops_;  // start in seconds since 1970, and operations at that time
  double begin_, flops_;  // the same for the first of consecutive jobs with this number of ranks
};

// Start time of the first of the last consecutive jobs with `ranks` ranks, and the operations of
// the checkpoints before it; text: of a progress.txt. Lines in another form are skipped.
struct ProgressStart {
  bool found = false;
  double time = 0, flops = 0;  // seconds since 1970
};
ProgressStart progress_start(const std::string& text, int ranks);

}  // namespace megatron::report
