// What is said, and done, on machines that lack a library of NVIDIA's, the driver or a GPU, or have
// another version of one. The wing is that on the CPU, linked with libraries that are played
// (tests/cuda_libraries).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "golden/cli/process.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::pair<std::string, std::string> kLibraries[] = {{"libcublasLt_played.so.13", "130100"},
                                                          {"libcudnn_played.so.9", "91900"},
                                                          {"libnccl_played.so.2", "22707"}};

std::string played(const std::string& version, const std::string& name) {
  return std::string(MEGATRON_PLAYED) + "/" + version + "/" + name;
}

// A program of its own beside such a wing, and a folder of the libraries that its machine has.
class Machine {
 public:
  Machine() {
    fs::create_directories(libraries());
    fs::copy_file(MEGATRON_BINARY, place_ / "megatron");
    fs::copy_file(std::string(MEGATRON_PLAYED) + "/libmegatron_cuda.so",
                  place_ / "libmegatron_cuda.so");
    for (const auto& [name, version] : kLibraries) install(version, name, name);
  }
  void install(const std::string& version, const std::string& name, const std::string& as) {
    fs::copy_file(played(version, name), libraries() + "/" + as,
                  fs::copy_options::overwrite_existing);
  }
  void remove(const std::string& name) { fs::remove(libraries() + "/" + name); }
  void set(const std::string& variable) { variables_ += variable + " "; }

  struct Said {
    int code = 0;
    std::string text;
  };
  Said run(const std::string& arguments) const {
    const std::string command = "cd " + place_.path() + " && LD_LIBRARY_PATH=" + libraries() + " " +
                                variables_ + "./megatron " + arguments + " >said 2>&1";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), read_file(place_ / "said")};
  }
  Said train(const std::string& device) const {
    return run(
        "train --mock-data --vocab-size 50 --num-layers 1 --hidden-size 8 --num-attention-heads 2 "
        "--seq-length 8 --max-position-embeddings 8 --micro-batch-size 1 --lr 1e-3 --train-iters 1 "
        "--threads 1 --device " +
        device);
  }

 private:
  std::string libraries() const { return place_ / "libraries"; }
  Workplace place_;
  std::string variables_;
};

std::string line_with(const std::string& text, const std::string& part) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.find(part) != std::string::npos) return line;
  return "";
}

// One line and the CPU under auto; an error under --device cuda.
void expect_cpu_because(const Machine& machine, const std::string& why) {
  const Machine::Said automatic = machine.train("auto");
  EXPECT_EQ(automatic.code, 0) << automatic.text;
  EXPECT_NE(automatic.text.find("f32 on cpu"), std::string::npos) << automatic.text;
  const std::string line = line_with(automatic.text, "CUDA cannot be used: ");
  EXPECT_NE(line.find("CUDA cannot be used: " + why), std::string::npos) << automatic.text;
  const Machine::Said asked = machine.train("cuda");
  EXPECT_EQ(asked.code, 2) << asked.text;
  EXPECT_NE(asked.text.find(" error CUDA cannot be used: " + why), std::string::npos) << asked.text;
  EXPECT_NE(asked.text.find("use --device cpu"), std::string::npos) << asked.text;
  EXPECT_EQ(std::ranges::count(asked.text, '\n'), 1) << asked.text;
}

TEST(CudaLibraries, TheVersionsThatWereFoundAreTold) {
  const Machine machine;
  const Machine::Said said = machine.train("auto");
  EXPECT_EQ(said.code, 0) << said.text;
  EXPECT_NE(said.text.find("f32 on cuda"), std::string::npos) << said.text;
  EXPECT_NE(said.text.find("driver 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.27.7"),
            std::string::npos)
      << said.text;
}

TEST(CudaLibraries, OneThatIsMissingIsNamed) {
  for (const auto& [name, version] : kLibraries) {
    Machine machine;
    machine.remove(name);
    expect_cpu_because(machine,
                       name + " is not found; install it, or name its folder in LD_LIBRARY_PATH");
  }
}

TEST(CudaLibraries, OneOfAnotherMajorVersionIsRefused) {
  Machine machine;
  machine.remove("libcudnn_played.so.9");
  machine.install("8907", "libcudnn_played.so.8", "libcudnn_played.so.8");
  expect_cpu_because(machine, "libcudnn_played.so.9 is not found");
  machine.install("8907", "libcudnn_played.so.8", "libcudnn_played.so.9");
  expect_cpu_because(machine,
                     "this build needs cuDNN 9, and 8.9.7 was found; install version 9 or build");
  Machine other;
  other.install("30000", "libnccl_played.so.2", "libnccl_played.so.2");
  expect_cpu_because(other, "this build needs NCCL 2, and 3.0.0 was found");
}

TEST(CudaLibraries, ADriverThatIsMissingOrOldAndNoGpuAreTold) {
  const std::pair<std::string, std::string> cases[] = {
      {"CUDA_SHIM_DRIVER=0", "no NVIDIA driver is loaded (libcuda.so.1 is not found)"},
      {"CUDA_SHIM_DRIVER=12020", "the NVIDIA driver is of CUDA 12.2"},
      {"CUDA_SHIM_DEVICES=0", "the NVIDIA driver finds no GPU"},
      {"CUDA_SHIM_CAPABILITY=100",
       "this build has kernels for compute capability 80,90a, and CUDA shim on the CPU has 10.0"}};
  for (const auto& [variable, why] : cases) {
    Machine machine;
    machine.set(variable);
    expect_cpu_because(machine, why);
  }
}

// Commands that log no settings say so, too.
TEST(CudaLibraries, EveryCommandSaysWhyItTakesTheCpu) {
  Machine machine;
  machine.remove("libcudnn_played.so.9");
  for (const std::string command :
       {"eval --load nowhere --data-path nothing", "generate --load nowhere --prompt A",
        "bench gemm --seconds 0.001 --threads 1"}) {
    const Machine::Said said = machine.run(command);
    EXPECT_NE(
        said.text.find("--device cpu: CUDA cannot be used: libcudnn_played.so.9 is not found"),
        std::string::npos)
        << command << "\n"
        << said.text;
  }
}

}  // namespace
}  // namespace megatron::testing
