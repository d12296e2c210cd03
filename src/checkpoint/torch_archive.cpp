#include "checkpoint/torch_archive.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/zip_file.h"

namespace megatron::checkpoint {
namespace {

using Kind = PickleValue::Kind;
using Storages = std::map<std::string_view, TorchStorage>;

constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

constexpr TorchType kTorchTypes[] = {
    {DType::f64, "torch.float64", "torch.DoubleStorage"},
    {DType::f32, "torch.float32", "torch.FloatStorage"},
    {DType::bf16, "torch.bfloat16", "torch.BFloat16Storage"},
    {DType::f16, "torch.float16", "torch.HalfStorage"},
    {DType::i64, "torch.int64", "torch.LongStorage"},
    {DType::i32, "torch.int32", "torch.IntStorage"},
    {DType::i16, "torch.int16", "torch.ShortStorage"},
    {DType::i8, "torch.int8", "torch.CharStorage"},
    {DType::u16, "torch.uint16", ""},
    {DType::u8, "torch.uint8", "torch.ByteStorage"},
    {DType::u8, "torch.bool", "torch.BoolStorage", 1},
    {DType::u8, "torch.uint32", "", 4},
    {DType::u8, "torch.uint64", "", 8},
    {DType::u8, "torch.complex32", "", 4},
    {DType::u8, "torch.complex64", "torch.ComplexFloatStorage", 8},
    {DType::u8, "torch.complex128", "torch.ComplexDoubleStorage", 16},
    {DType::u8, "torch.float8_e4m3fn", "", 1},
    {DType::u8, "torch.float8_e5m2", "", 1},
    {DType::u8, "torch.float8_e4m3fnuz", "", 1},
    {DType::u8, "torch.float8_e5m2fnuz", "", 1},
    {DType::u8, "torch.float8_e8m0fnu", "", 1},
    {DType::u8, "torch.float4_e2m1fn_x2", "", 1},
};

std::vector<std::string_view> known_names() {
  std::vector<std::string_view> names = {kRebuildTensor2, kRebuildTensor3, kRebuildParameter,
                                         kUntyped};
  for (const TorchType& type : kTorchTypes) {
    names.push_back(type.dtype);
    if (!type.storage.empty()) names.push_back(type.storage);
  }
  return names;
}

Pickle read_object(std::span<const std::byte> bytes, const std::string& path) {
  return {bytes, known_names(), "'" + path + "'"};
}

// Parses ("storage", type, key, device, elements); in the older form also a view of another
// storage, which must be none.
TorchStorage parse_id(const PickleValue& id, const std::string& path) {
  const auto& items = id.items;
  const bool whole_module = id.is(Kind::tuple) && !items.empty() && items[0]->is(Kind::text) &&
                            items[0]->text == "module";
  MG_CHECK(!whole_module,
           "'{}' contains a whole module with its code; save only its weights (state_dict())",
           path);
  const bool good = id.is(Kind::tuple) && (items.size() == 5 || items.size() == 6) &&
                    items[0]->is(Kind::text) && items[0]->text == "storage" &&
                    items[1]->is(Kind::global) && items[2]->is(Kind::text) &&
                    items[4]->is(Kind::integer) && items[4]->integer >= 0;
  MG_CHECK(good, "'{}' is damaged: its pickle refers to a value that is not a storage", path);
  MG_CHECK(items.size() == 5 || items[5]->is(Kind::none),
           "'{}': the storage '{}' is a view of another one, which is not supported; load the file "
           "with torch and save it again",
           path, items[2]->text);
  TorchStorage storage{.key = items[2]->text, .elements = items[4]->integer};
  if (items[1]->is_global(kUntyped)) return storage;
  const auto type = std::ranges::find(kTorchTypes, items[1]->text, &TorchType::storage);
  MG_CHECK(type != std::end(kTorchTypes),
           "'{}': the storage '{}' has the type '{}', which is not a storage type", path,
           storage.key, items[1]->text);
  storage.type = type;
  return storage;
}

Storages storages_of(const Pickle& object, const std::string& path) {
  Storages storages;
  for (const PickleValue* value : object.persistent()) {
    const TorchStorage storage = parse_id(*value->items[0], path);
    const TorchStorage& first = storages.emplace(storage.key, storage).first->second;
    MG_CHECK(first.type == storage.type && first.elements == storage.elements,
             "'{}' is damaged: the storage '{}' has two types or sizes", path, storage.key);
  }
  return storages;
}

// Number of bytes of a storage according to the pickle; none if it exceeds 64 bits.
std::optional<uint64_t> wanted_bytes(const TorchStorage& storage) {
  int64_t bytes = 0;
  const int64_t size = storage.type != nullptr ? storage.type->size() : 1;
  if (__builtin_mul_overflow(storage.elements, size, &bytes)) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Folder of the only data.pkl: NAME/.
std::string archive_folder(const ZipEntries& entries, const std::string& path) {
  std::string folder;
  for (const auto& [name, bytes] : entries) {
    constexpr std::string_view kObject = "/data.pkl";
    if (!name.ends_with(kObject) || name.find('/') != name.size() - kObject.size()) continue;
    MG_CHECK(folder.empty(), "'{}' contains two objects, '{}data.pkl' and '{}'", path, folder,
             name);
    folder = name.substr(0, name.size() - kObject.size() + 1);
  }
  MG_CHECK(!folder.empty(), "'{}' is not a torch.save file: the zip archive has no NAME/data.pkl",
           path);
  return folder;
}

[[noreturn]] void refuse_big_endian(const std::string& path) {
  fail(
      "'{}' was written by a big-endian machine; load it with torch on a little-endian one, and "
      "save it there",
      path);
}

TorchArchive open_zip(std::span<const std::byte> file, const std::string& path) {
  const ZipEntries entries = zip_entries(file, path);
  const std::string folder = archive_folder(entries, path);
  const auto order = entries.find(folder + "byteorder");
  if (order != entries.end() && text_of(order->second) == "big") refuse_big_endian(path);
  MG_CHECK(order == entries.end() || text_of(order->second) == "little",
           "'{}': the entry {}byteorder is neither 'little' nor 'big'", path, folder);
  Pickle object = read_object(entries.find(folder + "data.pkl")->second, path);
  Storages storages = storages_of(object, path);
  for (auto& [key, storage] : storages) {
    const auto data = entries.find(folder + "data/" + std::string(key));
    MG_CHECK(data != entries.end(),
             "'{}' is damaged: there is no storage '{}' (the entry {}data/{})", path, key, folder,
             key);
    storage.bytes = data->second;
    MG_CHECK(
        storage.bytes.size() == wanted_bytes(storage),
        "'{}' is damaged: the storage '{}' has {} bytes, but its pickle says {} elements of {}",
        path, key, storage.bytes.size(), storage.elements,
        storage.type != nullptr ? storage.type->dtype : "one byte");
  }
  return {std::move(object), std::move(storages)};
}

// The older form of the archive: a sequence of pickles and storages.
class Sequence {
 public:
  Sequence(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  TorchArchive open() {
    const Pickle magic = next();
    MG_CHECK(magic.root().is(Kind::large_integer) && magic.root().text == kMagic,
             "'{}' is not a torch.save file: it is not a zip archive and has no magic number of "
             "torch.save",
             path_);
    const Pickle protocol = next();
    MG_CHECK(
        protocol.root().is(Kind::integer) && protocol.root().integer == kProtocol,
        "'{}' has a different torch.save protocol than {}; load it with torch and save it again",
        path_, kProtocol);
    check_system(next().root());
    Pickle object = read_object(remaining(), path_);
    at_ += object.size();
    Storages storages = storages_of(object, path_);
    read_storages(storages);
    return {std::move(object), std::move(storages)};
  }

 private:
  static constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  static constexpr int64_t kProtocol = 1001;

  std::span<const std::byte> remaining() const { return file_.subspan(at_); }

  Pickle next() {
    Pickle pickle(remaining(), {}, "'" + path_ + "'");
    at_ += pickle.size();
    return pickle;
  }

  void check_system(const PickleValue& system) const {
    MG_CHECK(system.is(Kind::dict),
             "'{}' is damaged: the record of the system that wrote it is missing", path_);
    for (size_t i = 0; i < system.items.size(); i += 2) {
      const PickleValue &key = *system.items[i], &value = *system.items[i + 1];
      if (key.is(Kind::text) && key.text == "little_endian" && value.is(Kind::boolean) &&
          value.integer == 0)
        refuse_big_endian(path_);
    }
  }

  void read_storages(Storages& storages) {
    const Pickle keys = next();
    MG_CHECK(keys.root().is(Kind::list), "'{}' is damaged: the keys of its storages are not a list",
             path_);
    for (const PickleValue* key : keys.root().items) {
      const auto found = key->is(Kind::text) ? storages.find(key->text) : storages.end();
      MG_CHECK(
          found != storages.end() && found->second.bytes.data() == nullptr,
          "'{}' is damaged: its list of storages contains one that no tensor uses, or one twice",
          path_);
      read_storage(found->second);
    }
    for (const auto& [key, storage] : storages) {
      MG_CHECK(storage.bytes.data() != nullptr, "'{}' is damaged: there is no storage '{}'", path_,
               key);
    }
    MG_CHECK(remaining().empty(), "'{}' is damaged: the last {} bytes belong to no storage", path_,
             remaining().size());
  }

  void read_storage(TorchStorage& storage) {
    int64_t elements = 0;
    MG_CHECK(remaining().size() >= sizeof elements,
             "'{}' is damaged: it ends before the storage '{}'; it may have been copied or "
             "downloaded in part",
             path_, storage.key);
    std::memcpy(&elements, remaining().data(), sizeof elements);
    at_ += sizeof elements;
    MG_CHECK(elements == storage.elements,
             "'{}' is damaged: the storage '{}' has {} elements, but its pickle says {}", path_,
             storage.key, elements, storage.elements);
    const std::optional<uint64_t> bytes = wanted_bytes(storage);
    MG_CHECK(bytes && *bytes <= remaining().size(),
             "'{}' is damaged: the storage '{}' of {} elements begins at byte {} and does not end "
             "in the file of {}; it may have been copied or downloaded in part",
             path_, storage.key, elements, at_, file_.size());
    storage.bytes = remaining().first(*bytes);
    at_ += *bytes;
  }

  std::span<const std::byte> file_;
  const std::string& path_;
  size_t at_ = 0;
};

}  // namespace

TorchArchive TorchArchive::open(std::span<const std::byte> file, const std::string& path) {
  if (is_zip(file)) return open_zip(file, path);
  MG_CHECK(!file.empty() && file[0] == std::byte{0x80},
           "'{}' is not a torch.save file: it begins neither as a zip archive nor as a pickle",
           path);
  return Sequence(file, path).open();
}

const TorchStorage& TorchArchive::storage(const PickleValue& value, std::string_view where) const {
  MG_CHECK(value.is(Kind::persistent), "{} has no storage", where);
  return storages.find(value.items[0]->items[2]->text)->second;
}

const TorchType* torch_dtype(std::string_view name) {
  const auto type = std::ranges::find(kTorchTypes, name, &TorchType::dtype);
  return type == std::end(kTorchTypes) ? nullptr : type;
}

}  // namespace megatron::checkpoint
