// Messages and behaviour on machines where a library of NVIDIA's, the driver or a GPU is missing,
// has another version, or is in another place. Uses the plugin for the CPU, which loads stand-ins
// for the libraries (tests/cuda_libraries).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "free_port.h"
#include "golden/cli/process.h"
#include "text.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;
const std::pair<std::string, std::string> kLibraries[] = {
    {"libcublasLt_played.so.13", "130100"},  {"libcudnn_played.so.9", "0"},
    {"libcudnn_graph_played.so.9", "91900"}, {"libnccl_played.so.2", "22707"},
    {"libnvrtc_played.so.13", "130000"},     {"libnvrtc-builtins_played.so.13.0", "130000"}};
constexpr const char* kProducts = "libcublasLt_played.so.13";
constexpr const char* kCudnn = "libcudnn_played.so.9";
constexpr const char* kCudnnPart = "libcudnn_graph_played.so.9";  // reports the version
constexpr const char* kNccl = "libnccl_played.so.2";
constexpr const char* kNvrtc = "libnvrtc_played.so.13";
constexpr const char* kNvrtcPart = "libnvrtc-builtins_played.so.13.0";  // NVRTC opens it

// A copy of the program next to such a plugin, and a folder of libraries that its loader searches.
class Machine {
 public:
  Machine() {
    fs::copy_file(MEGATRON_BINARY, place_ / "megatron");
    fs::copy_file(std::string(MEGATRON_PLAYED) + "/libmegatron_cuda.so",
                  place_ / "libmegatron_cuda.so");
    for (const auto& [name, version] : kLibraries) install(version, name, name);
  }
  // Installs a stand-in of tests/cuda_libraries under a name, in a folder of this machine.
  void install(const std::string& version, const std::string& name, const std::string& as,
               const std::string& folder = "libraries") {
    fs::create_directories(place_ / folder);
    fs::copy_file(std::string(MEGATRON_PLAYED) + "/" + version + "/" + name,
                  place_ / (folder + "/" + as), fs::copy_options::overwrite_existing);
  }
  void remove(const std::string& name) { fs::remove(path("libraries") + "/" + name); }
  void move(const std::string& name, const std::string& folder) {
    fs::create_directories(path(folder));
    fs::rename(path("libraries") + "/" + name, path(folder) + "/" + name);
  }
  void set(const std::string& variable) { variables_ += variable + " "; }
  std::string path(const std::string& folder) const { return place_ / folder; }

  struct Said {
    int code = 0;
    std::string text;
  };
  Said run(const std::string& arguments) const { return shell(line("", arguments)); }
  // Returns the command of a process with additional environment variables.
  std::string line(const std::string& variables, const std::string& arguments) const {
    return "env -u CUDA_HOME -u CUDA_PATH -u VIRTUAL_ENV -u CONDA_PREFIX LD_LIBRARY_PATH=" +
           path("libraries") + " " + variables_ + variables + " ./megatron " + arguments;
  }
  Said shell(const std::string& command) const {
    const int status =
        std::system(("cd " + place_.path() + " && " + command + " >said 2>&1").c_str());
    return {WEXITSTATUS(status), read_file(place_ / "said")};
  }
  static std::string model() {
    return "--mock-data --vocab-size 50 --num-layers 1 --hidden-size 16 --num-attention-heads 2 "
           "--max-position-embeddings 128 --micro-batch-size 1 --lr 1e-3 --train-iters 1 --threads "
           "1";
  }
  Said train(const std::string& device, const std::string& more = "--seq-length 8") const {
    return run("train " + model() + " --device " + device + " " + more);
  }

 private:
  Workplace place_;
  std::string variables_;
};
// Uses attention of cuDNN, and communication by NCCL.
constexpr const char* kAttention = "--seq-length 128 --attention-dropout 0 --bf16";
constexpr const char* kRanks = "--seq-length 8 --ranks 2 --global-batch-size 2";

std::string line_with(const std::string& text, const std::string& part) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.find(part) != std::string::npos) return line;
  return "";
}

// Expects one warning and the CPU under auto, and an error under --device cuda.
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

void expect_line(const Machine::Said& said, const std::string& line, int code = 0) {
  EXPECT_EQ(said.code, code) << said.text;
  EXPECT_EQ(count(said.text, line), 1u) << line << "\n" << said.text;
}

