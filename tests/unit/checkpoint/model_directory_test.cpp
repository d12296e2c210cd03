#include "checkpoint/model_directory.h"

#include <cstring>

#include "checkpoint/safetensors.h"
#include "raw_tensors.h"
#include "support.h"

namespace megatron::checkpoint {
namespace {

using parallel::CanonicalTensor;

void write_tensor_file(const std::string& path, const std::vector<std::string>& names) {
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : names) {
    tensors.push_back({name, DType::f32, Shape{1}, [](std::span<std::byte> out) {
                         std::fill(out.begin(), out.end(), std::byte{0});
                       }});
  }
  write_safetensors(path, tensors, {});
}

std::string open_error(const TemporaryDirectory& folder) {
  return error_of([&] { ModelDirectory directory(folder.path()); });
}

TEST(ModelDirectory, OpensOneFile) {
  const ModelDirectory directory(golden("gpt2"));
  EXPECT_EQ(directory.config()["model_type"].as_string(), "gpt2");
  ASSERT_NE(directory.find("transformer.h.0.attn.c_attn.weight"), nullptr);
  EXPECT_EQ(directory.find("transformer.h.0.attn.c_attn.weight")->shape, (Shape{48, 144}));
  EXPECT_EQ(directory.find("absent"), nullptr);
  EXPECT_EQ(directory.shard_map().find("transformer.wpe.weight")->second, "model.safetensors");
  EXPECT_EQ(directory.tensor_names().size(), directory.shard_map().size());
  EXPECT_EQ(directory.metadata().front().second, "pt");
}

TEST(ModelDirectory, OpensShards) {
  const ModelDirectory directory(golden("llama_sharded"));
  EXPECT_EQ(directory.shard_map().size(), 30u);
  EXPECT_EQ(directory.shard_map().find("lm_head.weight")->second,
            "model-00004-of-00004.safetensors");
  EXPECT_EQ(directory.tensor_names().front(), "model.embed_tokens.weight");
  EXPECT_EQ(directory.tensor_names().back(), "model.norm.weight");
  EXPECT_EQ(directory.bytes("model.norm.weight").size(), 48u * 4);
}

// Expects every tensor of `wanted` with the same bytes.
void expect_tensors(const ModelDirectory& directory, const ModelDirectory& wanted) {
  for (const std::string& name : wanted.tensor_names()) {
    ASSERT_NE(directory.find(name), nullptr) << name;
    EXPECT_EQ(directory.find(name)->dtype, wanted.find(name)->dtype) << name;
    EXPECT_EQ(directory.find(name)->shape, wanted.find(name)->shape) << name;
    EXPECT_TRUE(std::ranges::equal(directory.bytes(name), wanted.bytes(name))) << name;
  }
}

TEST(ModelDirectory, OpensAFileOfTorch) {
  const ModelDirectory wanted(golden("gpt2"));
  for (const char* name : {"gpt2_legacy", "gpt2_zip"}) {
    const ModelDirectory directory(torch_vector(name));
    EXPECT_TRUE(directory.is_torch() && !directory.has_index());
    EXPECT_FALSE(wanted.is_torch());
    expect_tensors(directory, wanted);
    EXPECT_EQ(directory.tensor_names().size(), wanted.tensor_names().size() + 7);
    EXPECT_EQ(directory.find("transformer.h.0.attn.bias")->dtype, DType::u8);
    EXPECT_EQ(directory.shard_map().find("lm_head.weight")->second, "pytorch_model.bin");
    EXPECT_EQ(directory.bytes("lm_head.weight").data(),
              directory.bytes("transformer.wte.weight").data());
    EXPECT_EQ(directory.metadata(), wanted.metadata());
  }
}

TEST(ModelDirectory, OpensShardsOfTorch) {
  const ModelDirectory directory(torch_vector("llama_sharded")), wanted(golden("llama_bf16"));
  EXPECT_TRUE(directory.is_torch() && directory.has_index());
  EXPECT_EQ(directory.tensors().names().size(), 3u);
  EXPECT_EQ(directory.tensor_names().size(), wanted.tensor_names().size());
  expect_tensors(directory, wanted);
}

TEST(ModelDirectory, SafetensorsGoBeforeFilesOfTorch) {
  const TemporaryDirectory folder;
  std::filesystem::copy(torch_vector("llama_sharded"), folder / "m");
  std::filesystem::copy(golden("llama") + "/model.safetensors", folder / "m");
  ::testing::internal::CaptureStderr();
  const ModelDirectory directory(folder / "m");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(log, "model.safetensors is read, pytorch_model.bin.index.json is ignored"))
      << log;
  EXPECT_FALSE(directory.is_torch());
  EXPECT_EQ(directory.find("model.norm.weight")->dtype, DType::f32);
}

