// Runs the program as a user does and keeps its output.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace megatron::testing {

using Words = std::vector<std::string>;

// Splits a command line into words.
inline Words words(const std::string& text) {
  std::istringstream in(text);
  Words all;
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}
inline Words with(Words first, const Words& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

struct Outcome {
  int code = 0;  // 128 + signal if it was killed
  std::string out, err;
  double seconds = 0;  // CPU seconds
  int64_t bytes = 0;   // peak memory
};

// A process that runs in the background.
class Background {
 public:
  Background(pid_t child, std::string prefix) : child_(child), prefix_(std::move(prefix)) {}
  ~Background() {
    if (child_ < 0) return;
    kill(SIGKILL);
    wait();
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  void kill(int signal) const { ::kill(child_, signal); }
  // True if the process has ended by itself; then wait() does not block.
  bool ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == child_;
  }
  Outcome wait() {
    int status = 0;
    rusage used{};
    wait4(std::exchange(child_, -1), &status, 0, &used);
    Outcome outcome;
    for (const timeval& t : {used.ru_utime, used.ru_stime})
      outcome.seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    outcome.bytes = int64_t{used.ru_maxrss} * 1024;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.out = read_file(prefix_ + "out");
    outcome.err = read_file(prefix_ + "err");
    unlink((prefix_ + "out").c_str());
    unlink((prefix_ + "err").c_str());
    return outcome;
  }

 private:
  pid_t child_;
  std::string prefix_;
};

// A temporary folder; run() works in it.
class Workplace {
 public:
  Workplace() {
    std::string pattern = (std::filesystem::temp_directory_path() / "megatron-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Workplace() { std::filesystem::remove_all(path_); }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Only one at a time. in: the file used as standard input.
  Background start(const std::vector<std::string>& arguments,
                   const std::string& in = "/dev/null") const {
    const std::string prefix = path_ + ".";
    std::filesystem::remove(prefix + "err");  // readers must not see what an earlier program wrote
    const pid_t child = fork();
    if (child < 0) throw Error("cannot fork");
    if (child == 0) become(arguments, {in, prefix + "out", prefix + "err"});
    return {child, prefix};
  }
  Outcome run(const std::vector<std::string>& arguments,
              const std::string& in = "/dev/null") const {
    return start(arguments, in).wait();
  }

  // Every file and directory in the folder, by relative path.
  std::set<std::string> listing() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      names.insert(std::filesystem::relative(entry.path(), path_).string());
    }
    return names;
  }

 private:
  [[noreturn]] void become(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& files) const {
    const int flags[] = {O_RDONLY, O_WRONLY | O_CREAT | O_TRUNC, O_WRONLY | O_CREAT | O_TRUNC};
    for (int i = 0; i < 3; ++i) {
      const int file = open(files[static_cast<size_t>(i)].c_str(), flags[i], 0600);
      if (file < 0 || dup2(file, i) < 0) _exit(126);
    }
    if (chdir(path_.c_str()) != 0) _exit(126);
    std::vector<char*> argv = {const_cast<char*>(MEGATRON_BINARY)};
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(MEGATRON_BINARY, argv.data());
    _exit(127);
  }

  std::string path_;
};

}  // namespace megatron::testing
