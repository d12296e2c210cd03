#include "checkpoint/fingerprint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "text.h"

namespace megatron::testing {
namespace {

TEST(Fingerprint, IsThatOfNamesAndContent) {
  std::string pattern = (std::filesystem::temp_directory_path() / "print-XXXXXX").string();
  const std::string folder = mkdtemp(pattern.data());
  const std::string large(5 << 20, 'x');
  write_file(folder + "/a", "1");
  write_file(folder + "/b", large);
  std::filesystem::create_directory(folder + "/below");
  const std::string first = checkpoint::fingerprint(folder);
  EXPECT_EQ(checkpoint::fingerprint(folder), first);
  EXPECT_NE(checkpoint::fingerprint(folder + "/a"), first);
  write_file(folder + "/below/c", "ignored");
  EXPECT_EQ(checkpoint::fingerprint(folder), first);
  const auto changed = [&](const std::string& name, const std::string& text) {
    const std::string before = read_file(folder + "/" + name);
    write_file(folder + "/" + name, text);
    EXPECT_NE(checkpoint::fingerprint(folder), first) << name;
    write_file(folder + "/" + name, before);
    EXPECT_EQ(checkpoint::fingerprint(folder), first);
  };
  changed("a", "2");
  changed("b", large + "x");
  for (const size_t at : {size_t{0}, large.size() - 1}) {
    std::string other = large;
    other[at] = 'y';
    changed("b", other);
  }
  std::filesystem::rename(folder + "/a", folder + "/c");
  EXPECT_NE(checkpoint::fingerprint(folder), first);
  expect_contains(error_of([&] { checkpoint::fingerprint(folder + "/nothing"); }), {"nothing"});
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace megatron::testing