TEST(ModelDirectory, NamesOfFilesOfTorchAsSafetensors) {
  EXPECT_EQ(safetensors_name("pytorch_model.bin"), kSingleFile);
  EXPECT_EQ(safetensors_name(kTorchIndex), kIndex);
  EXPECT_EQ(safetensors_name("pytorch_model-00001-of-00002.bin"),
            "model-00001-of-00002.safetensors");
  EXPECT_EQ(safetensors_name("other.bin"), "other.safetensors");
  EXPECT_EQ(safetensors_name("model-00001-of-00002.safetensors"),
            "model-00001-of-00002.safetensors");
  EXPECT_TRUE(is_torch_weights("pytorch_model-00001-of-00002.bin"));
  EXPECT_TRUE(is_torch_weights(kTorchIndex));
  EXPECT_FALSE(is_torch_weights("training_args.bin"));
}

TEST(ModelDirectory, ChecksIndicesOfTorch) {
  const TemporaryDirectory folder;
  write_file(folder / "config.json", "{}");
  for (const char* name : {"1.bin", "2.bin"})
    std::filesystem::copy(torch_vector("small/one.bin"), folder / name);
  const auto error = [&](std::string_view index) {
    write_file(folder / kTorchIndex, index);
    return open_error(folder);
  };
  EXPECT_EQ(error(R"({"weight_map":{"a":"1.bin"}})"), "");
  EXPECT_TRUE(contains(error(R"({"weight_map":{"a":"3.bin"}})"), "1 (3.bin)"));
  EXPECT_EQ(error(R"({"weight_map":{"a":"1.bin","b":"1.bin"}})"), "");
  const ModelDirectory directory(folder.path());
  EXPECT_TRUE(contains(directory.disagreement(), "1 (1.bin: b)"));
  EXPECT_EQ(*directory.trouble("b"),
            "the index says that it is in '1.bin', which does not contain it");
  EXPECT_TRUE(contains(error(R"({"weight_map":{"a":"../1.bin"}})"), "not a plain file name"));
  EXPECT_TRUE(contains(error(R"({"weight_map":{"a":"1.safetensors"}})"), "ending in .bin"));
  EXPECT_EQ(error(R"({"weight_map":{"a":"./1.bin"}})"), "");
  EXPECT_TRUE(contains(error(R"({"weight_map":{"a":"././1.bin"}})"), "not a plain file name"));
  write_file(folder / kTorchFile, "x");
  EXPECT_TRUE(contains(error(R"({"weight_map":{"a":"1.bin"}})"), "is not a torch.save file"));
}

