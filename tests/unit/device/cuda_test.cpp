// CUDA through its plugin, here the one on the CPU (tests/cuda_shim): copies, order of streams,
// memory that grows, misuse, and messages on machines without a GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/program_path.h"
#include "device/cuda_plugin.h"

namespace megatron {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr const char* kLibrary = "libmegatron_cuda.so";
constexpr Device kGpu{DeviceKind::cuda, 0};

std::string beside_the_program(const std::string& name) {
  return std::filesystem::path(program_path()).replace_filename(name);
}

template <class F>
F* of_shim(const char* name) {
  return reinterpret_cast<F*>(cuda_symbol(name));
}
std::string problems() { return of_shim<const char*()>("shim_problems")(); }
void set(const char* name, int64_t value) {
  ASSERT_TRUE(of_shim<bool(const char*, int64_t)>("shim_set")(name, value));
}
int64_t alive(const char* name) { return of_shim<int64_t(const char*)>("shim_alive")(name); }

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(cuda_state().plugin, nullptr) << cuda_state().why_not; }
  void TearDown() override { EXPECT_EQ(problems(), ""); }

  static std::vector<int> numbers(int n, int first = 0) {
    std::vector<int> values(static_cast<size_t>(n));
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  static int64_t size(const std::vector<int>& values) {
    return static_cast<int64_t>(values.size() * sizeof(int));
  }
  static std::vector<int> read(const Storage& storage, int n) {
    std::vector<int> values(static_cast<size_t>(n));
    cuda_plugin().copy_now(values.data(), storage.data(), size(values), kGpu);
    return values;
  }
};

TEST_F(Cuda, TellsItsDevicesAndVersions) {
  const CudaDevice& device = cuda_plugin().devices().front();
  EXPECT_EQ(device.name, "CUDA shim on the CPU");
  EXPECT_EQ(device.multiprocessors, 132);
  EXPECT_EQ(device.major * 10 + device.minor, 90);
  EXPECT_EQ(cuda_plugin().versions(), "CUDA 13.0, driver 13.0");
  EXPECT_EQ(cuda_state().why_not, "");
}

TEST_F(Cuda, CopiesAndFills) {
  Runtime runtime(kGpu, 1);
  Arena& arena = runtime.arena(MemoryClass::activations);
  const auto a = arena.allocate(400, "a"), b = arena.allocate(400, "b");
  std::vector<int> values = numbers(100);
  cuda_plugin().copy(a->data(), values.data(), 400, runtime.stream());
  std::ranges::fill(values, -1);  // the call has already read it
  cuda_plugin().copy(b->data(), a->data(), 400, runtime.stream());
  cuda_plugin().fill(a->data(), 0, 200, runtime.stream());
  std::vector<int> back(100, 7);
  cuda_plugin().copy(back.data(), b->data(), 400, runtime.stream());
  EXPECT_EQ(back.front(), 7);  // queued
  runtime.stream().synchronize();
  EXPECT_EQ(back, numbers(100));
  std::vector<int> half = numbers(100);
  std::fill(half.begin(), half.begin() + 50, 0);
  EXPECT_EQ(read(*a, 100), half);
}

// Uses the device's clock, which excludes the host's time between calls and earlier work.
TEST_F(Cuda, TimerMeasuresWhatIsQueuedBetween) {
  Runtime runtime(kGpu, 1);
  const auto block = runtime.arena(MemoryClass::activations).allocate(8 * kMiB, "block");
  const auto timer = cuda_plugin().make_timer(runtime.stream());
  const auto fill = [&](int times) {
    for (int i = 0; i < times; ++i)
      cuda_plugin().fill(block->data(), i, 8 * kMiB, runtime.stream());
  };
  fill(1);
  timer->begin();
  const double nothing = timer->end();
  fill(20);
  // The host's time grows until it exceeds the time of a fill on a busy machine.
  double host = 0.2, one = host;
  for (; one > 0.75 * host && host < 10; host *= 3) {
    timer->begin();
    std::this_thread::sleep_for(std::chrono::duration<double>(host));
    fill(1);
    one = timer->end();
  }
  timer->begin();
  fill(20);
  const double many = timer->end();
  EXPECT_TRUE(timer->exact());
  EXPECT_GE(nothing, 0);
  EXPECT_LT(nothing, many);
  EXPECT_LT(one, 0.75 * host / 3) << "with the host's time";
  EXPECT_GT(many, 0);
  timer->begin();
  runtime.stream().synchronize();  // the device does not wait that long for the end
  timer->end();
  EXPECT_FALSE(timer->exact());
  timer->begin();  // nobody waits for its end
}

