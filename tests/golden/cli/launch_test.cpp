// `megatron launch` with this machine's launcher, and with a stand-in for launchers that are not
// installed. The ranks are small shell programs.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "comm/mpi_library.h"
#include "golden/cli/process.h"
#include "hang_limit.h"
#include "text.h"

namespace megatron::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kRank = "R=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n";

bool alive(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t at = text.rfind(')');
  return at != text.npos && text[at + 2] != 'Z' && text[at + 2] != 'X';
}

std::string last_line(std::string text) {
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

// A launch that runs in the background.
class Running {
 public:
  Running(const Workplace& place, Words words) : out_(place / "out"), err_(place / "err") {
    words.insert(words.begin(), {MEGATRON_BINARY, "launch"});
    child_ = fork();
    if (child_ != 0) return;
    for (const int s : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) signal(s, SIG_DFL);
    const int in = open("/dev/null", O_RDONLY), out = open(out_.c_str(), O_WRONLY | O_CREAT, 0600),
              err = open(err_.c_str(), O_WRONLY | O_CREAT, 0600);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Running() {
    if (child_ <= 0 || over_) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  std::string out() const { return read_file(out_); }
  std::string err() const {
    return std::filesystem::exists(err_) ? read_file(err_) : std::string();
  }
  void send(int signal) const { kill(child_, signal); }

  bool until(const std::function<bool()>& condition, int seconds = 60) const {
    const auto end = Clock::now() + std::chrono::seconds(seconds);
    while (!condition()) {
      if (Clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  }
  // Waits until all ranks have printed "ready PID" and returns the PIDs.
  std::vector<pid_t> ready(size_t ranks) const {
    EXPECT_TRUE(until([&] {
      struct stat unused;
      return stat(out_.c_str(), &unused) == 0 && count(out(), "ready ") == ranks &&
             out().back() == '\n';
    })) << err();
    std::vector<pid_t> processes;
    const std::string text = out();
    for (size_t at = 0; (at = text.find("ready ", at)) != text.npos; ++at)
      processes.push_back(std::stoi(text.substr(at + 6)));
    return processes;
  }
  int code() {
    int status = 0;
    waitpid(child_, &status, 0);
    over_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t child_ = 0;
  bool over_ = false;
  std::string out_, err_;
};

class Launch : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("SLURM_JOB_ID"); }

  Words ranks(int n, const std::string& script) const {
    return {"-np", std::to_string(n), "--program", "/bin/sh", "--", "-c", kRank + script};
  }
  Outcome run(Words words) const {
    words.insert(words.begin(), "launch");
    return place_.run(words);
  }

  // Writes a launcher that prints `version` and starts N ranks with `rank` and `size` set. It
  // writes its own arguments to the file "arguments".
  std::string stand_in(const std::string& name, const std::string& version, const std::string& rank,
                       const std::string& size) const {
    const std::string path = place_ / name;
    std::ofstream(path) << fmt::format(
        R"(#!/bin/sh
if [ "$1" = --version ]; then echo '{0}'; exit 0; fi
for word in "$@"; do echo "$word"; done > '{1}/arguments'
n=$(echo "$1 $2" | sed -E 's/(-n |-np )([0-9]+).*/\2/')
while [ "$1" != "{2}" ]; do shift; done
i=0; pids=
while [ $i -lt $n ]; do {3}=$i {4}=$n "$@" & pids="$pids $!"; i=$((i+1)); done
code=0
for pid in $pids; do wait $pid || code=$?; done
exit $code
)",
        version, place_.path(), std::filesystem::canonical(MEGATRON_BINARY).string(), rank, size);
    chmod(path.c_str(), 0700);
    return path;
  }

  Workplace place_;
};

// Tests that use this machine's launcher.
class LaunchHere : public Launch {
 protected:
  void SetUp() override {
    Launch::SetUp();
    if (run({"-np", "2", "--program", "true", "x"}).code != 0)
      GTEST_SKIP() << "no MPI launcher starts ranks on this machine";
  }
};

TEST_F(LaunchHere, LinesOfRanksAreMergedWhole) {
  // Lines of 1 to 60,000 letters, written faster than they are read; the last has no newline.
  const Outcome r = run(ranks(2, R"(
line=$R; while [ ${#line} -lt 60000 ]; do line=$line$line; done
i=0
while [ $i -lt 300 ]; do
  echo $R$R$R; printf '%s\n' "$line"; i=$((i+1))
done
echo problem$R >&2
printf "end$R")"));
  EXPECT_EQ(r.code, 0) << r.err;
  size_t lines = 0;
  for (size_t at = 0, end = 0; at < r.out.size(); at = end + 1, ++lines) {
    end = r.out.find('\n', at);
    ASSERT_NE(end, std::string::npos);
    const std::string line = r.out.substr(at, end - at);
    ASSERT_TRUE(line.starts_with("[0] ") || line.starts_with("[1] ")) << line.substr(0, 50);
    const std::string text = line.substr(4);
    const char rank = line[1];
    if (text.starts_with("end")) {
      EXPECT_EQ(text, std::string("end") + rank);
    } else {
      EXPECT_TRUE(text.size() == 3 || text.size() == 65536) << text.size();
      EXPECT_EQ(text.find_first_not_of(rank), std::string::npos);
    }
  }
  EXPECT_EQ(lines, 2u * (300 * 2 + 1));
  EXPECT_EQ(count(r.err, "\n[0] problem0\n") + count(r.err, "\n[1] problem1\n"), 2u) << r.err;
  EXPECT_EQ(r.out.find("problem"), std::string::npos);
}

TEST_F(LaunchHere, ArgumentsAndInputComeThroughUntouched) {
  const Outcome r = run({"--no-prefix", "-np", "1", "--program", "printf", "%s|", "a b", "", "-np",
                         "'$(x)'", "--launcher"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out, "a b||-np|'$(x)'|--launcher|\n");
  if (comm::mpi_library().empty()) return;
  const Outcome own = run({"-np", "2", "inspect", "--help"});  // this program, twice
  EXPECT_EQ(own.code, 0) << own.err;
  EXPECT_EQ(count(own.out, "[0] Usage: megatron inspect"), 1u) << own.out;
  EXPECT_EQ(count(own.out, "[1] Usage: megatron inspect"), 1u) << own.out;
}

TEST_F(LaunchHere, TheFirstFailureIsNamed) {
  const Outcome r = run(ranks(2, R"([ $R = 1 ] && { echo "error: no such file" >&2; exit 3; }
sleep 600)"));
  EXPECT_EQ(r.code, 3) << r.err;
  const std::string last = last_line(r.err);
  EXPECT_EQ(last, "launch: rank 1 failed first, with exit code 3") << r.err;
  EXPECT_EQ(count(r.err, "\n[1] error: no such file\n"), 1u) << r.err;
}

TEST_F(LaunchHere, AKilledRankEndsOneThatHangs) {
  const auto start = Clock::now();
  Running run(place_, ranks(2, R"(echo ready $$
[ $R = 1 ] && { sleep 1; kill -9 $$; }
trap '' TERM INT
while true; do sleep 0.2; done)"));
  const std::vector<pid_t> processes = run.ready(2);
  EXPECT_EQ(run.code(), 137);
  EXPECT_NE(last_line(run.err()).find("rank 1 "), std::string::npos) << run.err();
  EXPECT_NE(last_line(run.err()).find("with signal 9 (SIGKILL)"), std::string::npos) << run.err();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(kHangSeconds));
  for (const pid_t process : processes) EXPECT_FALSE(alive(process));
}

TEST_F(LaunchHere, SignalsReachRanksWhichMayTakeTheirTime) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    Running run(place_, ranks(2, R"(trap 'sleep 2; echo saved; exit 4' INT TERM USR1 HUP
echo ready $$
while true; do sleep 0.1; done)"));
    run.ready(2);
    run.send(signal);
    if (signal == SIGHUP) {  // a shell and its terminal each send one
      EXPECT_TRUE(run.until([&] { return count(run.err(), "SIGHUP forwarded") == 1; }));
      run.send(signal);
    }
    EXPECT_EQ(run.code(), 4) << signal << run.err();
    EXPECT_EQ(count(run.out(), "saved\n"), 2u) << signal << run.out();
    EXPECT_NE(last_line(run.err()).find("all ranks ended early"), std::string::npos) << run.err();
    std::filesystem::remove(place_ / "out");
    std::filesystem::remove(place_ / "err");
  }
}

TEST_F(LaunchHere, ASecondInterruptEndsAtOnce) {
  Running run(place_, ranks(2, "trap '' INT TERM\necho ready $$\nwhile true; do sleep 0.1; done"));
  const std::vector<pid_t> processes = run.ready(2);
  run.send(SIGINT);
  EXPECT_TRUE(
      run.until([&] { return run.err().find("forwarded to the ranks") != std::string::npos; }));
  run.send(SIGINT);
  EXPECT_EQ(run.code(), 137) << run.err();
  for (const pid_t process : processes) EXPECT_FALSE(alive(process));
}

TEST_F(LaunchHere, RanksDoNotOutliveLaunch) {
  Running run(place_,
              ranks(2, "trap '' INT TERM HUP\necho ready $$\nwhile true; do sleep 0.1; done"));
  const std::vector<pid_t> processes = run.ready(2);
  run.send(SIGKILL);
  run.code();
  for (const pid_t process : processes)
    EXPECT_TRUE(run.until([&] { return !alive(process); }, kHangSeconds)) << process;
}

TEST_F(LaunchHere, AProgramThatDoesNotStartIsNamed) {
  const Outcome r = run({"-np", "2", "--program", "/no/such/program", "x"});
  EXPECT_EQ(r.code, 127);
  EXPECT_NE(r.err.find("/no/such/program cannot be started: No such file"), std::string::npos)
      << r.err;
}

TEST_F(Launch, LaunchersOfOtherKinds) {
  const std::string mpich =
      stand_in("mpiexec", "HYDRA build details:\n    Version:   4.0.2", "PMI_RANK", "PMI_SIZE");
  const std::string open5 =
      stand_in("mpirun", "mpirun (Open MPI) 5.0.3", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  for (const std::string& launcher : {mpich, open5}) {
    Words words = ranks(3, "echo rank $R; [ $R != 2 ] || exit 5");
    words.insert(words.begin(), {"--launcher", launcher});
    const Outcome r = run(words);
    EXPECT_EQ(r.code, 5) << r.err;
    for (const char* line : {"[0] rank 0\n", "[1] rank 1\n", "[2] rank 2\n"})
      EXPECT_EQ(count(r.out, line), 1u) << r.out;
    EXPECT_NE(last_line(r.err).find("rank 2 "), std::string::npos) << r.err;
  }
  EXPECT_EQ(count(read_file(place_ / "arguments"), ":OVERSUBSCRIBE\n"), 1u);
}

TEST_F(Launch, ALauncherThatFailsIsHeard) {
  const std::string path = place_ / "mpirun";
  std::ofstream(path) << "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'mpirun (Open MPI) 4.1.4'; "
                         "exit 0; }\necho 'no host answers' >&2\nexit 9\n";
  chmod(path.c_str(), 0700);
  const Outcome r = run({"--launcher", path, "-np", "2", "--program", "true", "x"});
  EXPECT_EQ(r.code, 9);
  EXPECT_NE(r.err.find("[mpirun] no host answers\n"), std::string::npos) << r.err;
  EXPECT_EQ(last_line(r.err),
            "launch: the launcher ended (exit code 9) with 0 of 2 ranks started; see its "
            "output for the reason");
}

TEST_F(Launch, DryRunPrintsACommandThatCanBePasted) {
  const std::string mpich =
      stand_in("mpiexec", "HYDRA build details:\n    Version:   4.0.2", "PMI_RANK", "PMI_SIZE");
  const Outcome r = run({"--launcher", mpich, "-np", "2", "--program", "/opt/m", "--dry-run",
                         "train", "--data-path", "my data"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out, mpich + " -n 2 /opt/m train --data-path 'my data'\n");
  EXPECT_FALSE(std::filesystem::exists(place_ / "arguments"));
}

TEST_F(Launch, BadInput) {
  const auto refused = [&](Words words, const Words& parts) {
    const Outcome r = run(words);
    EXPECT_EQ(r.code, 2) << r.err;
    for (const std::string& part : parts) EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  refused({"train"}, {"-np is needed"});
  refused({}, {"-np is needed"});
  refused({"-np", "2"}, {"COMMAND is needed"});
  refused({"-np", "0", "train"}, {"-np is 0", "it must lie in [1, "});
  refused({"-np", "-3", "train"}, {"-np is -3"});
  refused({"-np", "70000", "train"}, {"-np is 70000", "several machines"});
  refused({"-np", "two", "train"}, {"--np", "two"});
  refused({"-np", "2", "trian"}, {"no command 'trian'", "did you mean 'train'"});
  refused({"-np", "2", "launch", "-np", "2", "train"}, {"cannot start megatron launch"});
  for (const char* flag : {"--hosts", "--host", "-hosts", "-H", "--hostfile"})
    refused({"-np", "2", flag, "a:1,b:1", "train"}, {std::string(flag) + " is for several machines",
                                                     "mpirun -np 16 --host node1:8,node2:8"});
  refused({"-np", "2", "--no-prefx", "train"}, {"no flag --no-prefx", "did you mean --no-prefix"});
  refused({"--guard"}, {"--guard"});
  refused({"--guard", "true"}, {"for megatron launch itself"});
  const Words program = {"--program", "true", "x"};
  const auto with = [&](Words words) {
    words.insert(words.end(), program.begin(), program.end());
    return words;
  };
  refused(with({"-np", "2", "--launcher", "slurm"}), {"--launcher is slurm", "mpiexec or a path"});
  refused(with({"-np", "2", "--launcher", "/bin/no"}),
          {"--launcher /bin/no", "not an executable program"});
  refused(with({"-np", "2", "--launcher", "/bin/true"}), {"/bin/true --version"});
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.out.find("Usage: megatron launch -np N"), std::string::npos);
}

TEST_F(Launch, WithoutALauncherItSaysWhatToInstall) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", place_.path().c_str(), 1);
  const Outcome r = run({"-np", "2", "--program", "/bin/true", "x"});
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(r.code, 2);
  for (const char* part : {"PATH", "openmpi-bin", "megatron train --ranks"})
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

TEST_F(Launch, InASlurmAllocationItNamesSrun) {
  setenv("SLURM_JOB_ID", "9", 1);
  const Outcome r = run({"-np", "2", "--program", "/bin/echo", "a b"});
  unsetenv("SLURM_JOB_ID");
  EXPECT_EQ(r.code, 2);
  for (const char* part : {"SLURM_JOB_ID", "srun --ntasks=2 --label --cpu-bind=none", "'a b'"})
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

TEST_F(Launch, ARankDoesNotLaunch) {
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  const Outcome r = run({"-np", "2", "--program", "true", "x"});
  unsetenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("was itself started as rank 1 of 2"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace megatron::testing
