// Ranks with a GPU each: the program on the CUDA plugin for the CPU, with a stand-in for NCCL.

#include <cstdlib>
#include <sstream>

#include "base/json.h"
#include "base/tolerances.h"
#include "free_port.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

[[maybe_unused]] const int kDevices = ::setenv("CUDA_SHIM_DEVICES", "4", 1);

const char* const kNcclModel =
    "train --device cuda --mock-data --vocab-size 203 --num-layers 2 --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 "
    "--global-batch-size 4 --lr 1e-3 --lr-decay-iters 6 --log-interval 1 --threads 1 --train-iters "
    "2 --log-jsonl log.jsonl ";

struct Result {
  std::vector<double> losses, norms;
  std::string text;
};

Result train(const Workplace& place, const std::string& flags) {
  std::filesystem::remove(place / "log.jsonl");
  const Outcome r = place.run(words(kNcclModel + flags));
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  Result result{.losses = {}, .norms = {}, .text = r.out + r.err};
  std::istringstream lines(read_file(place / "log.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record["type"].as_string() != "step") continue;
    result.losses.push_back(record["loss"].as_number());
    result.norms.push_back(record["gradient_norm"].as_number());
  }
  return result;
}

struct Layout {
  std::string name, flags;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.flags; }

class Nccl : public ::testing::TestWithParam<Layout> {};

TEST_P(Nccl, HasTheLossesOfHostMemory) {
  const Workplace place;
  const Result nccl = train(place, GetParam().flags),
               gloo = train(place, GetParam().flags + " --distributed-backend gloo");
  EXPECT_NE(nccl.text.find("communicate by NCCL"), std::string::npos) << nccl.text;
  EXPECT_NE(gloo.text.find("communicate through host memory"), std::string::npos) << gloo.text;
  ASSERT_EQ(nccl.losses.size(), 2U);
  ASSERT_EQ(gloo.losses.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    const double loss = gloo.losses[i], norm = gloo.norms[i];
    EXPECT_NEAR(nccl.losses[i], loss, tolerance::kCudaLossRelative * loss) << "step " << i + 1;
    EXPECT_NEAR(nccl.norms[i], norm, 10 * tolerance::kCudaLossRelative * norm);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Nccl,
    ::testing::Values(
        Layout{"Tensor", "--tensor-model-parallel-size 2 --sequence-parallel"},
        Layout{"Pipeline", "--pipeline-model-parallel-size 2 --bf16"},
        Layout{"Sharded",
               "--ranks 2 --bf16 --use-distributed-optimizer --overlap-grad-reduce "
               "--overlap-param-gather"},
        Layout{"FullySharded",
               "--ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy "
               "optim_grads_params"},
        Layout{"Four",
               "--ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"}),
    [](const auto& info) { return info.param.name; });

// Weights that are gathered as codes change no bit.
TEST(NcclCodes, ChangeNoLoss) {
  const Workplace place;
  const std::string flags =
      "--ranks 2 --bf16 --fp8-format hybrid --fp8-recipe tensorwise --hidden-size 128 "
      "--data-parallel-sharding-strategy optim_grads_params";
  const Result plain = train(place, flags), coded = train(place, flags + " --fp8-param-gather");
  ASSERT_EQ(plain.losses.size(), 2U);
  EXPECT_EQ(coded.losses, plain.losses);
  EXPECT_EQ(coded.norms, plain.norms);
}

// The ranks are MPI processes, and each uses the GPU with its local rank.
TEST(NcclProcesses, HaveTheLossesOfThreads) {
  if (std::string(MEGATRON_MPI).empty()) GTEST_SKIP() << "this build has no MPI";
  const Workplace place;
  const Result threads = train(place, "--tensor-model-parallel-size 2");
  std::filesystem::remove(place / "log.jsonl");
  const Outcome r =
      place.run(with({"launch", "-np", "2", "--no-prefix"},
                     words(std::string(kNcclModel) + "--tensor-model-parallel-size 2")));
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_NE((r.out + r.err).find("communicate by NCCL"), std::string::npos) << r.out << r.err;
  std::istringstream lines(read_file(place / "log.jsonl"));
  std::vector<double> losses;
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record["type"].as_string() == "step") losses.push_back(record["loss"].as_number());
  }
  EXPECT_EQ(losses, threads.losses);
}

// --- Processes that connect at MASTER_ADDR:MASTER_PORT, as torchrun and Kubernetes start them.

// Runs two ranks. `after` is a shell command that handles the process of rank 1, $one, before the
// shell waits for both. Returns the exit code and output of rank 0.
std::pair<int, std::string> run_met(const Workplace& place, const std::string& flags,
                                    const std::string& after) {
  const std::string both = "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=" +
                           std::to_string(free_port()) + " ";
  const auto rank = [&](const std::string& r) {
    return both + "RANK=" + r + " LOCAL_RANK=" + r + " " MEGATRON_BINARY " " + kNcclModel + flags +
           " >out" + r + " 2>&1 & ";
  };
  const std::string command = "cd " + place.path() + " && { " + rank("0") + "zero=$!; " +
                              rank("1") + "one=$!; " + after + " wait $zero; }";
  const int status = std::system(command.c_str());
  return {WEXITSTATUS(status), read_file(place / "out0") + read_file(place / "out1")};
}

TEST(NcclRendezvous, HasTheLossesOfThreads) {
  const Workplace place;
  const Result threads = train(place, "--tensor-model-parallel-size 2");
  std::filesystem::remove(place / "log.jsonl");
  const auto [code, text] = run_met(place, "--tensor-model-parallel-size 2", "wait $one;");
  ASSERT_EQ(code, 0) << text;
  EXPECT_NE(text.find("communicate by NCCL"), std::string::npos) << text;
  std::istringstream lines(read_file(place / "log.jsonl"));
  std::vector<double> losses;
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record["type"].as_string() == "step") losses.push_back(record["loss"].as_number());
  }
  EXPECT_EQ(losses, threads.losses);
}

TEST(NcclRendezvous, ARankThatIsKilledEndsTheOther) {
  const Workplace place;
  const auto [code, text] =
      run_met(place, "--tensor-model-parallel-size 2 --train-iters 1000",
              "for i in $(seq 100); do grep -q ' 1/1000 ' out0 && break; sleep 0.1; done; kill -9 "
              "$one;");
  EXPECT_EQ(code, 2) << text;
  EXPECT_NE(text.find("rank 1 has exited"), std::string::npos) << text;
}

TEST(NcclChoice, IsRefusedWhereRanksShareAGpu) {
  const Workplace place;
  const Outcome r = place.run(words(std::string(kNcclModel) +
                                    "--ranks 5 --global-batch-size 5 --distributed-backend nccl"));
  EXPECT_EQ(r.code, 2) << r.out << r.err;
  EXPECT_NE(r.err.find("ranks 0 and 4 share a GPU"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace megatron::testing