TEST(ModelDirectory, TellsWhatIsNotThere) {
  const TemporaryDirectory folder;
  EXPECT_TRUE(contains(error_of([&] { ModelDirectory d(folder / "absent"); }), "does not exist"));
  write_file(folder / "file", "x");
  EXPECT_TRUE(contains(error_of([&] { ModelDirectory d(folder / "file"); }), "not a directory"));
  EXPECT_TRUE(contains(open_error(folder), "no config.json"));
  write_file(folder / "config.json", "[]");
  EXPECT_TRUE(contains(open_error(folder), "not a JSON object"));
  write_file(folder / "config.json", "{");
  EXPECT_TRUE(contains(open_error(folder), "config.json, line 1"));
  write_file(folder / "config.json", "{}");
  EXPECT_TRUE(contains(open_error(folder), "has no weights"));
  write_file(folder / "pytorch_model.bin", "x");
  EXPECT_TRUE(contains(open_error(folder), "pytorch_model.bin' is not a torch.save file"));
  write_file(folder / "model.safetensors", "x");
  EXPECT_TRUE(contains(open_error(folder), "model.safetensors' is not a safetensors file"));
  write_tensor_file(folder / "model.safetensors", {"a"});
  EXPECT_EQ(open_error(folder), "");
  write_file(folder / "trainer_state.json", "{}");
  write_file(folder / kIndex, "{}");
  EXPECT_TRUE(contains(open_error(folder), "has both"));
}

// As in transformers, a single file of all weights takes precedence over an index, even an invalid
// one.
TEST(ModelDirectory, ReadsASingleFileBesideAnIndex) {
  const TemporaryDirectory folder;
  write_file(folder / "config.json", "{}");
  write_tensor_file(folder / kSingleFile, {"a"});
  write_tensor_file(folder / "1.safetensors", {"a", "b"});
  for (const char* index : {R"({"weight_map":{"a":"model.safetensors"}})", "{}",
                            R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors"}})"}) {
    write_file(folder / kIndex, index);
    const ModelDirectory directory(folder.path());
    EXPECT_EQ(directory.tensor_names(), std::vector<std::string>{"a"});
    EXPECT_FALSE(directory.has_index());
    EXPECT_EQ(directory.disagreement(), "");
  }
}

TEST(ModelDirectory, RefusesBadIndices) {
  const struct {
    std::string index;
    std::string_view reason;
  } cases[] = {
      {"[]", "not a JSON object"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map":{}})", "weight_map is empty"},
      {R"({"weight_map":{"a":1}})", "is not a string"},
      {R"({"weight_map":{"a":"../x.safetensors"}})", "not a plain file name"},
      {R"({"weight_map":{"a":"/x.safetensors"}})", "not a plain file name"},
      {R"({"weight_map":{"a":".."}})", "not a plain file name"},
      {R"({"weight_map":{"a":""}})", "not a plain file name"},
      {R"({"weight_map":{"a":"x.bin"}})", "not a plain file name"},
      {R"({"weight_map":{"a":"x\u0000.safetensors"}})", "not a plain file name"},
      {R"({"weight_map":{"a":"3.safetensors","b":"4.safetensors"}})",
       "2 (3.safetensors, 4.safetensors)"},
  };
  const TemporaryDirectory folder;
  write_file(folder / "config.json", "{}");
  write_tensor_file(folder / "1.safetensors", {"a", "b"});
  write_tensor_file(folder / "2.safetensors", {"a"});
  for (const auto& c : cases) {
    write_file(folder / kIndex, c.index);
    EXPECT_TRUE(contains(open_error(folder), c.reason)) << c.index << "\n" << open_error(folder);
  }
}

