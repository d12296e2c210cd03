// Records as from a run that logs every two steps, and a folder for the files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "report/log/record.h"
#include "text.h"

namespace megatron::report::log_test {

using testing::error_of;

// A temporary directory, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "megatron-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline report::RunRecord some_run(int64_t iteration = 0) {
  report::RunRecord run;
  run.iteration = iteration;
  run.flags = {{"lr", "3e-3"}, {"data-path", "a|b"}};
  run.model = Json::Object{{"num_layers", 4}};
  run.layout = Json::Object{{"ranks", 2}, {"data_parallel", 2}};
  run.parameters = 1234567;
  run.threads = 2;
  run.train_iters = 50;
  run.seq_length = 16;
  run.device = "cpu";
  run.precision = "bf16";
  run.flop_formula = "gpt-1";
  run.peak_flops = 2e11;
  return run;
}

// Record of one step; batches of 8 sequences of 16 tokens.
inline report::StepRecord some_step(int64_t iteration) {
  report::StepRecord r;
  r.iteration = iteration;
  r.consumed_samples = 8 * iteration;
  r.consumed_tokens = 128 * iteration;
  r.loss = 5.0 / static_cast<double>(iteration);
  r.learning_rate = 1e-3;
  r.gradient_norm = 0.1 + 0.2;  // has no short decimal form
  r.weight_decay = 0.1;
  r.global_batch_size = 8;
  r.seconds = 0.25;
  r.tokens_per_second = 512;
  r.flops_per_second = 1.5e11;
  r.peak_share = 0.75;
  r.data_wait = 0.01;
  r.communication_wait = 0.02;
  r.save_wait = 0.03;
  r.seconds_left = 185;
  r.memory = {1, 2, 3, 4, 5, 6};
  r.process_memory = 7;
  return r;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace megatron::report::log_test
