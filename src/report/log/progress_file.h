// progress.txt in the --save directory (--log-progress): a line when a job starts and one for each
// checkpoint, over all jobs of a run, in Megatron-LM's form; fields stand apart by tabs:
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
  // all jobs. The job's number is that of Slurm, where it gives one. Throws Error naming the file
  // where it cannot be written.
  ProgressFile(const std::string& save_directory, int ranks, double flops);

  // Appends the line of a checkpoint. flops, tokens: of the run up to it, all jobs.
  void saved(int64_t iteration, double flops, double tokens);

 private:
  void append(const std::string& text) const;

  std::string path_;
  int ranks_;
  double job_begin_, job_flops_;  // seconds since 1970, operations
  double begin_, flops_;          // of the first job in a row with as many ranks
};

// When the first of the last jobs in a row with `ranks` ranks began, and how many operations the
// checkpoints before it took; text: of a progress.txt. A line in another form is passed over.
struct ProgressStart {
  bool found = false;
  double time = 0, flops = 0;  // seconds since 1970
};
ProgressStart progress_start(const std::string& text, int ranks);

}  // namespace megatron::report