// Weights in the files are read, and missing or extra ones are reported.
TEST(ModelDirectory, ReadsFilesThatAnIndexDoesNotDescribe) {
  const TemporaryDirectory folder;
  write_file(folder / "config.json", "{}");
  write_tensor_file(folder / "m-1-of-3.safetensors", {"a", "b"});
  write_tensor_file(folder / "m-2-of-3.safetensors", {"a", "c", "d"});
  write_tensor_file(folder / "m-1-of-2.safetensors", {"other"});
  const auto open = [&](const std::string& weights) {
    std::string text = weights;  // "a 1" is a in m-1-of-3
    write_file(folder / kIndex, R"({"weight_map":{)" + text + "}}");
    return std::make_unique<ModelDirectory>(folder.path());
  };
  const auto in = [](const std::string& tensor, int file) {
    return fmt::format(R"("{}":"m-{}-of-3.safetensors")", tensor, file);
  };
  const std::string whole = in("b", 1) + "," + in("c", 2) + "," + in("d", 2);
  // For `a`, which is in two files, the index decides.
  const auto second = open(whole + "," + in("a", 2));
  EXPECT_EQ(second->shard_map().at("a"), "m-2-of-3.safetensors");
  EXPECT_EQ(second->tensor_names(), (std::vector<std::string>{"b", "a", "c", "d"}));
  EXPECT_TRUE(contains(second->disagreement(), "1 (m-1-of-3.safetensors: a)"));
  EXPECT_EQ(second->trouble("a"), nullptr);
  // The index names neither file, so the tensor is ambiguous.
  EXPECT_EQ(
      *open(whole)->trouble("a"),
      "it is in 'm-1-of-3.safetensors' and in 'm-2-of-3.safetensors', and the index lists neither");
  // The index places a tensor in a wrong file, omits a file, and names one that does not exist.
  const auto wrong = open(in("a", 1) + "," + in("c", 1) + "," + in("e", 3));
  EXPECT_NE(wrong->find("b"), nullptr);
  EXPECT_NE(wrong->find("c"), nullptr);
  EXPECT_NE(wrong->find("d"), nullptr);
  EXPECT_EQ(wrong->find("other"), nullptr);
  EXPECT_EQ(*wrong->trouble("e"),
            "the index says that it is in 'm-3-of-3.safetensors', which does not exist");
  Model model;
  model.add("b", Shape{1}, DType::f32);
  const std::vector<std::string> ignored = {"a", "c", "d"};
  load(*wrong, model.parameters(), ignored);
  model.add("e", Shape{1}, DType::f32);
  EXPECT_TRUE(
      contains(error_of([&] { load(*wrong, model.parameters(), ignored); }),
               "does not have the tensor 'e', which the model needs: the index says that it "
               "is in 'm-3-of-3.safetensors', which does not exist"));
  // A checkpoint of this program is not read in this way.
  write_file(folder / kTrainerState, "{}");
  EXPECT_TRUE(contains(open_error(folder), "1 (m-3-of-3.safetensors)"));
}

TEST(ModelDirectory, NamesPointersOfGitLfs) {
  const TemporaryDirectory folder;
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
  const auto expect = [&](std::string_view file) {
    EXPECT_TRUE(contains(open_error(folder),
                         fmt::format("{}' is a Git LFS pointer, not the file itself; run git lfs "
                                     "pull",
                                     file)))
        << open_error(folder);
  };
  write_file(folder / "config.json", "{}");
  write_file(folder / kTorchFile, pointer);
  expect(kTorchFile);
  write_file(folder / kSingleFile, pointer);
  expect(kSingleFile);
  std::filesystem::remove(folder / kSingleFile);
  write_file(folder / kIndex, pointer);
  expect(kIndex);
  write_file(folder / "config.json", pointer);
  expect("config.json");
}

TEST(Load, RefusesTypesThatNoModelHas) {
  const TemporaryDirectory folder;
  write_file(folder / "config.json", "{}");
  const std::pair<const char*, size_t> types[] = {
      {"BOOL", 4},    {"U16", 8},     {"U32", 16},        {"U64", 32},       {"C64", 32},
      {"F8_E4M3", 4}, {"F8_E5M2", 4}, {"F8_E8M0", 4},     {"F6_E2M3", 3},    {"F6_E3M2", 3},
      {"F4", 2},      {"I8", 4},      {"F8_E4M3FNUZ", 4}, {"F8_E5M2FNUZ", 4}};
  for (const auto& [type, bytes] : types) {
    megatron::testing::write_raw(
        folder / kSingleFile,
        {{"a", "F32", "[1]", std::string(4, '\0')}, {"b", type, "[4]", std::string(bytes, '\1')}});
    const ModelDirectory directory(folder.path(), {.ignore_surplus = true});
    Model model;
    model.add("a", Shape{1}, DType::f32);
    const std::vector<HeldTensor> held = checkpoint::held(model.parameters());
    EXPECT_EQ(load(directory, held, whole_tensors(held)), std::vector<std::string>{"b"}) << type;
    EXPECT_EQ(directory.bytes("b").size(), bytes) << type;
    model.add("b", Shape{4}, DType::f32);
    const std::string error = error_of([&] { load(directory, model.parameters()); });
    const bool foreign = std::string_view(type) != "U16" && std::string_view(type) != "I8";
    EXPECT_TRUE(contains(
        error, foreign ? fmt::format("1 (b: {} in the file, f32 in the model)", type) : "1 (b: "))
        << error;
  }
  megatron::testing::write_raw(folder / kSingleFile, {{"b", "F4", "[3]", std::string(2, '\1')}});
  EXPECT_TRUE(contains(open_error(folder),
                       "the shape [3] of F4 is too large (its bytes must fit in 64 bits) or ends"));
}

