// The cost of an asynchronous save for the steps that run meanwhile.
#include <algorithm>
#include <chrono>
#include <thread>

#include "golden/training/support.h"

namespace megatron::training {
namespace {

// Takes ten seconds to flush the optimizer's file, without using a CPU.
class SlowDisk final : public FileSystem {
 public:
  int open(const std::string& path, int flags) const override {
    const int file = FileSystem::open(path, flags);
    if (path.find("optimizer-") != path.npos) slow_ = file;
    return file;
  }
  int sync(int file) const override {
    int slow = file;  // later files may get the same number
    if (slow_.compare_exchange_strong(slow, -1))
      std::this_thread::sleep_for(std::chrono::seconds(10));
    return FileSystem::sync(file);
  }

 private:
  mutable std::atomic<int> slow_ = -1;
};

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// --async-save: with a save that takes ten seconds, steps are at most a fifth slower.
TEST(AsyncSave, StepsWaitForTheCopyOnly) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = tiny_gpt2();
  s.shape.hidden_size = 256;
  s.shape.ffn_hidden_size = 1024;
  s.shape.num_attention_heads = 8;
  s.shape.vocab_size = 8000;
  s.batch.seq_length = 128;
  s.batch.train_iters = 200;
  s.log.log_interval = 20;
  s.checkpoint.save = folder / "run";
  s.checkpoint.save_interval = 80;
  s.checkpoint.async_save = true;
  const SlowDisk disk;
  std::vector<double> during, without;
  TrainHooks hooks{.files = &disk};
  hooks.after_step = [&](const IterationReport& report) {
    if (report.iteration == 1) return;
    const bool saving = std::filesystem::exists(folder / "run/iter_0000080.tmp") ||
                        std::filesystem::exists(folder / "run/iter_0000160.tmp");
    (saving ? during : without).push_back(report.seconds);
  };
  train(s, hooks);
  ASSERT_GE(during.size(), 10u) << "steps waited for the save";
  ASSERT_GE(without.size(), 10u);
  std::printf("median step: %.4f s during a save (%zu steps), %.4f s without (%zu steps)\n",
              median(during), during.size(), median(without), without.size());
  EXPECT_LE(median(during), 1.2 * median(without));
}

}  // namespace
}  // namespace megatron::training
