// Logs of runs for tests of the report.
#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <string>

#include "base/files.h"

namespace megatron::report {

class LogFolder {
 public:
  LogFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "report-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~LogFolder() { std::filesystem::remove_all(path_); }
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  // Creates a run's directory with this log.
  std::string run(const std::string& name, const std::string& log) const {
    write_file(path_ + "/" + name + "/log.jsonl", log);
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string run_line(int64_t iteration, double time, const std::string& more = "") {
  return fmt::format(
      "{{\"type\":\"run\",\"schema\":1,\"time\":{},\"version\":\"0.1\",\"iteration\":{},"
      "\"flags\":{{\"lr\":\"0.001\"}},\"train_iters\":100,\"seq_length\":8{}}}\n",
      time, iteration, more);
}

inline std::string step_line(int64_t iteration, double time, const std::string& loss) {
  return fmt::format(
      "{{\"type\":\"step\",\"time\":{},\"iteration\":{},\"consumed_tokens\":{},\"loss\":{},"
      "\"learning_rate\":0.001,\"gradient_norm\":1.5,\"tokens_per_second\":{},"
      "\"memory\":{{\"parameters\":1000,\"optimizer\":2000,\"process\":9000}}}}\n",
      time, iteration, iteration * 8, loss, 100 + iteration % 3);
}

inline std::string line(const std::string& type, int64_t iteration, const std::string& rest) {
  return fmt::format("{{\"type\":\"{}\",\"time\":{},\"iteration\":{},{}}}\n", type,
                     1000 + iteration, iteration, rest);
}

}  // namespace megatron::report
