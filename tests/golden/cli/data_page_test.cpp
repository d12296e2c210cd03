// Pages of docs/ whose commands run exactly as written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "golden/cli/process.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

// Returns all lines indented by four spaces, with `from` replaced by `to`.
std::string commands_of(const std::string& page, const std::string& from, const std::string& to) {
  std::string commands;
  for (size_t at = 0; at < page.size();) {
    const size_t end = std::min(page.find('\n', at), page.size());
    if (page.compare(at, 4, "    ") == 0) commands += page.substr(at + 4, end - at - 4) + "\n";
    at = end + 1;
  }
  for (size_t at = commands.find(from); at != commands.npos; at = commands.find(from, at))
    commands.replace(at, from.size(), to);
  return commands;
}

// Runs all commands of a page one after the other in place/walk and returns their output.
std::string run_page(const std::string& name, const Workplace& place) {
  const std::string page = read_file(MEGATRON_TEST_SOURCES "/../docs/" + name);
  write_file(place / "page.sh", commands_of(page, "/tmp/walk", place / "walk"));
  const std::string program = fs::path(MEGATRON_BINARY).parent_path().string();
  const std::string command = "PATH='" + program + "':\"$PATH\" bash -e '" + place / "page.sh" +
                              "' > '" + place / "output" + "' 2>&1 < /dev/null";
  const int status = std::system(command.c_str());
  const std::string output = read_file(place / "output");
  EXPECT_EQ(status, 0) << output;
  return output;
}

TEST(DataPage, EveryCommandRunsAsItStands) {
  const Workplace place;
  const std::string output = run_page("data.md", place);
  for (const char* part : {"user, 07:05: Who sat on the mat?", "600 documents", "36 sequences",
                           "validation loss at iteration 50", "of 2 data sets"})
    EXPECT_NE(output.find(part), std::string::npos) << part << " is not in\n" << output;
  EXPECT_TRUE(fs::exists(place / "walk/order/test-shuffle_index.npy"));
}

TEST(EvaluationPage, EveryCommandRunsAsItStands) {
  const Workplace place;
  const std::string output = run_page("evaluation.md", place);
  for (const char* part :
       {"valid set: ", "bits per byte", "401 documents", "of 40 documents", "\"bits_per_byte\"",
        "all checksums verified", "a run resumes from here"})
    EXPECT_NE(output.find(part), std::string::npos) << part << " is not in\n" << output;
}

}  // namespace
}  // namespace megatron::testing