TEST(Load, ConvertsBetweenAllTypes) {
  const std::vector<double> values = {0.0, -1.5, 1.0 / 3.0, 65504.0, 1e30, -1e-7};
  const DType types[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
  const auto rounded = [](double value, DType type) -> double {
    if (type == DType::f64) return value;
    const float single = static_cast<float>(value);
    if (type == DType::f32) return single;
    return type == DType::bf16 ? static_cast<float>(bf16(single)) : static_cast<float>(f16(single));
  };
  const TemporaryDirectory folder;
  for (const DType disk : types) {
    Model model;
    copy_from(model.add("a", Shape{2, 3}, DType::f64).parameter.value, values);
    Contents options;
    options.dtype = [&](const std::string&) { return disk; };
    const std::string path = folder / name(disk);
    save_model(path, Json(Json::Object{}), model.parameters(), options);
    const ModelDirectory directory(path);
    EXPECT_EQ(directory.find("a")->dtype, disk);
    for (const DType memory : types) {
      Model loaded;
      loaded.add("a", Shape{2, 3}, memory);
      load(directory, loaded.parameters());
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(loaded.values(0)[i], rounded(rounded(values[i], disk), memory))
            << name(disk) << " to " << name(memory);
      }
    }
  }
}

TEST(Load, KeepsTheBitsOfEqualTypes) {
  const TemporaryDirectory folder;
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                           DType::i16, DType::i8, DType::u16, DType::u8}) {
    Model model, loaded;
    Tensor& value = model.add("a", Shape{64}, type).parameter.value;
    uint8_t* const bytes = static_cast<uint8_t*>(value.raw());
    for (int64_t i = 0; i < value.bytes(); ++i)
      bytes[i] = static_cast<uint8_t>(255 - i * 7);  // NaNs too
    save_model(folder / name(type), Json(Json::Object{}), model.parameters(), {});
    Tensor& copy = loaded.add("a", Shape{64}, type).parameter.value;
    load(ModelDirectory(folder / name(type)), loaded.parameters());
    EXPECT_EQ(std::memcmp(copy.raw(), bytes, static_cast<size_t>(value.bytes())), 0) << name(type);
  }
}

// Writes a file with one tensor whose element i is i.
void write_counting(const std::string& folder, const std::string& name, Shape shape) {
  Model model;
  count_from(model.add(name, shape, DType::f32), 0);
  save_model(folder, Json(Json::Object{}), model.parameters(), {});
}