TEST_F(Cuda, CopyNowComesAfterAllWorkOfTheDevice) {
  Runtime one(kGpu, 1), other(kGpu, 1);
  const auto block = one.arena(MemoryClass::activations).allocate(4, "block");
  cuda_plugin().fill(block->data(), 1, 4, one.stream());
  EXPECT_EQ(read(*block, 1).front(), 0x01010101);
  const int value = 5;
  cuda_plugin().copy_now(block->data(), &value, 4, kGpu);
  const auto copied = other.arena(MemoryClass::activations).allocate(4, "copied");
  cuda_plugin().copy(copied->data(), block->data(), 4, other.stream());  // needs no wait
  EXPECT_EQ(read(*copied, 1).front(), 5);
}

// Two streams compute one number: 3, doubled by the second stream's final copy.
struct TwoStreams {
  TwoStreams() : a(kGpu, 1), b(kGpu, 1), from(allocate()), to(allocate()) {
    cuda_plugin().fill(from->data(), 0, 4, a.stream());
    cuda_plugin().fill(to->data(), 0, 4, a.stream());
    a.stream().synchronize();
  }
  std::shared_ptr<Storage> allocate() {
    return a.arena(MemoryClass::activations).allocate(4, "number");
  }
  void write() { cuda_plugin().fill(from->data(), 3, 4, a.stream()); }
  int move() {
    cuda_plugin().copy(to->data(), from->data(), 4, b.stream());
    b.stream().synchronize();
    int value = -1;
    cuda_plugin().copy_now(&value, to->data(), 4, kGpu);
    return value;
  }
  Runtime a, b;
  std::shared_ptr<Storage> from, to;
};

TEST_F(Cuda, AStreamWaitsForAnother) {
  TwoStreams two;
  two.write();
  two.b.stream().wait(two.a.stream().record());
  EXPECT_EQ(two.move(), 0x03030303);
}
TEST_F(Cuda, WithoutAWaitTheResultIsWrong) {
  TwoStreams two;
  two.write();
  EXPECT_EQ(two.move(), 0);
}
// Deliberate fault: the event was recorded before the work.
TEST_F(Cuda, WithAWaitForTheWrongEventTheResultIsWrong) {
  TwoStreams two;
  const Event before = two.a.stream().record();
  two.write();
  two.b.stream().wait(before);
  EXPECT_EQ(two.move(), 0);
}

TEST_F(Cuda, EventsAreReachedWhenTheWorkIsDone) {
  Runtime runtime(kGpu, 1);
  const auto block = runtime.arena(MemoryClass::activations).allocate(4, "block");
  cuda_plugin().fill(block->data(), 1, 4, runtime.stream());
  const Event event = runtime.stream().record();
  EXPECT_FALSE(event.reached());
  event.wait_on_host();
  EXPECT_TRUE(event.reached());
  runtime.stream().wait(Event());
}