TEST(CudaLibraries, TheVersionsThatWereFoundAreTold) {
  Machine machine;
  machine.set("CUDA_SHIM_DEVICES=2");
  const Machine::Said said = machine.train("auto", std::string(kRanks) + " --bf16");
  expect_line(said, "bf16 on cuda");
  expect_line(said, "driver 13.0, cuBLASLt 13.1.0");
  expect_line(said, "by NCCL 2.27.7 (" + machine.path("libraries") + "/" + kNccl + ")");
  EXPECT_EQ(count(said.text, "cuDNN"), 0u) << "8 tokens are none of its\n" << said.text;
  expect_line(machine.train("auto", kAttention),
              "cuDNN 9.19.0 (" + machine.path("libraries") + "/" + kCudnn + ")");
}

TEST(CudaLibraries, WithoutCublasLtThereIsNoCuda) {
  Machine machine;
  machine.remove(kProducts);
  expect_cpu_because(machine, std::string(kProducts) +
                                  " is not found; install it (pip install nvidia-cublas), or add "
                                  "its folder to LD_LIBRARY_PATH");
  machine.install("120405", "libcublasLt_played.so.12", "libcublasLt_played.so.12");
  expect_cpu_because(machine,
                     std::string(kProducts) + " is not found, only " + machine.path("libraries") +
                         "/libcublasLt_played.so.12, which is a different version; install it "
                         "(pip install nvidia-cublas), build with -DMEGATRON_CUDA_VERSION=12, or "
                         "add");
  machine.install("120405", "libcublasLt_played.so.12", kProducts);
  expect_cpu_because(machine,
                     "this build needs cuBLASLt 13, and 12.4.5 was found; install version");
}

TEST(CudaLibraries, WithoutCudnnOneWarningAndOurOwnAttention) {
  Machine machine;
  const auto expect_own_because = [&](const std::string& why) {
    const Machine::Said said = machine.train("auto", kAttention);
    expect_line(said, " warning " + why);
    expect_line(said, "runs on this program's own kernels");
    expect_line(said, "bf16 on cuda");
  };
  machine.remove(kCudnn);
  expect_own_because("cuDNN cannot be used: " + std::string(kCudnn) +
                     " is not found; install it (pip install nvidia-cudnn-cu13), or add");
  const Machine::Said other = machine.train("cuda", "--seq-length 128 --attention-dropout 0");
  EXPECT_EQ(count(other.text, "cuDNN"), 0u) << "fp32 is none of its\n" << other.text;
  machine.install("0", kCudnn, kCudnn);
  machine.remove(kCudnnPart);
  expect_own_because("cuDNN cannot be used: " + std::string(kCudnnPart) + ", a part of " +
                     machine.path("libraries") + "/" + kCudnn + ", is not found");
  machine.install("8907", "libcudnn_graph_played.so.8", kCudnnPart);
  expect_own_because("cuDNN cannot be used: this build needs cuDNN 9, and 8.9.7 was found;");
  machine.install("91800", kCudnnPart, kCudnnPart);
  expect_own_because("cuDNN cannot be used: " + machine.path("libraries") + "/" + kCudnn +
                     " is for CUDA 12, and this build is for CUDA 13; install cuDNN (pip install "
                     "nvidia-cudnn-cu13)");
  machine.install("91900", kCudnnPart, kCudnnPart);
  machine.remove(kNvrtc);
  expect_own_because("NVRTC cannot be used: " + std::string(kNvrtc) + " is not found; install");
  machine.install("130000", kNvrtc, kNvrtc);
  machine.remove(kNvrtcPart);
  expect_own_because("NVRTC cannot be used: " + std::string(kNvrtcPart) + ", a part of " +
                     machine.path("libraries") + "/" + kNvrtc + ", is not found");
}