TEST(Load, TransposesAndSlices) {
  const TemporaryDirectory folder;
  constexpr int64_t kOut = 70, kIn = 45;  // above a tile of the copy, and not a multiple
  write_counting(folder / "t", "w", Shape{kIn, kOut});
  const ModelDirectory directory(folder / "t");
  const auto stored = [](int64_t out, int64_t in) { return static_cast<double>(in * kOut + out); };

  Model whole;
  whole.add("w", Shape{kOut, kIn}, DType::f64, true);
  load(directory, whole.parameters());
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < kIn; ++i) EXPECT_EQ(whole.values(0)[o * kIn + i], stored(o, i));
  }
  Contents options;
  options.dtype = [](const std::string&) { return DType::f32; };
  save_model(folder / "again", Json(Json::Object{}), whole.parameters(), options);
  EXPECT_EQ(read_file(folder / "again/model.safetensors"),
            read_file(folder / "t/model.safetensors"));
  Model columns, rows;
  columns.add(Shape{kOut, 5}, DType::f32, {{"w", Shape{kOut, kIn}, {{1, {{40, 0, 5}}}}, true}});
  load(directory, columns.parameters());
  rows.add(Shape{35, kIn}, DType::bf16,
           {{"w", Shape{kOut, kIn}, {{0, {{0, 33, 2}, {37, 0, 33}}}}, true}});
  load(directory, rows.parameters());
  const std::vector<double> c = columns.values(0), r = rows.values(0);
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(c[o * 5 + i], stored(o, 40 + i));
  }
  for (int64_t o = 0; o < 35; ++o) {
    for (int64_t i = 0; i < kIn; ++i) {
      const double exact = stored(o < 33 ? 37 + o : o - 33, i);
      EXPECT_EQ(r[o * kIn + i], static_cast<float>(bf16(static_cast<float>(exact))));
    }
  }
}

// A model with fused q, k, v of two heads and one group on `ranks` ranks; each rank has all of k
// and v.
std::unique_ptr<Model> fused(int64_t rank, int64_t ranks) {
  constexpr int64_t kWidth = 3, kQ = 4, kK = 2;
  const int64_t q = kQ / ranks;
  auto model = std::make_unique<Model>();
  model->add(Shape{q + 2 * kK, kWidth}, DType::f32,
             {{"q", Shape{kQ, kWidth}, {{0, {{rank * q, 0, q}}}}},
              {"k", Shape{kK, kWidth}, {{0, {{0, q, kK}}}}},
              {"v", Shape{kK, kWidth}, {{0, {{0, q + kK, kK}}}}}});
  model->add(Shape{kWidth, q}, DType::f32, {{"o", Shape{kWidth, kQ}, {{1, {{rank * q, 0, q}}}}}});
  return model;
}

