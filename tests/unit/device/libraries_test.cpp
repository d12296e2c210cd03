// Search paths of NVIDIA's libraries, accepted versions, and GPUs with compiled code.
// tests/cuda/cli/libraries_test.cpp covers loading.
#include "device/cuda/libraries.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "device/cuda/architectures.h"
#include "device/cuda/build.h"
#include "device/cuda/library_search.h"
#include "device/driver_library.h"

namespace megatron::cuda {

std::string_view built_libraries() { return "libcublasLt_nowhere.so.13"; }
std::string_view built_code() { return ""; }

namespace {

namespace fs = std::filesystem;

// A machine's folders under a temporary root.
class Places {
 public:
  Places() {
    std::string name = (fs::temp_directory_path() / "libraries.XXXXXX").string();
    root_ = std::string(mkdtemp(name.data())) + "/";
  }
  ~Places() { fs::remove_all(root_); }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;

  const std::string& root() const { return root_; }
  void make(const std::string& folder) const { fs::create_directories(root_ + folder); }
  void touch(const std::string& file) const { std::ofstream(root_ + file) << ""; }
  void set(const std::string& name, const std::string& folder) {
    variables_[name] = root_ + folder;
  }
  // Returns the searched paths relative to the root.
  std::vector<std::string> folders() const {
    std::vector<std::string> found = library_folders(
        [this](const char* name) {
          const auto at = variables_.find(name);
          return at == variables_.end() ? std::string() : at->second;
        },
        root_);
    for (std::string& folder : found) folder.erase(0, root_.size());
    return found;
  }

 private:
  std::string root_;
  std::map<std::string, std::string> variables_;
};
using Names = std::vector<std::string>;

TEST(CudaLibraries, ToolkitsComeInTheOrderOfTheirVersionsAndOnce) {
  Places machine;
  for (const char* folder :
       {"usr/local/cuda-9.2/lib64", "usr/local/cuda-13.0/lib", "usr/local/cuda-13.0/lib64",
        "usr/local/cuda-12.10/lib64", "usr/local/cuda-12.9/targets/x86_64-linux/lib",
        "usr/local/nvidia/lib64", "apps/cuda/lib64", "envs/one/lib"})
    machine.make(folder);
  fs::create_symlink("cuda-13.0", machine.root() + "usr/local/cuda");
  const Names toolkits = {
      "usr/local/cuda/lib64",       "usr/local/cuda/lib",
      "usr/local/cuda-12.10/lib64", "usr/local/cuda-12.9/targets/x86_64-linux/lib",
      "usr/local/cuda-9.2/lib64",   "usr/local/nvidia/lib64"};
  EXPECT_EQ(machine.folders(), toolkits);
  machine.set("CUDA_PATH", "apps/cuda");
  machine.set("CONDA_PREFIX", "envs/one");
  Names with_others = toolkits;
  with_others.insert(with_others.begin(), "apps/cuda/lib64");
  with_others.push_back("envs/one/lib");
  EXPECT_EQ(machine.folders(), with_others);
}

TEST(CudaLibraries, PackagesOfPythonAreFoundInEachPlace) {
  Places machine;
  const Names packages = {"venv/lib/python3.12/site-packages/nvidia/cu13/lib",
                          "venv/lib/python3.12/site-packages/nvidia/cudnn/lib",
                          "venv/lib/python3.12/site-packages/torch/lib",
                          "venv/lib/python3.9/site-packages/nvidia/cublas/lib",
                          "conda/lib/python3.11/site-packages/nvidia/nccl/lib",
                          "apps/python/lib/python3.12/site-packages/torch/lib",
                          "home/me/.local/lib/python3.12/site-packages/torch/lib",
                          "usr/local/lib/python3.12/dist-packages/nvidia/cublas/lib",
                          "usr/lib/python3/dist-packages/torch/lib",
                          "opt/conda/lib/python3.11/site-packages/torch/lib",
                          "opt/torch/.venv/lib/python3.12/site-packages/nvidia/cudnn/lib"};
  for (const std::string& folder : packages) machine.make(folder);
  machine.make("venv/lib/python3.12/site-packages/nvidia/empty");
  machine.set("VIRTUAL_ENV", "venv");
  machine.set("CONDA_PREFIX", "conda");
  machine.set("HOME", "home/me");
  machine.make("apps/python/bin");
  machine.touch("apps/python/bin/python3");
  machine.make("apps/other/bin");
  machine.make("apps/other/lib/python3.12/site-packages/torch/lib");  // without a python3
  machine.set("PATH", "apps/other/bin:" + machine.root() + "apps/python/bin");
  Names expected = packages;
  expected.insert(expected.begin(), "conda/lib");  // conda's packages
  EXPECT_EQ(machine.folders(), expected);
}

TEST(CudaLibraries, TheDriversAreFoundWhereContainersMountThem) {
  Places machine;
  EXPECT_EQ(open_driver_library("libplayed_driver.so.1", machine.root()), nullptr);
  Dl_info loaded{};
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&fmt::vformat), &loaded), 0);
  machine.make("usr/local/nvidia/lib64");
  fs::create_symlink(fs::canonical(loaded.dli_fname),
                     machine.root() + "usr/local/nvidia/lib64/libplayed_driver.so.1");
  void* const found = open_driver_library("libplayed_driver.so.1", machine.root());
  ASSERT_NE(found, nullptr);
  dlclose(found);
}

