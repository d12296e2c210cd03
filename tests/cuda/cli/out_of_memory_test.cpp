// Runs in which a GPU's memory or its libraries fail midway: they end with one error that names the
// cause, a complete log and complete checkpoints. The stand-in injects the faults
// (cuda_shim/control.h).
#include <algorithm>

#include "base/tolerances.h"
#include "cuda/cli/planted.h"
#include "cuda/cli/training_runs.h"
#include "text.h"

namespace megatron::testing {
namespace {

const std::string kRun =
    "train --device cuda --mock-data --vocab-size 203 --num-layers 1 --hidden-size 32 "
    "--num-attention-heads 2 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 "
    "--global-batch-size 2 --lr 1e-3 --lr-decay-iters 6 --log-interval 1 --threads 1 --train-iters "
    "4 --save run --save-interval 1 --eval-interval 2 --eval-iters 1 --log-jsonl log.jsonl "
    "--cuda-graph-impl local --cuda-graph-warmup-steps 2 ";

// Returns the number of steps and the type of the last record, and checks that every line is a
// record.
std::pair<int64_t, std::string> read_log(const Workplace& place) {
  std::pair<int64_t, std::string> found;
  if (!fs::exists(place / "log.jsonl")) return found;
  std::istringstream lines(read_file(place / "log.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    found.second = Json::parse(line)["type"].as_string();
    found.first += found.second == "step";
  }
  return found;
}

// Returns the number of checkpoints after checking that each is complete.
int64_t whole_checkpoints(const Workplace& place) {
  int64_t found = 0;
  if (!fs::exists(place / "run")) return found;
  for (const auto& entry : fs::directory_iterator(place / "run")) {
    if (!entry.is_directory()) continue;
    ++found;
    EXPECT_EQ(place.run({"inspect", "--verify", entry.path()}).code, 0) << entry.path();
  }
  return found;
}

// Returns the error messages. Their lines begin with the time, such as 12:16:00, and the level.
std::vector<std::string> errors_in(const std::string& said) {
  const std::string level = " error ";
  std::vector<std::string> found;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);)
    if (line.size() > 8 && line.compare(8, level.size(), level) == 0)
      found.push_back(line.substr(8 + level.size()));
  return found;
}

// Error of a run whose memory ends after so many allocations; empty if there is none.
std::string error_after(const Workplace& place, int allocations, const std::string& flags,
                        int64_t* checkpoints) {
  SCOPED_TRACE(allocations);
  for (const char* left : {"run", "log.jsonl"}) fs::remove_all(place / left);
  const Planted few("CUDA_SHIM_ALLOCATIONS", std::to_string(allocations));
  const Outcome r = place.run(words(kRun + flags));
  const std::string said = r.out + r.err;
  const auto [steps, last] = read_log(place);
  *checkpoints = whole_checkpoints(place);
  const std::vector<std::string> errors = errors_in(said);
  // If a save runs out of memory on one rank, all ranks abandon it and the run continues.
  const int64_t not_saved =
      std::ranges::count_if(errors, [](const auto& e) { return has(e, " was not saved: "); });
  EXPECT_EQ(*checkpoints, steps - not_saved) << said;
  if (r.code == 0 && not_saved == 0) return "";
  const std::string error = errors.empty() ? "" : errors.back();
  const bool by_save = has(error, " was not saved: ");  // only the last save ends the run
  EXPECT_TRUE(r.code == 0 || r.code == 2) << said;
  EXPECT_EQ(std::ssize(errors), not_saved + (r.code == 0 || by_save ? 0 : 1)) << said;
  EXPECT_EQ(count(said, "CUDA on the CPU"), 0) << said;
  if (!last.empty()) {
    EXPECT_EQ(last, "end");
  }
  const bool memory = has(error, "out of ") || has(error, "ALLOC");
  EXPECT_TRUE(memory && has(error, " bytes free") && has(error, "--")) << said;
  return error;
}

TEST(CudaOutOfMemory, EndsARunCleanlyWhereverItComes) {
  const Workplace place;
  int64_t checkpoints = 0;
  int enough = 2, failed = 0;
  for (; !error_after(place, enough, "", &checkpoints).empty(); enough += 10) ++failed;
  EXPECT_GE(failed, 3);
  EXPECT_EQ(checkpoints, 4);
  // The last allocation is requested by a graph in the middle of the run.
  std::string last;
  while ((last = error_after(place, --enough, "", &checkpoints)).empty()) continue;
  EXPECT_EQ(checkpoints, 2);
  EXPECT_NE(last.find("cudaGraphInstantiate (not needed with --cuda-graph-impl none, or "),
            std::string::npos)
      << last;
}

// Ranks that wait for the failing one, in NCCL, a graph or on the host, end with it.
TEST(CudaOutOfMemory, OfOneRankEndsAllByItsName) {
  const Planted devices("CUDA_SHIM_DEVICES", "2");
  const Workplace place;
  int64_t checkpoints = 0;
  int failed = 0, allocations = 20;
  for (; allocations < 200; allocations += 11, ++failed) {
    const std::string error =
        error_after(place, allocations, "--tensor-model-parallel-size 2", &checkpoints);
    if (error.empty()) break;
    EXPECT_TRUE(has(error, " was not saved: ") || error.starts_with("rank 0 failed (") ||
                error.starts_with("rank 1 failed ("))
        << error;
  }
  EXPECT_GE(failed, 2);
  EXPECT_EQ(checkpoints, 4);
}

TEST(CudaOutOfMemory, OfPinnedMemoryNamesTheTensorAndTheFlags) {
  const Planted none("CUDA_SHIM_PINNED", "0");
  const Workplace place;
  const Outcome r = place.run(words(kRun + "--optimizer-cpu-offload --use-distributed-optimizer"));
  EXPECT_EQ(r.code, 2);
  for (const char* part :
       {"out of offload memory on cpu: ", " bytes for embedding.weight.exp_avg", "only 0 of ",
        " bytes of host memory could be pinned", "--optimizer-offload-fraction"})
    EXPECT_NE(r.err.find(part), std::string::npos) << part << "\n" << r.err;
}

// If no memory can be pinned, CUDA copies pageable memory itself.
TEST(CudaOutOfMemory, OfPinnedBuffersCostsSpeedAlone) {
  const Workplace place;
  const std::string flags = "--hidden-size 128 --save run --save-interval 1";
  std::string said;
  const std::vector<Step> usual = train(place, "cuda", 2, flags, &said);
  EXPECT_EQ(count(said, "of host memory ("), 0) << said;
  const Planted none("CUDA_SHIM_PINNED", "0");
  fs::remove_all(place / "run");
  EXPECT_EQ(train(place, "cuda", 2, flags, &said), usual);
  EXPECT_EQ(count(said, "cannot pin 33554432 bytes of host memory (out of memory)"), 1) << said;
  EXPECT_EQ(whole_checkpoints(place), 2);
}

// There is enough pinned memory for one GPU's buffers. The lack is logged once for the other, which
// does not ask again.
TEST(CudaOutOfMemory, OfPinnedBuffersIsOfThatGpuAlone) {
  const Workplace place;
  const Planted devices("CUDA_SHIM_DEVICES", "2"), one("CUDA_SHIM_PINNED", "40000000");
  const std::string flags =
      "--hidden-size 128 --save run --save-interval 1 --tensor-model-parallel-size 2";
  std::string said;
  EXPECT_EQ(train(place, "cuda", 2, flags, &said).size(), 2u) << said;
  EXPECT_EQ(count(said, "of host memory (out of memory)"), 1) << said;
}

TEST(CudaRefusedAlgorithms, AreReplacedByTheNextOnesOrEndTheRun) {
  const Workplace place;
  std::string said;
  const std::vector<Step> usual = train(place, "cuda", 2, "--bf16");
  {
    const Planted first("CUDA_SHIM_REFUSE_ALGORITHMS", "1");
    const std::vector<Step> next = train(place, "cuda", 2, "--bf16", &said);
    ASSERT_EQ(next.size(), usual.size());
    for (size_t i = 0; i < next.size(); ++i)
      EXPECT_NEAR(next[i].loss, usual[i].loss, tolerance::kCudaNarrowLossRelative * usual[i].loss);
    EXPECT_NE(said.find("rejected 1 of the 3 algorithms it proposed for 1 product of op(a)"),
              std::string::npos)
        << said;
  }
  const Planted all("CUDA_SHIM_REFUSE_ALGORITHMS", "99");
  const Outcome r = place.run(words(kRun));
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("rejected all of them, the last one with CUBLAS_STATUS_NOT_SUPPORTED"),
            std::string::npos)
      << r.err;
}

}  // namespace
}  // namespace megatron::testing