TEST(CudaLibraries, WithoutNcclRanksExchangeThroughHostMemoryOrAreRefused) {
  Machine machine;
  machine.set("CUDA_SHIM_DEVICES=2");
  const auto expect_gloo_because = [&](const std::string& why) {
    const Machine::Said said = machine.train("auto", kRanks);
    expect_line(said,
                " warning the ranks communicate through host memory, which is slower than NCCL: "
                "rank 0 has no NCCL: " +
                    why);
    expect_line(said, "the ranks' GPUs communicate through host memory");
    const Machine::Said asked =
        machine.train("auto", std::string(kRanks) + " --distributed-backend nccl");
    expect_line(asked,
                " error --distributed-backend nccl cannot be used: rank 0 has no NCCL: " + why, 2);
    EXPECT_EQ(count(asked.text, "iteration"), 0u) << asked.text;
  };
  machine.remove(kNccl);
  expect_gloo_because(std::string(kNccl) +
                      " is not found; install it (pip install "
                      "nvidia-nccl-cu13), or add");
  EXPECT_EQ(count(machine.train("cuda").text, "NCCL"), 0u);
  machine.install("30000", kNccl, kNccl);
  expect_gloo_because("this build needs NCCL 2, and 3.0.0 was found");
  machine.install("21705", kNccl, kNccl);
  expect_gloo_because("NCCL 2.18 or later is needed, and 2.17.5 was found");
}

// The libraries are in different places: a toolkit, pip's packages of CUDA 12 and 13, and PyTorch's
// folder.
TEST(CudaLibraries, AreFoundInToolkitsAndInPythonsPackages) {
  Machine machine;
  machine.set("CUDA_SHIM_DEVICES=2");
  machine.set("CUDA_HOME=" + machine.path("toolkit"));
  machine.set("VIRTUAL_ENV=" + machine.path("venv"));
  machine.set("CONDA_PREFIX=" + machine.path("conda"));
  machine.move(kProducts, "toolkit/lib64");
  const std::string packages = "venv/lib/python3.12/site-packages/",
                    torch = "conda/lib/python3.11/site-packages/torch/lib";
  machine.move(kCudnn, packages + "nvidia/cudnn/lib");
  machine.move(kCudnnPart, packages + "nvidia/cudnn/lib");
  machine.move(kNvrtc, packages + "nvidia/cu13/lib");
  machine.move(kNvrtcPart, packages + "nvidia/cu13/lib");
  machine.move(kNccl, torch);
  const Machine::Said said = machine.train("cuda", std::string(kRanks) + " --bf16");
  expect_line(said, "by NCCL 2.27.7 (" + machine.path(torch) + "/" + kNccl + ")");
  const Machine::Said attention = machine.train("auto", kAttention);
  expect_line(attention, "cuBLASLt 13.1.0");
  expect_line(attention,
              "cuDNN 9.19.0 (" + machine.path(packages + "nvidia/cudnn/lib") + "/" + kCudnn + ")");
}

TEST(CudaLibraries, OfTwoVersionsTheOneThatFitsIsTaken) {
  Machine machine;
  machine.set("CUDA_SHIM_DEVICES=2");
  machine.set("CUDA_HOME=" + machine.path("toolkit"));
  machine.install("120405", "libcublasLt_played.so.12", "libcublasLt_played.so.12");
  machine.install("22707", kNccl, kNccl, "toolkit/lib64");
  machine.install("21705", kNccl, kNccl);
  const Machine::Said said = machine.train("auto", kRanks);
  expect_line(said, "cuBLASLt 13.1.0");
  expect_line(said, "by NCCL 2.27.7 (" + machine.path("toolkit/lib64") + "/" + kNccl + ")");
}

// cuDNN for CUDA 12 and for CUDA 13 has the same file name. The toolkit's is preferred, unless
// LD_LIBRARY_PATH names another.
TEST(CudaLibraries, OfTwoCudnnsTheOneBesideCublasLtIsTaken) {
  Machine machine;
  machine.set("CUDA_HOME=" + machine.path("toolkit"));
  machine.set("VIRTUAL_ENV=" + machine.path("venv"));
  const std::string packages = "venv/lib/python3.12/site-packages/nvidia/";
  machine.move(kProducts, packages + "cu13/lib");
  machine.move(kCudnn, packages + "cudnn/lib");
  machine.move(kCudnnPart, packages + "cudnn/lib");
  machine.install("0", kCudnn, kCudnn, "toolkit/lib64");
  machine.install("91800", kCudnnPart, kCudnnPart, "toolkit/lib64");
  expect_line(machine.train("cuda", kAttention), "cuDNN 9.19.0 (" + machine.path(packages));
  machine.install("0", kCudnn, kCudnn);
  machine.install("91800", kCudnnPart, kCudnnPart);
  expect_line(
      machine.train("cuda", kAttention),
      " is for CUDA 12, and this build is for CUDA 13; install cuDNN (pip install "
      "nvidia-cudnn-cu13), or put the folder of another installation first in LD_LIBRARY_PATH");
}

