// The effects of flags that only matter on a GPU.
#include <functional>
#include <set>

#include "cli/flags/table.h"
#include "cuda/cli/training_runs.h"

namespace megatron::testing {
namespace {

// Returns the rest of the line after `before` in a run's output, or nothing.
std::string line_behind(const std::string& printed, const std::string& before) {
  const size_t at = printed.find(before);
  if (at == std::string::npos) return "";
  return printed.substr(at + before.size(), printed.find('\n', at) - at - before.size());
}

// Loss and gradient norm of each step with all digits.
std::string bits_of(const Workplace& place) {
  std::string bits;
  for (const Json& step : steps_of(place / "cuda.jsonl"))
    bits += step["loss"].dump() + " " + step["gradient_norm"].dump() + "\n";
  return bits;
}

struct GpuRow {
  std::string flag, flip, base;
  std::function<std::string(const Workplace&, const std::string& printed)> seen;
};

std::vector<GpuRow> gpu_rows() {
  const auto graphs = [](const Workplace&, const std::string& printed) {
    return line_behind(printed, "CUDA graphs: ");
  };
  const std::string recorded = "--cuda-graph-impl local --cuda-graph-warmup-steps ";
  return {{"--cuda-graph-impl", "--cuda-graph-impl local", "--cuda-graph-warmup-steps 1", graphs},
          {"--cuda-graph-warmup-steps", "--cuda-graph-warmup-steps 2", recorded + "1", graphs},
          {"--distributed-backend", "--distributed-backend gloo",
           "--num-layers 1 --tensor-model-parallel-size 2 --distributed-backend nccl",
           [](const Workplace&, const std::string& printed) {
             return line_behind(printed, "the ranks' GPUs communicate ");
           }},
          {"--allow-nondeterministic", "--allow-nondeterministic", "--bf16 ",
           [](const Workplace& place, const std::string&) { return bits_of(place); }}};
}

TEST(CudaFlags, ChangeWhatARunDoes) {
  for (const GpuRow& row : gpu_rows()) {
    SCOPED_TRACE(row.flag);
    const Workplace place;
    std::string printed;
    train(place, "cuda", 3, row.base, &printed);
    const std::string before = row.seen(place, printed);
    train(place, "cuda", 3, row.base + " " + row.flip, &printed);
    EXPECT_NE(before, row.seen(place, printed)) << printed;
  }
}

TEST(CudaFlags, AreThoseThatTheTableNames) {
  std::set<std::string> tested, named;
  for (const GpuRow& row : gpu_rows()) tested.insert(row.flag);
  const cli::FlagTable table;
  for (const cli::FlagRow& row : table.today())
    if (row.verdict == cli::Verdict::supported && row.why == "gpu") named.emplace(row.flag);
  named.insert("--allow-nondeterministic");  // a flag of this program only
  EXPECT_EQ(tested, named);
}

}  // namespace
}  // namespace megatron::testing
