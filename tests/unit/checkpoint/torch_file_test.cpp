// Files written by torch.save (tests/golden/vectors/torch).
#include "checkpoint/torch_file.h"

#include <random>
#include <thread>

#include "checkpoint/safetensors.h"
#include "support.h"

namespace megatron::checkpoint {
namespace {

std::string torch_error(const std::string& name) {
  return error_of([&] { TorchFile file(torch_vector("small/" + name)); });
}

void expect_equal(const TorchFile& file, const SafetensorsFile& wanted) {
  ASSERT_EQ(file.tensors().size(), wanted.tensors().size());
  for (const TensorInfo& info : wanted.tensors()) {
    const TensorInfo* const found = file.find(info.name);
    ASSERT_NE(found, nullptr) << info.name;
    EXPECT_EQ(found->dtype, info.dtype) << info.name;
    EXPECT_EQ(found->shape, info.shape) << info.name;
    EXPECT_EQ(found->end - found->begin, info.end - info.begin) << info.name;
    EXPECT_TRUE(std::ranges::equal(file.bytes(*found), wanted.bytes(info))) << info.name;
  }
}

TEST(TorchFile, HasTheValuesOfEveryTypeAndView) {
  const SafetensorsFile wanted(torch_vector("small/types.safetensors"));
  for (const char* name :
       {"types_2.bin", "types_3.bin", "types_4.bin", "types_5.bin", "types_legacy_2.bin",
        "types_legacy_4.bin", "zip64.bin", "no_byteorder.bin"}) {
    SCOPED_TRACE(name);
    const TorchFile file(torch_vector(std::string("small/") + name));
    EXPECT_EQ(file.tensors().front().name, "float64");  // in the order of the state dict
    EXPECT_EQ(file.tensors().back().name, "scalar_inside");
    expect_equal(file, wanted);
    EXPECT_EQ(type_name(*file.find("bool")), "torch.bool");
  }
}

TEST(TorchFile, ListsTypesThatNoModelHas) {
  EXPECT_EQ(type_name(TorchFile(torch_vector("small/complex.bin")).tensors().at(0)),
            "torch.complex64");
  EXPECT_EQ(type_name(TorchFile(torch_vector("small/float8.bin")).tensors().at(0)),
            "torch.float8_e4m3fn");
}

TEST(TorchFile, ContiguousTensorsAreViewsAndSharedOnesTheSame) {
  for (const char* name : {"types_2.bin", "types_legacy_2.bin"}) {
    const TorchFile file(torch_vector(std::string("small/") + name));
    const auto data = [&](const char* tensor) { return file.bytes(*file.find(tensor)).data(); };
    EXPECT_EQ(data("same"), data("float32"));
    EXPECT_EQ(data("row"), data("float32") + 2 * 6 * 4);
    EXPECT_EQ(data("one_row"), data("float32") + 6 * 4);
    EXPECT_EQ(data("transposed"), data("transposed"));  // assembled once
  }
}

TEST(TorchFile, IsReadBySeveralThreads) {
  const TorchFile file(torch_vector("small/types_2.bin"));
  const SafetensorsFile wanted(torch_vector("small/types.safetensors"));
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { expect_equal(file, wanted); });
}

TEST(TorchFile, RefusesWhatItDoesNotRead) {
  const struct {
    const char *name, *reason;
  } cases[] = {
      {"system.bin", "refers to 'posix.system'"},
      {"system_4.bin", "refers to 'posix.system'"},
      {"system_legacy.bin", "refers to 'posix.system'"},
      {"module.bin", "refers to 'torch.nn.modules.linear.Linear'"},
      {"sparse.bin", "refers to 'torch._utils._rebuild_sparse_tensor'"},
      {"nested.bin", "'state_dict' is not a tensor"},
      {"list.bin", "not contain a dict of named tensors"},
      {"key.bin", "one of the keys is not a string"},
      {"rank7.bin", "tensor 'a' has 7 dimensions; at most 6"},
      {"compressed.bin", "data.pkl' is compressed (method 8)"},
      {"big_endian.bin", "big-endian machine"},
      {"no_storage.bin", "there is no storage '1' (the entry types_2/data/1)"},
      {"short_storage.bin",
       "the storage '1' has 4 bytes, but its pickle says 24 elements of torch.float32"},
  };
  for (const auto& c : cases) {
    const std::string error = torch_error(c.name);
    EXPECT_TRUE(contains(error, c.reason) && contains(error, c.name)) << c.name << "\n" << error;
  }
  EXPECT_FALSE(std::filesystem::exists("executed"));
}

TEST(TorchFile, AnExpandedTensorIsListedButHasNoBytes) {
  const TorchFile file(torch_vector("small/expanded.bin"));
  EXPECT_EQ(file.find("a")->shape, (Shape{4, 3}));
  const std::string error = error_of([&] { file.bytes(*file.find("a")); });
  EXPECT_TRUE(contains(error, "'a' of shape [4, 3] repeats the 3 elements")) << error;
  EXPECT_EQ(file.bytes(*file.find("b")).size(), 12u);
}

// Error of a good file with `from` replaced by `to`, which has the same length.
std::string changed_error(const std::string& name, const std::string& from, const std::string& to) {
  std::string text = read_file(torch_vector("small/" + name));
  EXPECT_EQ(from.size(), to.size());
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << name << ": " << from;
  MemoryFile file;
  file.set(text.replace(at, from.size(), to));
  return error_of([&] { TorchFile opened(file.path()); });
}

TEST(TorchFile, ChecksTensorsAgainstTheirStorages) {
  using namespace std::string_literals;
  // one.bin: ('storage', torch.FloatStorage, '0', 'cpu', 3), 0, (3,), (1,), ...
  const std::string sizes = "K\x00K\x03\x85q\x08K\x01\x85"s;
  const auto layout = [](int offset, int size, int stride) {
    std::string text = "K?K?\x85q\x08K?\x85";
    for (const auto& [at, value] : {std::pair{1, offset}, {3, size}, {8, stride}})
      text[static_cast<size_t>(at)] = static_cast<char>(value);
    return text;
  };
  for (const char* name : {"one.bin", "one_legacy.bin"}) {
    const auto error = [&](int offset, int size, int stride) {
      return changed_error(name, sizes, layout(offset, size, stride));
    };
    EXPECT_EQ(error(0, 3, 1), "");
    EXPECT_EQ(error(1, 2, 1), "");
    EXPECT_EQ(error(0, 2, 2), "");
    EXPECT_EQ(error(3, 0, 1), "");
    EXPECT_EQ(error(2, 1, 99), "");
    for (const std::string& outside :
         {error(0, 4, 1), error(1, 3, 1), error(0, 3, 2), error(3, 1, 1), error(4, 0, 1)}) {
      EXPECT_TRUE(contains(outside, "does not fit in its storage of 3 elements")) << outside;
    }
    EXPECT_TRUE(contains(changed_error(name, "FloatStorage", "torchStorage"), "torchStorage"));
    EXPECT_TRUE(
        contains(changed_error(name, "q\x06K\x03"s, "q\x06K\x02"s), "but its pickle says 2"));
    EXPECT_TRUE(contains(changed_error(name, "storage", "ssorage"), "not a storage"));
    EXPECT_TRUE(contains(changed_error(name, "_v2", "_v3"), "is not a tensor"));
  }
  const std::string little = "little_endian";
  EXPECT_TRUE(contains(changed_error("one_legacy.bin", little + "q\x02\x88", little + "q\x02\x89"),
                       "big-endian"));
  EXPECT_TRUE(
      contains(changed_error("one_legacy.bin", "\x6c\xfc\x9c", "\x6c\xfc\x9d"), "no magic number"));
  EXPECT_TRUE(contains(changed_error("one_legacy.bin", "M\xe9\x03", "M\xea\x03"), "1001"));
  EXPECT_TRUE(contains(changed_error("one.bin", "little", "middle"), "byteorder is neither"));
  EXPECT_TRUE(contains(changed_error("one.bin", "one/data/0", "one/data/1"), "a different name"));
}

TEST(TorchFile, RefusesOtherFormats) {
  MemoryFile file;
  const auto error = [&](const std::string& text) {
    file.set(text);
    return error_of([&] { TorchFile opened(file.path()); });
  };
  EXPECT_TRUE(contains(error(""), "not a torch.save file"));
  EXPECT_TRUE(
      contains(error("version https://git-lfs.github.com/spec/v1\n"), "is a Git LFS pointer"));
  EXPECT_TRUE(contains(error("\x80\x02}."), "no magic number"));
  EXPECT_TRUE(contains(error("PK\x03\x04"), "it may have been copied or downloaded in part"));
  const std::string empty_zip = "PK\x05\x06" + std::string(18, '\0');
  EXPECT_TRUE(contains(error("PK\x03\x04" + empty_zip), "no NAME/data.pkl"));
}

// Opens a damaged file and, if it is accepted, reads all of it.
bool opens_torch(MemoryFile& memory, const std::string& text) {
  memory.set(text);
  try {
    const TorchFile file(memory.path());
    size_t sum = 0;
    for (const TensorInfo& info : file.tensors()) {
      const std::span<const std::byte> bytes = file.bytes(info);
      EXPECT_EQ(bytes.size(), static_cast<size_t>(info.shape.elements() * size_of(info.dtype)));
      for (const std::byte b : bytes) sum += static_cast<size_t>(b);
    }
    return sum != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

TEST(TorchFile, DamagedFilesAreErrorsNeverCrashes) {
  MemoryFile memory;
  std::mt19937_64 random(1);
  for (const char* name : {"one.bin", "one_legacy.bin", "zip64.bin", "types_legacy_4.bin"}) {
    SCOPED_TRACE(name);
    const std::string good = read_file(torch_vector(std::string("small/") + name));
    ASSERT_TRUE(opens_torch(memory, good));
    for (size_t size = 0; size < good.size(); size += 1 + good.size() / 400)
      EXPECT_FALSE(opens_torch(memory, good.substr(0, size))) << size;
    EXPECT_FALSE(opens_torch(memory, good + '\0'));
    int taken = 0;
    constexpr int kChanges = 1500;
    for (int i = 0; i < kChanges; ++i) {
      std::string text = good;
      for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
        char& byte = text[random() % text.size()];
        byte = random() % 2 == 0 ? static_cast<char>(byte ^ (1 << random() % 8))
                                 : static_cast<char>(random());
      }
      taken += opens_torch(memory, text);
    }
    EXPECT_GT(taken, 0);
    EXPECT_LT(taken, kChanges);
  }
}

}  // namespace
}  // namespace megatron::checkpoint
