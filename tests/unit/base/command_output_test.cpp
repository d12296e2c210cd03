// Which files a command's output may replace, and how the output is written.
#include "base/command_output.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/error.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

class CommandOutputs : public ::testing::Test {
 protected:
  CommandOutputs() {
    std::string text = (fs::temp_directory_path() / "megatron_output_XXXXXX").string();
    if (mkdtemp(text.data()) == nullptr) throw Error("no temporary directory");
    path_ = text;
  }
  ~CommandOutputs() override { fs::remove_all(path_); }
  std::string at(const std::string& name) const { return path_ + "/" + name; }

  // Returns the error, or an empty string if the file may be written.
  std::string refusal(const std::string& path, const std::vector<std::string>& inputs = {},
                      std::optional<bool> overwrite = {}) const {
    const FileKind kind = {"a list of ours",
                           [](std::string_view text) { return first_line(text) == "# list"; }};
    try {
      check_output({path, "--output", kind, overwrite}, inputs);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  std::string path_;
};

TEST_F(CommandOutputs, ReplaceTheirOwnKindAlone) {
  write_file(at("own"), "# list\n1\n");
  write_file(at("other"), "{\"step\": 1}\n");
  write_file(at("empty"), "");
  EXPECT_EQ(refusal(at("free")), "");
  EXPECT_EQ(refusal(at("own")), "");
  EXPECT_EQ(refusal(at("empty")), "");
  EXPECT_TRUE(has(refusal(at("other")), "--output " + at("other") + " exists and is not a list"));
  EXPECT_TRUE(has(refusal(path_), "is a directory"));
  EXPECT_TRUE(has(refusal(""), "--output is empty"));
  EXPECT_TRUE(has(refusal(at("own"), {}, false), "give --overwrite"));
  EXPECT_EQ(refusal(at("own"), {}, true), "");
  EXPECT_TRUE(has(refusal(at("other"), {}, true), "not a list of ours"));
  fs::create_symlink("other", at("link"));
  EXPECT_TRUE(has(refusal(at("link")), "not a list of ours"));
}

TEST_F(CommandOutputs, AreNoInputsByAnyName) {
  write_file(at("own"), "# list\n1\n");
  write_file(at("empty"), "");
  fs::create_symlink("own", at("link"));
  fs::create_hard_link(at("own"), at("hard"));
  fs::create_directory(at("below"));
  for (const std::string name : {"own", "link", "hard", "./own", "below/../own"}) {
    EXPECT_TRUE(has(refusal(at(name), {at("own")}), "this command reads")) << name;
    EXPECT_TRUE(has(refusal(at("own"), {at("free"), at(name)}, true), "this command reads"));
  }
  EXPECT_TRUE(has(refusal(at("empty"), {at("empty")}), "this command reads"));
  EXPECT_EQ(refusal(at("own"), {at("empty"), at("missing")}), "");
}

TEST_F(CommandOutputs, AppearWhole) {
  write_file(at("own"), "# list\nold\n");
  fs::create_symlink("own", at("link"));
  fs::create_symlink("later", at("dangling"));
  {
    CommandOutputFile file(at("own"));
    file.write("# list\nhalf");
  }
  EXPECT_EQ(read_file(at("own")), "# list\nold\n");
  for (const auto& [name, target] : std::initializer_list<std::pair<const char*, const char*>>{
           {"link", "own"}, {"dangling", "later"}}) {
    CommandOutputFile file(at(name));
    file.write("# list\n");
    file.write("new\n");
    file.commit();
    EXPECT_TRUE(fs::is_symlink(at(name)));
    EXPECT_FALSE(fs::is_symlink(at(target)));
    EXPECT_EQ(read_file(at(target)), "# list\nnew\n");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(path_), fs::directory_iterator()), 4);
}

TEST_F(CommandOutputs, GoToWhatHoldsNoBytes) {
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  for (const std::string& path : {at("pipe"), std::string("/dev/null")}) {
    EXPECT_EQ(refusal(path), "");
    EXPECT_EQ(refusal(path, {path}), "");
  }
  std::string read;
  std::thread reader([&] { read = read_file(at("pipe")); });
  CommandOutputFile pipe(at("pipe"));
  pipe.write("# list\n");
  pipe.commit();
  reader.join();
  EXPECT_EQ(read, "# list\n");
  CommandOutputFile null("/dev/null");
  null.write("gone");
  null.commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  CommandOutputFile full("/dev/full");
  full.write("too much");
  EXPECT_THROW(full.commit(), Error);
}

// Earlier and later content survives, because standard output is not opened again.
TEST_F(CommandOutputs, GoOnWhereAnOpenFileIs) {
  std::FILE* const file = std::fopen(at("log").c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs("before\n", file);
  std::fflush(file);
  const std::string name = "/dev/fd/" + std::to_string(fileno(file));
  EXPECT_EQ(refusal(name), "");
  CommandOutputFile output(name);
  output.write("# list\n");
  output.commit();
  std::fputs("after\n", file);
  std::fclose(file);
  EXPECT_EQ(read_file(at("log")), "before\n# list\nafter\n");
}

}  // namespace
}  // namespace megatron
