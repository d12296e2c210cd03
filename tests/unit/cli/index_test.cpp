#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/command.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

const std::string kVectors = std::string(MEGATRON_GOLDEN) + "/gpt_dataset";

class Folder {
 public:
  Folder() {
    std::string text = (fs::temp_directory_path() / "megatron_index_XXXXXX").string();
    if (mkdtemp(text.data()) == nullptr) throw Error("no temporary directory");
    path_ = text;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

int quiet(const Arguments& arguments) {
  ::testing::internal::CaptureStdout();
  const struct Release {
    ~Release() { ::testing::internal::GetCapturedStdout(); }
  } release;
  return index(arguments);
}

std::string error_of(const Arguments& arguments) {
  try {
    quiet(arguments);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

void expect_error(const Arguments& arguments, const std::string& part) {
  const std::string text = error_of(arguments);
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Index, WritesTheFilesOfTheVectors) {
  const Folder folder;
  for (const std::string name :
       {"tiny5_three_way", "small40_seed1234", "small40_3epochs_frac0.79"}) {
    SCOPED_TRACE(name);
    const Json c = Json::read(kVectors + "/cases/" + name + "/case.json");
    std::string samples;
    for (const Json& size : c["sizes"].as_array()) {
      samples += samples.empty() && &size == &c["sizes"].as_array()[0] ? "" : ",";
      if (!size.is_null()) samples += std::to_string(size.as_integer());
    }
    const std::string out = folder / name;
    EXPECT_EQ(quiet({"--data-path", kVectors + "/data/" + c["data"].as_string(), "--split",
                     c["split"].as_string(), "--seq-length", std::to_string(c["S"].as_integer()),
                     "--seed", std::to_string(c["seed"].as_integer()), "--samples", samples,
                     "--output", out}),
              0);
    std::set<std::string> expected, found;
    for (const std::string split : {"train", "valid", "test"}) {
      if (c["splits"][split].is_null()) continue;
      for (const std::string what : {"document", "sample", "shuffle"}) {
        const std::string file = split + "-" + what + "_index.npy";
        expected.insert(file);
        EXPECT_EQ(read_file(out + "/" + file),
                  read_file(kVectors + "/cases/" + name + "/" + split + "/" + what + "_index.npy"))
            << file;
      }
    }
    for (const auto& entry : fs::directory_iterator(out))
      found.insert(entry.path().filename().string());
    EXPECT_EQ(found, expected);
  }
}

TEST(Index, FillsTheCacheOfEveryPrefix) {
  const Folder folder;
  const Arguments arguments = {"--data-path",
                               kVectors + "/data/small40",
                               kVectors + "/data/tiny5",
                               "--split",
                               "1",
                               "--seq-length",
                               "8",
                               "--data-cache-path",
                               folder / "cache"};
  EXPECT_EQ(quiet(arguments), 0);
  std::set<std::string> first, second;
  for (const auto& entry : fs::directory_iterator(folder / "cache"))
    first.insert(entry.path().string());
  EXPECT_EQ(first.size(), 2u * (4 + 1));  // indices, their description, facts of the source
  EXPECT_EQ(quiet(arguments), 0);
  for (const auto& entry : fs::directory_iterator(folder / "cache"))
    second.insert(entry.path().string());
  EXPECT_EQ(first, second);
}

TEST(Index, RefusesWhatItCannotDo) {
  const Folder folder;
  const std::string data = kVectors + "/data/tiny5", out = folder / "out";
  const Arguments good = {"--data-path", data, "--seq-length", "8", "--split", "1"};
  const auto with = [&](Arguments more) {
    Arguments all = good;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_error({"--seq-length", "8"}, "--data-path");
  expect_error({"--data-path", data}, "--seq-length");
  expect_error({"--data-path", folder / "absent", "--seq-length", "8"}, "absent");
  expect_error(with({"--data-path", data, data, "--output", out}), "--output");
  for (const char* samples :
       {"1,2", "1,2,3,4", "x,1,1", "-1,1,1", "1.5,1,1", "99999999999999999999,,"})
    expect_error(with({"--samples", samples, "--output", out}), "--samples");
  expect_error(with({"--samples", "9000000000000000000,,", "--output", out}), "samples");
  expect_error(with({"--split", "1,2,3,4", "--output", out}), "--split");
  expect_error(with({"--split", "100,1,1", "--output", out}), "--split");  // an empty split
  expect_error(with({"--seed", "-1", "--output", out}), "seed");
  expect_error(with({"--seq-length", "1", "--output", out}), "--seq-length");
  std::ofstream(folder / "file").close();
  expect_error(with({"--output", folder / "file/out"}), "file/out");
  // No files are left behind.
  EXPECT_TRUE(!fs::exists(out) || fs::is_empty(out));
}

}  // namespace
}  // namespace megatron::cli
