#include "selftest/compare_directories.h"

#include <gtest/gtest.h>

#include "unit/checkpoint/raw_tensors.h"
#include "unit/checkpoint/support.h"

namespace megatron::selftest {
namespace {

using testing::RawTensor;

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

class CompareDirectories : public ::testing::Test {
 protected:
  Report compare(const RawTensor& a, const RawTensor& b, std::optional<double> tolerance = {}) {
    const RawTensor same{"same", "F32", "[1]", "0000"};
    for (const auto& [name, tensor] : {std::pair{"a", a}, {"b", b}}) {
      std::filesystem::create_directories(folder_ / name);
      write_file(folder_ / name + "/config.json", "{}");
      testing::write_raw(folder_ / name + "/model.safetensors", {same, tensor});
    }
    return compare_directories(folder_ / "a", folder_ / "b", tolerance);
  }

  const checkpoint::TemporaryDirectory folder_;
};

TEST_F(CompareDirectories, TellsHowFarTheWorstTensorIs) {
  const RawTensor a{"w", "F64", "[2]", bytes_of({3.0, 4.0})},
      b{"w", "F64", "[2]", bytes_of({3.0, 4.0 + 4e-9})};
  const Report near = compare(a, b);
  EXPECT_TRUE(near.passed());
  EXPECT_NE(near.text().find("worst error 8.0e-10 of 5.0e-06 allowed (w)"), std::string::npos)
      << near.text();
  EXPECT_NE(near.text().find("largest absolute difference of an element: 4e-09, in w"),
            std::string::npos)
      << near.text();
  EXPECT_FALSE(compare(a, b, 0).passed());
  EXPECT_FALSE(compare(a, b, 7e-10).passed());
  EXPECT_TRUE(compare(a, a, 0).passed());
  const RawTensor far{"w", "F64", "[2]", bytes_of({3.0, 4.1})};
  EXPECT_FALSE(compare(a, far).passed());
  EXPECT_TRUE(compare(a, far, 0.1).passed());
}

TEST_F(CompareDirectories, NarrowAndForeignTypesAreEqualOrNot) {
  const RawTensor one{"w", "BF16", "[1]", bytes_of<uint16_t>({0x3f80})},
      next{"w", "BF16", "[1]", bytes_of<uint16_t>({0x3f81})}, mask{"w", "BOOL", "[1]", "\1"},
      other{"w", "BOOL", "[1]", std::string(1, '\0')};
  EXPECT_TRUE(compare(one, one).passed());
  EXPECT_FALSE(compare(one, next).passed());
  EXPECT_TRUE(compare(one, next, 0.01).passed());
  EXPECT_TRUE(compare(mask, mask).passed());
  EXPECT_FALSE(compare(mask, other).passed());
}

}  // namespace
}  // namespace megatron::selftest