TEST(CudaLibraries, OtherVersionsInAFolderAreThoseOfTheSameName) {
  Places machine;
  for (const char* file : {"libcudnn.so", "libcudnn.so.8", "libcudnn.so.8.9.7", "libcudnn.so.9",
                           "libcudnn_ops.so.8", "libcudnn.so.10"})
    machine.touch(file);
  const std::vector<std::string> found = other_versions(machine.root(), "libcudnn.so.9");
  EXPECT_EQ(std::set(found.begin(), found.end()),
            (std::set{machine.root() + "libcudnn.so.8", machine.root() + "libcudnn.so.10"}));
  EXPECT_TRUE(other_versions(machine.root() + "nowhere", "libcudnn.so.9").empty());
  EXPECT_EQ(folders_of_path("/a::/b/c:"), (Names{"/a", "/b/c"}));
}

TEST(CudaLibraries, VersionsAreTakenApart) {
  EXPECT_EQ(LibraryVersion::of(91900).text(), "9.19.0");
  EXPECT_EQ(LibraryVersion::of(22807).text(), "2.28.7");
  EXPECT_EQ(LibraryVersion::of(120405).text(), "12.4.5");
  EXPECT_EQ(LibraryVersion::of(8907).text(), "8.9.7");
}

TEST(CudaLibraries, OneOfAnotherMajorVersionOrTooOldIsNamedInOneLine) {
  EXPECT_EQ(mismatch(NvidiaLibrary::cudnn, 9, {9, 1, 0}), "");
  EXPECT_EQ(mismatch(NvidiaLibrary::cudnn, 9, {8, 9, 7}),
            "this build needs cuDNN 9, and 8.9.7 was found; install version 9 or build again");
  EXPECT_EQ(mismatch(NvidiaLibrary::nccl, 2, {2, 17, 5}),
            "NCCL 2.18 or later is needed, and 2.17.5 was found; install a later one");
  EXPECT_EQ(mismatch(NvidiaLibrary::nccl, 2, {2, 18, 1}), "");
}

TEST(CudaLibraries, OneThatIsNowhereIsReportedWithWhatToInstall) {
  const CudaLibrary& products = opened(NvidiaLibrary::cublas_lt);
  EXPECT_EQ(products.name, "cuBLASLt");
  EXPECT_TRUE(products.required);
  EXPECT_EQ(products.version + products.path, "");
  EXPECT_EQ(products.why_not,
            "libcublasLt_nowhere.so.13 is not found; install it (pip install nvidia-cublas), or "
            "add its folder to LD_LIBRARY_PATH");
  EXPECT_THROW(find_function(NvidiaLibrary::cublas_lt, "cublasLtCreate"), Error);
  EXPECT_EQ(opened_libraries("").size(), 1u);
  EXPECT_EQ(opened(NvidiaLibrary::nccl).why_not, "");  // the build does not use it
}

TEST(CudaArchitectures, CodeRunsOnWhatItWasBuiltFor) {
  for (const auto& [built, major, minor] : {std::tuple{"90a", 9, 0},
                                            {"80", 8, 6},
                                            {"80,90a", 9, 0},
                                            {"100f", 10, 3},
                                            {"80,90+ptx", 12, 1},
                                            {"86", 8, 9},
                                            {"", 7, 5}})
    EXPECT_TRUE(runs_on(built, major, minor)) << built << " on " << major << "." << minor;
  for (const auto& [built, major, minor] : {std::tuple{"90a", 10, 0},
                                            {"90a", 8, 9},
                                            {"89", 8, 6},
                                            {"100a", 10, 3},
                                            {"80,90a", 12, 0},
                                            {"80", 9, 0},
                                            {"90+ptx", 8, 9}})
    EXPECT_FALSE(runs_on(built, major, minor)) << built << " on " << major << "." << minor;
  EXPECT_EQ(no_code_for("90a", "NVIDIA H200", 9, 0), "");
  EXPECT_EQ(
      no_code_for("90a", "NVIDIA A100", 8, 0),
      "this build has kernels for compute capability 90a, but NVIDIA A100 has 8.0; build with "
      "-DMEGATRON_CUDA_ARCHITECTURES=80, or hide that GPU with CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(no_code_for("80,90a", "NVIDIA B200", 10, 0),
            "this build has kernels for compute capability 80,90a, but NVIDIA B200 has 10.0; "
            "build with -DMEGATRON_CUDA_ARCHITECTURES=100 (90+ptx where nvcc does not know it), "
            "or hide that GPU with CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(no_code_for("90a", "Tesla T4", 7, 5),
            "Tesla T4 has compute capability 7.5, which is not supported: the kernels need 8.0 "
            "or later (bf16 tensor cores); use --device cpu, or hide that GPU with "
            "CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace megatron::cuda
