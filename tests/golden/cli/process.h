// Runs the program as a user does and keeps what it says.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace megatron::testing {

struct Outcome {
  int code = 0;  // 128 + signal when it was killed
  std::string out, err;
};

// A folder that is removed again; run() works in it.
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

  Outcome run(const std::vector<std::string>& arguments) const {
    const std::string prefix = path_ + ".", in = "/dev/null", out = prefix + "out",
                      err = prefix + "err";
    const pid_t child = fork();
    if (child < 0) throw Error("cannot fork");
    if (child == 0) start(arguments, {in, out, err});
    int status = 0;
    waitpid(child, &status, 0);
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.out = read_file(out);
    outcome.err = read_file(err);
    unlink(out.c_str());
    unlink(err.c_str());
    return outcome;
  }

  // Every file and directory in it, by its path from here.
  std::set<std::string> listing() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      names.insert(std::filesystem::relative(entry.path(), path_).string());
    }
    return names;
  }

 private:
  [[noreturn]] void start(const std::vector<std::string>& arguments,
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
