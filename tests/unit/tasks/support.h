// Task files for tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/files.h"
#include "tasks/task_file.h"
#include "text.h"

namespace megatron::testing {

class TaskFiles : public ::testing::Test {
 protected:
  TaskFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tasks-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~TaskFiles() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& text) const {
    write_file(folder_ + "/" + name, text);
    return folder_ + "/" + name;
  }
  tasks::Task task(const std::string& text) const {
    return tasks::read_task(file("task.jsonl", text));
  }
  void refused(const std::string& text, std::initializer_list<std::string_view> parts) const {
    expect_contains(error_of([&] { task(text); }), parts);
  }

  std::string folder_;
};

}  // namespace megatron::testing