TEST(CudaLibraries, ADriverThatIsMissingOrOldAndNoGpuAreTold) {
  const std::pair<std::string, std::string> cases[] = {
      {"CUDA_SHIM_DRIVER=0", "no NVIDIA driver is loaded (libcuda.so.1 is not found)"},
      {"CUDA_SHIM_DRIVER=12020",
       "the NVIDIA driver supports CUDA 12.2, but this build needs CUDA 13.0: install a later "
       "driver, or build with -DMEGATRON_CUDA_VERSION=12"},
      {"CUDA_SHIM_DEVICES=0", "the NVIDIA driver finds no GPU"},
      {"CUDA_SHIM_CAPABILITY=75",
       "CUDA shim on the CPU has compute capability 7.5, which is not supported: the kernels need "
       "8.0"},
      {"CUDA_SHIM_CAPABILITY=100",
       "this build has kernels for compute capability 80,90a, but CUDA shim on the CPU has 10.0"}};
  for (const auto& [variable, why] : cases) {
    Machine machine;
    machine.set(variable);
    expect_cpu_because(machine, why);
  }
}

// Runs two processes; rank 1 may have additional environment variables.
Machine::Said run_two(Machine& machine, const std::string& flags, const std::string& more = "") {
  const std::string both =
      "CUDA_SHIM_DEVICES=2 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 "
      "MASTER_ADDR=localhost MASTER_PORT=" +
      std::to_string(free_port()) + " ";
  const std::string command =
      "train " + Machine::model() + " --device cuda --global-batch-size 2 " + flags;
  return machine.shell("{ " + machine.line(both + "RANK=1 LOCAL_RANK=1 " + more, command) + " & " +
                       machine.line(both + "RANK=0 LOCAL_RANK=0", command) + "; }");
}

// Each process searches for the libraries itself; only the first one warns.
TEST(CudaLibraries, ProcessesOfARunWarnOnce) {
  Machine machine;
  machine.remove(kCudnn);
  machine.remove(kNccl);
  const Machine::Said said = run_two(machine, kAttention);
  expect_line(said, " warning cuDNN cannot be used: ");
  expect_line(said,
              " warning the ranks communicate through host memory, which is slower than NCCL: "
              "rank 0 has no NCCL: ");
}

TEST(CudaLibraries, RanksWithoutTheSameNcclAreNamed) {
  Machine machine;
  const std::string other = "LD_LIBRARY_PATH=" + machine.path("other");
  for (const auto& [name, version] : kLibraries)
    if (name != kNccl) machine.install(version, name, name, "other");
  const std::string flags = "--seq-length 8 --distributed-backend nccl";
  expect_line(run_two(machine, flags, other),
              "rank 1 has no NCCL: " + std::string(kNccl) + " is not found; install", 2);
  machine.install("22800", kNccl, kNccl, "other");
  expect_line(run_two(machine, flags, other),
              "rank 0 has NCCL 2.27.7, but rank 1 has 2.28.0; install the same version on all "
              "machines, or --distributed-backend gloo",
              2);
}

TEST(CudaLibraries, PlansOfAGpuNeedNone) {
  Machine machine;
  for (const auto& [name, version] : kLibraries) machine.remove(name);
  const Machine::Said asked =
      machine.run("plan " + Machine::model() + " --seq-length 8 --bf16 --device cuda");
  expect_line(asked, "bf16 on cuda");
  const Machine::Said automatic =
      machine.run("plan " + Machine::model() + " --seq-length 8 --device auto");
  expect_line(automatic, "f32 on cpu");
  expect_line(automatic, std::string("CUDA cannot be used: ") + kProducts + " is not found");
}

// Commands that print no settings warn too.
TEST(CudaLibraries, EveryCommandSaysWhyItTakesTheCpu) {
  Machine machine;
  machine.remove(kProducts);
  for (const std::string command :
       {"eval --load nowhere --data-path nothing", "generate --load nowhere --prompt A",
        "bench gemm --seconds 0.001 --threads 1"}) {
    const Machine::Said said = machine.run(command);
    EXPECT_NE(
        said.text.find("--device cpu: CUDA cannot be used: libcublasLt_played.so.13 is not found"),
        std::string::npos)
        << command << "\n"
        << said.text;
  }
}

}  // namespace
}  // namespace megatron::testing
