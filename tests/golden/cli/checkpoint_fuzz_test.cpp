// Damages every file of a checkpoint in every way and runs the program's commands on it: none dies
// of a signal, the message says what is wrong, and a run falls back to an older checkpoint.
#include <algorithm>
#include <functional>

#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

struct Mutation {
  std::string name;
  std::function<void(const std::string& path)> apply;
};

Mutation truncated(const std::string& name, const std::function<size_t(size_t)>& to) {
  return {name, [to](const std::string& path) { fs::resize_file(path, to(fs::file_size(path))); }};
}

Mutation flipped(const std::string& name, const std::function<size_t(size_t)>& at) {
  return {name, [at](const std::string& path) {
            std::string bytes = read_file(path);
            bytes[at(bytes.size())] ^= 0x15;
            write_file(path, bytes);
          }};
}

std::vector<Mutation> mutations() {
  return {
      truncated("empty", [](size_t) { return 0; }),
      truncated("half", [](size_t n) { return n / 2; }),
      truncated("one byte short", [](size_t n) { return n - 1; }),
      flipped("first byte", [](size_t) { return 0; }),
      flipped("tenth byte", [](size_t n) { return std::min<size_t>(9, n - 1); }),
      flipped("a byte in the middle", [](size_t n) { return n / 2; }),
      flipped("last byte", [](size_t n) { return n - 1; }),
      {"longer",
       [](const std::string& path) { write_file(path, read_file(path) + std::string(9, '\0')); }},
      {"gone", [](const std::string& path) { fs::remove(path); }},
      {"a directory",
       [](const std::string& path) {
         fs::remove(path);
         fs::create_directory(path);
       }},
  };
}

class SpoiledCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    make_tiny_run(place_);
    write_file(place_ / "text.txt", "Hello there, world. Once more.\n");
  }

  // Expects the program to end with one of `codes` and to print a message.
  Outcome run(const Words& arguments, const std::vector<int>& codes, const std::string& what) {
    ++runs_;
    const Outcome r = place_.run(arguments);
    EXPECT_NE(std::ranges::count(codes, r.code), 0)
        << what << ": " << arguments[0] << " ended with " << r.code << "\n"
        << r.out << r.err;
    EXPECT_NE(r.out + r.err, "") << what << ": " << arguments[0];
    if (r.code == 2) {
      EXPECT_NE(r.err.find("error"), std::string::npos) << what << "\n" << r.err;
    }
    return r;
  }

  // Calls `check` with the file damaged in each way; the file is restored after each call.
  void spoil(const std::string& file, const std::function<void(const std::string& what)>& check) {
    const std::string path = place_ / file, bytes = read_file(path);
    for (const Mutation& mutation : mutations()) {
      mutation.apply(path);
      check(file + ", " + mutation.name);
      fs::remove_all(path);
      write_file(path, bytes);
    }
  }

  std::vector<std::string> files_of(const std::string& directory) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(place_ / directory))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  Workplace place_;
  int runs_ = 0;
};

TEST_F(SpoiledCheckpoint, IsToldAndTheOneBeforeIsTaken) {
  const std::string last = "run/iter_0000002";
  const Words resume = with(tiny_train(2), {"--load", "run"});
  const std::vector<std::string> names = files_of(last);
  ASSERT_GE(names.size(), 5u);
  int cases = 0;
  for (const std::string& name : names) {
    spoil(last + "/" + name, [&](const std::string& what) {
      run({"inspect", "--verify", last}, {1, 2}, what);
      const bool read = name == "config.json" || name.starts_with("model");
      if (read || name.starts_with("tokenizer")) {
        run({"inspect", last}, {0, 2}, what);
        run({"eval", "--load", last, "--input", "text.txt", "--threads", "1"}, {0, 2}, what);
      }
      if (++cases % 3 != 0) return;  // resumes after every third damage
      const Outcome resumed = run(resume, {0}, what);
      EXPECT_NE(resumed.err.find("iter_0000002"), std::string::npos) << what << resumed.err;
      EXPECT_NE(resumed.err.find("iter_0000001"), std::string::npos) << what << resumed.err;
    });
  }
  const Outcome whole = run(resume, {0}, "whole");
  EXPECT_EQ(whole.err.find("iter_0000001"), std::string::npos) << whole.err;
  EXPECT_EQ(run({"inspect", "--verify", last}, {0}, "whole").code, 0);
  std::printf("%d runs of the program\n", runs_);
}

TEST_F(SpoiledCheckpoint, Tracker) {
  const Words resume = with(tiny_train(2), {"--load", "run"});
  spoil("run/latest_checkpointed_iteration.txt", [&](const std::string& what) {
    run({"inspect", "run"}, {0, 2}, what);
    run({"inspect", "--verify", "run"}, {0, 2}, what);
    run({"eval", "--load", "run", "--input", "text.txt", "--threads", "1"}, {0, 2}, what);
    run(resume, {0, 2}, what);
  });
}

TEST_F(SpoiledCheckpoint, Log) {
  spoil("run/log.jsonl", [&](const std::string& what) {
    run({"inspect", "run/log.jsonl"}, {0, 2}, what);
    run({"inspect", "run"}, {0, 2}, what);
  });
}

}  // namespace
}  // namespace megatron::testing