TEST_F(Cuda, StreamsOfSeveralHostThreads) {
  std::vector<std::thread> threads;
  std::vector<int> last(3);
  for (size_t t = 0; t < last.size(); ++t) {
    threads.emplace_back([&last, t] {
      Runtime runtime(kGpu, 1);
      const auto block = runtime.arena(MemoryClass::activations).allocate(4, "block");
      for (int i = 0; i <= 100; ++i) {
        cuda_plugin().copy(block->data(), &i, 4, runtime.stream());
        if (i % 10 == 0) runtime.stream().synchronize();
      }
      cuda_plugin().copy(&last[t], block->data(), 4, runtime.stream());
      runtime.stream().synchronize();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(last, std::vector<int>(3, 100));
}

TEST_F(Cuda, ArenasGrowInPlaceAndGiveBack) {
  const int64_t before = alive("bytes");
  {
    const auto arena = Arena::make(kGpu, MemoryClass::parameters);
    EXPECT_EQ(alive("bytes"), before);  // only addresses are reserved
    const auto first = arena->allocate(4, "first");
    EXPECT_EQ(alive("bytes"), before + 2 * kMiB);
    const int value = 9;
    cuda_plugin().copy_now(first->data(), &value, 4, kGpu);
    const auto second = arena->allocate(50 * kMiB, "second");
    EXPECT_EQ(read(*first, 1).front(), 9);
    const auto ends = numbers(2);
    cuda_plugin().copy_now(second->data() + 50 * kMiB - 8, ends.data(), 8, kGpu);
    // Grows by an eighth if there is enough memory.
    const auto third = arena->allocate(2 * kMiB, "third");
    EXPECT_EQ(alive("bytes"), before + 60 * kMiB);
  }
  EXPECT_EQ(alive("bytes"), before);
}

TEST_F(Cuda, OutOfMemoryNamesTheClassTheBytesAndTheFlag) {
  set("memory", 16 * kMiB);
  {
    const auto arena = Arena::make(kGpu, MemoryClass::activations);
    const auto kept = arena->allocate(8 * kMiB, "kept");
    try {
      arena->allocate(10 * kMiB, "hidden states");
      ADD_FAILURE() << "10 of 8 MiB";
    } catch (const Error& error) {
      const std::string text = error.what();
      for (const char* part : {"out of activations memory on cuda:0",
                               "10485760 bytes for hidden states", "8388608 bytes in use",
                               "the GPU has 8388608 of 16777216 bytes free", "--micro-batch-size"})
        EXPECT_NE(text.find(part), std::string::npos) << text;
    }
    // Nothing has changed: allocations that fit still succeed, up to the last byte.
    const auto rest = arena->allocate(8 * kMiB, "rest");
    EXPECT_EQ(arena->high_water(), 16 * kMiB);
    EXPECT_EQ(rest->data(), kept->data() + 8 * kMiB);
  }
  set("memory", 1024 * kMiB);
}

TEST_F(Cuda, OffloadedMemoryIsPinnedAndOfTheHost) {
  Runtime runtime(kGpu, 1);
  const int64_t before = alive("pinned");
  const auto host = runtime.arena(MemoryClass::offload).allocate(100 * kMiB, "state");
  EXPECT_TRUE(host->device().is_host());
  EXPECT_EQ(alive("pinned"), before + 128 * kMiB);
  // A copy may cross the border of two pinned pieces.
  const auto block = runtime.arena(MemoryClass::activations).allocate(80 * kMiB, "block");
  std::ranges::fill(std::span(host->data(), static_cast<size_t>(80 * kMiB)), std::byte{5});
  cuda_plugin().copy(block->data(), host->data(), 80 * kMiB, runtime.stream());
  runtime.stream().synchronize();
  std::vector<int> end(1);
  cuda_plugin().copy_now(end.data(), block->data() + 80 * kMiB - 4, 4, kGpu);
  EXPECT_EQ(end.front(), 0x05050505);
}

TEST_F(Cuda, UseAfterFreeIsRefused) {
  Runtime runtime(kGpu, 1);
  std::byte* gone = nullptr;
  {
    const auto arena = Arena::make(kGpu, MemoryClass::gradients);
    gone = arena->allocate(64, "gone")->data();
  }
  EXPECT_THROW(cuda_plugin().fill(gone, 0, 64, runtime.stream()), Error);
  int value = 0;
  EXPECT_THROW(cuda_plugin().copy_now(&value, gone, 4, kGpu), Error);
  EXPECT_NE(problems().find("not all device memory that is allocated"), std::string::npos);
}

// Deliberate fault: memory is freed while its copy is queued.
TEST_F(Cuda, FreedUnderAQueuedCopy) {
  Runtime runtime(kGpu, 1);
  auto arena = Arena::make(kGpu, MemoryClass::gradients);
  const auto kept = runtime.arena(MemoryClass::activations).allocate(4, "kept");
  cuda_plugin().fill(kept->data(), 6, 4, runtime.stream());
  {
    const auto block = arena->allocate(4, "block");
    cuda_plugin().copy(kept->data(), block->data(), 4, runtime.stream());
  }
  arena.reset();  // waits for the device before it unmaps
  EXPECT_EQ(read(*kept, 1).front(), -1);
}

TEST_F(Cuda, DevicesThatAreNotThereAreRefused) {
  try {
    Runtime({DeviceKind::cuda, 7}, 1);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "there is no GPU 7; this machine has 1, counted from 0");
  }
}

using CudaDeath = Cuda;

// Deliberate fault: a stream that is never destroyed is reported when the program ends.
TEST_F(CudaDeath, LeakedStream) {
  EXPECT_EXIT(
      {
        auto* leaked = new Runtime(kGpu, 1);
        leaked->stream().record();
        std::exit(0);
      },
      testing::ExitedWithCode(86), "not destroyed when the program ended: 1 streams");
}

// Error that an independent copy of the shared object returns to a caller.
std::string said(const char* interface, int64_t driver, int64_t devices) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "megatron_cuda_XXXXXX").string();
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/copy.so";
  fs::copy_file(beside_the_program(kLibrary), path);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  fs::remove_all(folder);
  if (library == nullptr) return dlerror();
  const auto shim_set =
      reinterpret_cast<bool (*)(const char*, int64_t)>(dlsym(library, "shim_set"));
  using MakePlugin = const CudaPlugin* (*)(const char*, char*, size_t);
  const auto make = reinterpret_cast<MakePlugin>(dlsym(library, "megatron_cuda_plugin"));
  EXPECT_TRUE(shim_set("driver", driver) && shim_set("devices", devices));
  std::array<char, 512> text{};
  EXPECT_EQ(make(interface, text.data(), text.size()), nullptr);
  return text.data();
}

