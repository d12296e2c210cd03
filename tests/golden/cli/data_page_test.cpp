// docs/data.md: its commands run as they stand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "golden/cli/process.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

// Everything indented by four spaces, with `from` replaced by `to`.
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

TEST(DataPage, EveryCommandRunsAsItStands) {
  const Workplace place;
  const std::string page = read_file(std::string(MEGATRON_GOLDEN) + "/../../../docs/data.md");
  write_file(place / "page.sh", commands_of(page, "/tmp/walk", place / "walk"));
  const std::string program = fs::path(MEGATRON_BINARY).parent_path().string();
  const std::string command = "PATH='" + program + "':\"$PATH\" bash -e '" + place / "page.sh" +
                              "' > '" + place / "told" + "' 2>&1 < /dev/null";
  const int status = std::system(command.c_str());
  const std::string told = read_file(place / "told");
  EXPECT_EQ(status, 0) << told;
  for (const char* part : {"user, 07:05: Who sat on the mat?", "600 documents", "36 sequences",
                           "validation loss at iteration 50", "of 2 data sets"})
    EXPECT_NE(told.find(part), std::string::npos) << part << " is not in\n" << told;
  EXPECT_TRUE(fs::exists(place / "walk/order/test-shuffle_index.npy"));
}

}  // namespace
}  // namespace megatron::testing