TEST(Save, StackedTensorsGoApartAndComeBackOnOtherRanks) {
  const TemporaryDirectory folder;
  const auto whole = fused(0, 1);
  count_from(*whole->parameters()[0], 0);
  count_from(*whole->parameters()[1], 100);
  save_model(folder / "m", Json(Json::Object{}), whole->parameters(), {});
  const SafetensorsFile file(folder / "m/model.safetensors");
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.doubles("k"), (std::vector<double>{12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(file.doubles("v"), (std::vector<double>{18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(file.tensors().front().name, "k");  // sorted by name

  const auto second = fused(1, 2);
  load(ModelDirectory(folder / "m"), second->parameters());
  EXPECT_EQ(second->values(0), (std::vector<double>{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
                                                    19, 20, 21, 22, 23}));
  EXPECT_EQ(second->values(1), (std::vector<double>{102, 103, 106, 107, 110, 111}));
  const std::string error =
      error_of([&] { save_model(folder / "n", Json(Json::Object{}), second->parameters(), {}); });
  EXPECT_TRUE(contains(error, "'o': no rank holds elements [0, 2) of its 12") &&
              contains(error, "'q': no rank holds elements [0, 6) of its 12"))
      << error;
  EXPECT_EQ(folder.names(), (std::set<std::string>{"m"}));
}

TEST(Save, PutsATensorTogetherFromSeveralParameters) {
  const TemporaryDirectory folder;
  const auto part = [](int64_t global, int64_t local, int64_t size) {
    return std::vector<CanonicalTensor>{{"a", Shape{5, 2}, {{0, {{global, local, size}}}}, true}};
  };
  Model model;
  count_from(model.add(Shape{2, 2}, DType::f32, part(3, 0, 2)), 6);
  count_from(model.add(Shape{3, 2}, DType::f32, part(0, 0, 3)), 0);
  save_model(folder / "m", Json(Json::Object{}), model.parameters(), {});
  const SafetensorsFile file(folder / "m/model.safetensors");
  EXPECT_EQ(file.find("a")->shape, (Shape{2, 5}));
  EXPECT_EQ(file.doubles("a"), (std::vector<double>{0, 2, 4, 6, 8, 1, 3, 5, 7, 9}));

  model.add(Shape{1, 2}, DType::f32, part(1, 0, 1));
  EXPECT_TRUE(contains(
      error_of([&] { save_model(folder / "n", Json(Json::Object{}), model.parameters(), {}); }),
      "tensor 'a': one rank has elements [1, 2) of its 10 twice"));
}

TEST(Save, LeavesPaddingOutAndLoadsItAsZero) {
  const TemporaryDirectory folder;
  const std::vector<CanonicalTensor> parts = {{"a", Shape{3, 2}, {{0, {{0, 0, 3}}}}}};
  Model model, loaded;
  count_from(model.add(Shape{4, 2}, DType::f32, parts), 1);
  save_model(folder / "m", Json(Json::Object{}), model.parameters(), {});
  EXPECT_EQ(SafetensorsFile(folder / "m/model.safetensors").doubles("a").size(), 6u);
  count_from(loaded.add(Shape{4, 2}, DType::f32, parts), 50);
  load(ModelDirectory(folder / "m"), loaded.parameters());
  EXPECT_EQ(loaded.values(0), (std::vector<double>{1, 2, 3, 4, 5, 6, 0, 0}));
}

TEST(Load, ListsAllDifferencesAtOnce) {
  const TemporaryDirectory folder;
  Model there, wanted;
  there.add("same", Shape{2}, DType::f32);
  there.add("shape", Shape{2, 3}, DType::f32);
  there.add("type", Shape{2}, DType::i32);
  there.add("inv_freq", Shape{2}, DType::f32);
  for (int i = 0; i < 12; ++i) there.add(fmt::format("extra.{:02d}", i), Shape{1}, DType::f32);
  for (const parallel::ParameterSpec* placed : there.parameters()) {
    std::memset(placed->parameter.value.raw(), 0,
                static_cast<size_t>(placed->parameter.value.bytes()));
  }
  save_model(folder / "m", Json(Json::Object{}), there.parameters(), {});
  count_from(wanted.add("same", Shape{2}, DType::f32), 7);
  wanted.add("shape", Shape{2, 3}, DType::f32, true);
  wanted.add("type", Shape{2}, DType::f32);
  for (int i = 0; i < 11; ++i) wanted.add(fmt::format("lost.{:02d}", i), Shape{1}, DType::f32);
  const ModelDirectory directory(folder / "m");
  const std::string ignored[] = {"inv_freq"};
  const std::string error = error_of([&] { load(directory, wanted.parameters(), ignored); });
  EXPECT_TRUE(contains(error, "missing: 11 (lost.00, lost.01")) << error;
  EXPECT_TRUE(contains(error, "lost.09 and 1 more)")) << error;
  EXPECT_TRUE(contains(error, "not in the model: 12 (extra.00")) << error;
  EXPECT_TRUE(contains(error, "extra.09 and 2 more)")) << error;
  EXPECT_TRUE(
      contains(error, "with a different shape: 1 (shape: [2, 3] in the file, [3, 2] in the model)"))
      << error;
  EXPECT_TRUE(contains(error,
                       "cannot be converted (f64, f32, bf16 and f16 can): 1 (type: i32 in the "
                       "file, f32 in the model)"))
      << error;
  EXPECT_FALSE(contains(error, "inv_freq") || contains(error, "same")) << error;
  EXPECT_TRUE(contains(error_of([&] { load(directory, wanted.parameters()); }), "13 (extra.00"));
  EXPECT_EQ(wanted.values(0), (std::vector<double>{7, 8}))
      << "nothing is loaded when something differs";
}

}  // namespace
}  // namespace megatron::checkpoint