TEST(CudaPlugin, SaysWhyThereIsNoneInOneLine) {
  EXPECT_EQ(said("0123456789abcdef", 13000, 1),
            "libmegatron_cuda.so next to the program is from a different build; build both "
            "together");
  EXPECT_EQ(said(MEGATRON_CUDA_INTERFACE, 0, 1),
            "no NVIDIA driver is loaded (libcuda.so.1 is not found): install it, or give the "
            "container the GPU (docker run --gpus all)");
  EXPECT_EQ(said(MEGATRON_CUDA_INTERFACE, 12020, 1),
            "the NVIDIA driver supports CUDA 12.2, but this build needs CUDA 13.0: install a "
            "later driver, or build with -DMEGATRON_CUDA_VERSION=12");
  EXPECT_EQ(said(MEGATRON_CUDA_INTERFACE, 13000, 0),
            "the NVIDIA driver finds no GPU: check that nvidia-smi lists one, and that "
            "CUDA_VISIBLE_DEVICES, if set, names one");
}

// Error of a copy of this program in a folder with the given file as its shared object.
std::string said_beside(const char* library) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "megatron_cuda_XXXXXX").string();
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  fs::copy_file(program_path(), folder + "/program");
  if (library != nullptr) std::ofstream(folder + "/" + kLibrary) << library;
  const std::string command =
      folder + "/program --gtest_filter=Cuda.TellsItsDevicesAndVersions 2>&1";
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  std::array<char, 256> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
  pclose(pipe);
  fs::remove_all(folder);
  return text;
}

TEST(CudaPlugin, SaysThatItIsNotThereOrNoLibrary) {
  std::string text = said_beside(nullptr);
  EXPECT_NE(text.find("this build has no CUDA (cmake -DMEGATRON_CUDA=ON"), std::string::npos)
      << text;
  text = said_beside("no library");
  EXPECT_NE(text.find("libmegatron_cuda.so: file too short"), std::string::npos) << text;
}

}  // namespace
}  // namespace megatron
