// The process's environment: closed streams, a launcher's variables, limits of a cgroup, and
// signals that cannot be caught.
#include <fstream>
#include <sstream>
#include <thread>

#include "base/files.h"
#include "golden/cli/tiny_run.h"
#include "hang_limit.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

class Surroundings : public ::testing::Test {
 protected:
  // Runs the program in the place by a shell command, with text before its name and after its
  // arguments. Returns the exit code.
  int shell(const std::string& before, const Words& arguments, const std::string& behind) const {
    std::string line = "cd '" + place_.path() + "' && " + before + " '" MEGATRON_BINARY "'";
    for (const std::string& word : arguments) line += " '" + word + "'";
    const int status = std::system((line + " " + behind).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string text(const std::string& name) const { return read_file(place_ / name); }

  Workplace place_;
};

TEST_F(Surroundings, ClosedStreamsEndInNoFile) {
  make_tiny_run(place_);
  const Words train = with(tiny_train(2), {"--save", "closed", "--save-interval", "1"});
  shell("exec", train, "<&- >&- 2>&-");
  const std::string model = "/iter_0000002/model.safetensors";
  EXPECT_EQ(text("closed" + model), text("run" + model));
  std::istringstream log(text("closed/log.jsonl"));
  int lines = 0;
  for (std::string line; std::getline(log, line); ++lines)
    EXPECT_TRUE(line.starts_with("{")) << line;
  EXPECT_GT(lines, 3);
  EXPECT_NE(shell("exec", {"inspect", "run"}, ">&- 2>err"), 0) << "nothing was printed";
  EXPECT_NE(text("err").find("Bad file descriptor"), std::string::npos) << text("err");
}

TEST_F(Surroundings, VariablesOfALauncherNeedItsAddress) {
  EXPECT_EQ(shell("env -u MASTER_ADDR RANK=1 WORLD_SIZE=2", tiny_train(1), ">out 2>&1"), 2);
  EXPECT_NE(text("out").find("RANK=1 and WORLD_SIZE=2 are set, but MASTER_ADDR"), std::string::npos)
      << text("out");
}

TEST_F(Surroundings, NoErrorLineIsLongerThan500Characters) {
  const std::string path(5000, 'x');
  for (const Words& words : {Words{"train", "--data-path", path, "--load", path, "--save", path},
                             Words{"train", "--" + path}, Words{"plan", "--config", path},
                             Words{"inspect", path}, Words{path}, Words{"eval", "--load", path}}) {
    const Outcome r = place_.run(words);
    EXPECT_NE(r.code, 0);
    std::istringstream lines(r.err);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 500u) << line;
  }
}

TEST_F(Surroundings, AKilledBenchLeavesNothing) {
  fs::create_directory(place_ / "tmp");
  Background bench =
      place_.start({"bench", "index", "--documents", "20000000", "--directory", "tmp"});
  const auto begin = std::chrono::steady_clock::now();
  const auto wait_for = [&](bool empty) {
    while (fs::is_empty(place_ / "tmp") != empty && !(bench.ended() && !empty) &&
           std::chrono::steady_clock::now() - begin < std::chrono::seconds(kHangSeconds))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return fs::is_empty(place_ / "tmp") == empty;
  };
  ASSERT_TRUE(wait_for(false));
  bench.kill(SIGKILL);
  EXPECT_TRUE(wait_for(true));
  EXPECT_EQ(bench.wait().code, 128 + SIGKILL);
}

// A cgroup with a memory limit, if this user may create one.
class MemoryGroup {
 public:
  explicit MemoryGroup(int64_t bytes) {
    const std::string name = "/megatron-test-" + std::to_string(::getpid());
    for (const auto& [parent, file] : {std::pair{"/sys/fs/cgroup/memory", "/memory.limit_in_bytes"},
                                       std::pair{"/sys/fs/cgroup", "/memory.max"}}) {
      const std::string folder = parent + name;
      if (::mkdir(folder.c_str(), 0755) != 0) continue;
      if (std::ofstream(folder + file) << bytes << std::flush) {
        folder_ = folder;
        return;
      }
      ::rmdir(folder.c_str());
    }
  }
  ~MemoryGroup() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
  }
  bool made() const { return !folder_.empty(); }
  std::string enter() const { return "echo $$ >'" + folder_ + "/cgroup.procs'; exec"; }

 private:
  std::string folder_;
};

TEST_F(Surroundings, ALimitOfMemoryIsPlannedWith) {
  const MemoryGroup group(200'000'000);
  if (!group.made()) GTEST_SKIP() << "this user cannot make a cgroup with a limit of memory here";
  make_tiny_run(place_);
  const Words wide = {"--hidden-size", "1024", "--num-layers", "8", "--no-time"};
  Words plan = with(tiny_train(2), wide);
  plan[0] = "plan";
  shell(group.enter(), plan, ">out 2>err");
  EXPECT_NE(text("out").find("does NOT fit"), std::string::npos) << text("out") << text("err");
  EXPECT_NE(text("out").find("cgroup"), std::string::npos) << text("out");
  Words train = tiny_train(2);
  train.insert(train.end(), wide.begin(), wide.end() - 1);
  EXPECT_EQ(shell(group.enter(), train, ">out 2>err"), 2) << text("err");
}

}  // namespace
}  // namespace megatron::testing
