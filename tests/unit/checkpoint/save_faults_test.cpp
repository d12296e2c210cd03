// Makes every file operation of a save fail in every way, one at a time.
#include <sys/wait.h>

#include "base/log.h"
#include "faulty_files.h"
#include "trained_model.h"

namespace megatron::checkpoint {
namespace {

using testing::ends;
using testing::Fault;
using testing::FaultyFiles;

constexpr int64_t kSmallShard = 1000;

size_t open_descriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

enum class Before { other_iteration, same_name, same_name_without_exchange };

class SaveFaults : public ::testing::TestWithParam<std::tuple<Before, Fault>> {
 protected:
  SaveFaults() : older_(DType::bf16, true, 1, 1), newer_(DType::bf16, true, 1000, 1) {
    log::set_level(log::Level::error);
    save(older_, 1, "iter_0000001", clean_);
  }
  ~SaveFaults() override { log::set_level(log::Level::info); }

  Before before() const { return std::get<Before>(GetParam()); }
  bool replaces() const { return before() != Before::other_iteration; }

  void save(TrainedModel& model, int64_t iteration, const std::string& name, FaultyFiles& files) {
    if (before() == Before::same_name_without_exchange) files.forbid_exchange();
    Save save(folder_ / name, model.contents(iteration, kSmallShard), *ranks_, model.stream(),
              files, Save::Snapshot::none);
    save.write();
    save.finish();
  }

  // Returns the iteration of a directory, which must be complete, or 0 if there is none.
  int64_t found(const std::string& name) {
    if (!std::filesystem::exists(folder_ / name)) return 0;
    const CheckpointDirectory directory(folder_ / name);
    directory.verify(reader_.pool());
    reader_.load(directory);
    const int64_t iteration = directory.trainer_state()["iteration"].as_integer();
    EXPECT_EQ(reader_.bits(), (iteration == 1 ? older_ : newer_).bits());
    return iteration;
  }

  // Returns a description of any wrong behaviour, or "" if the save of `newer_` succeeds.
  std::string try_save(FaultyFiles& files, Fault fault) {
    if (!ends(fault)) return error_of([&] { save(newer_, 2, target(), files); });
    const pid_t child = ::fork();
    if (child == 0) {
      error_of([&] { save(newer_, 2, target(), files); });
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == testing::kEnded) << status;
    return "the process ended";
  }

  std::string target() const { return replaces() ? "iter_0000001" : "iter_0000002"; }

  void check_point(Fault fault, int64_t at, const std::string& operation) {
    SCOPED_TRACE(fmt::format("{} at operation {} ({})", testing::name(fault), at, operation));
    FaultyFiles files(fault, at);
    const std::string error = try_save(files, fault);
    EXPECT_EQ(files.open_files(), 0);
    if (ends(fault)) restore_replaced(folder_.path(), clean_);
    const int64_t here = found(target());
    if (ends(fault)) {
      EXPECT_TRUE(here == 2 || here == (replaces() ? 1 : 0)) << here;
    } else if (error.empty()) {
      EXPECT_EQ(here, 2);
    } else {
      EXPECT_EQ(here, replaces() ? 1 : 0) << error;
      EXPECT_NE(error.find(fault == Fault::io_error ? "Input/output" : "No space"), error.npos)
          << error;
    }
    if (fault == Fault::interrupted || fault == Fault::cut_short) {
      EXPECT_EQ(error, "");
    }
    if (!ends(fault) && operation != "remove") {
      EXPECT_EQ(folder_.names(), names(here)) << error;
    }
    if (!replaces()) {
      EXPECT_EQ(found("iter_0000001"), 1);
    }
    // Leftover files do not disturb the next save.
    save(newer_, 2, target(), clean_);
    EXPECT_EQ(found(target()), 2);
    EXPECT_EQ(folder_.names(), names(2));
    if (replaces()) save(older_, 1, target(), clean_);
    else std::filesystem::remove_all(folder_ / target());
  }

  std::set<std::string> names(int64_t here) const {
    std::set<std::string> names = {"iter_0000001"};
    if (here == 2) names.insert(target());
    return names;
  }

  TemporaryDirectory folder_;
  FaultyFiles clean_;
  std::unique_ptr<comm::Group> ranks_ = comm::single();
  TrainedModel older_, newer_, reader_{DType::bf16, true, 0, 1};
};

TEST_P(SaveFaults, LeaveAWholeCheckpoint) {
  FaultyFiles counted;
  save(newer_, 2, target(), counted);
  const std::vector<std::string> operations = counted.operations();
  if (replaces()) save(older_, 1, target(), clean_);
  else std::filesystem::remove_all(folder_ / target());
  const size_t descriptors = open_descriptors();
  const Fault fault = std::get<Fault>(GetParam());
  const bool within = fault == Fault::cut_short || fault == Fault::end_within;
  int points = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    if (within && !operations[i].starts_with("write")) continue;
    check_point(fault, static_cast<int64_t>(i), operations[i]);
    ++points;
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  fmt::print("{} of the {} operations of a save: {}\n", points, operations.size(),
             testing::name(fault));
}

INSTANTIATE_TEST_SUITE_P(Before, SaveFaults,
                         ::testing::Combine(::testing::Values(Before::other_iteration,
                                                              Before::same_name,
                                                              Before::same_name_without_exchange),
                                            ::testing::ValuesIn(testing::kFaults)));

}  // namespace
}  // namespace megatron::checkpoint
