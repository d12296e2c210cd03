#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/json.h"

namespace megatron::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaximumHeader = 100'000'000;  // the original library's limit
constexpr std::string_view kMetadata = "__metadata__";

struct TypeName {
  DType type;
  std::string_view name;
  int64_t foreign_bits = 0;  // bits per element if the type has no DType
  int64_t bits() const { return foreign_bits > 0 ? foreign_bits : 8 * size_of(type); }
};
constexpr TypeName kTypes[] = {{DType::f64, "F64"},           {DType::f32, "F32"},
                               {DType::bf16, "BF16"},         {DType::f16, "F16"},
                               {DType::i64, "I64"},           {DType::i32, "I32"},
                               {DType::i16, "I16"},           {DType::i8, "I8"},
                               {DType::u16, "U16"},           {DType::u8, "U8"},
                               {DType::u8, "BOOL", 8},        {DType::u8, "U32", 32},
                               {DType::u8, "U64", 64},        {DType::u8, "C64", 64},
                               {DType::u8, "F8_E4M3", 8},     {DType::u8, "F8_E5M2", 8},
                               {DType::u8, "F8_E8M0", 8},     {DType::u8, "F8_E4M3FNUZ", 8},
                               {DType::u8, "F8_E5M2FNUZ", 8}, {DType::u8, "F6_E2M3", 6},
                               {DType::u8, "F6_E3M2", 6},     {DType::u8, "F4", 4}};

std::string_view format_name(DType type) {
  for (const TypeName& t : kTypes) {
    if (t.type == type && t.foreign_bits == 0) return t.name;
  }
  MG_ASSERT(false);
}

// Parses the header's entry of one tensor. `where` names file and tensor in errors.
class EntryParser {
 public:
  EntryParser(const Json& entry, std::string where) : where_(std::move(where)) {
    MG_CHECK(entry.is_object(), "{}: the entry is not an object", where_);
    for (const auto& [key, value] : entry.as_object()) {
      if (key == "dtype") dtype_ = &value;
      else if (key == "shape") shape_ = &value;
      else if (key == "data_offsets") offsets_ = &value;
      else fail("{}: unknown key '{}'; an entry has dtype, shape and data_offsets", where_, key);
    }
  }

  TensorInfo parse(const std::string& name, int64_t data_bytes) const {
    const TypeName& type = this->type();
    TensorInfo info{name, type.type, shape()};
    if (type.foreign_bits > 0) info.foreign_type = type.name;
    const std::vector<int64_t> range = numbers(offsets_, "data_offsets");
    MG_CHECK(range.size() == 2, "{}: data_offsets has {} numbers; it must have 2", where_,
             range.size());
    info.begin = range[0];
    info.end = range[1];
    MG_CHECK(info.begin <= info.end && info.end <= data_bytes,
             "{}: data_offsets [{}, {}] are outside the file's {} bytes of data", where_,
             info.begin, info.end, data_bytes);
    const std::optional<int64_t> bytes = byte_count(info.shape, type.bits());
    MG_CHECK(bytes.has_value(),
             "{}: the shape {} of {} is too large (its bytes must fit in 64 bits) or ends within a "
             "byte",
             where_, info.shape.str(), type.name);
    MG_CHECK(*bytes == info.end - info.begin,
             "{}: data_offsets [{}, {}] span {} bytes, but the shape {} of {} needs {}", where_,
             info.begin, info.end, info.end - info.begin, info.shape.str(), type.name, *bytes);
    return info;
  }

 private:
  const TypeName& type() const {
    MG_CHECK(dtype_ != nullptr && dtype_->is_string(), "{}: dtype is missing or not a string",
             where_);
    for (const TypeName& t : kTypes) {
      if (t.name == dtype_->as_string()) return t;
    }
    fail("{}: the type '{}' does not exist in the safetensors format", where_, dtype_->as_string());
  }

  Shape shape() const {
    const std::vector<int64_t> sizes = numbers(shape_, "shape");
    MG_CHECK(sizes.size() <= static_cast<size_t>(kMaxRank),
             "{}: the shape has {} dimensions; at most {} are supported", where_, sizes.size(),
             kMaxRank);
    return Shape(sizes);
  }

  std::vector<int64_t> numbers(const Json* value, std::string_view key) const {
    MG_CHECK(value != nullptr && value->is_array(), "{}: {} is missing or not an array", where_,
             key);
    std::vector<int64_t> result;
    for (const Json& number : value->as_array()) {
      MG_CHECK(number.is_integer() && number.as_integer() >= 0,
               "{}: {} contains {}; only integers from 0 to 9223372036854775807 are allowed",
               where_, key, number.is_number() ? number.dump() : "something that is not a number");
      result.push_back(number.as_integer());
    }
    return result;
  }

  std::string where_;
  const Json *dtype_ = nullptr, *shape_ = nullptr, *offsets_ = nullptr;
};

// Checks the length of the header's text, and that a JSON object starts at once. Returns the offset
// of the data.
int64_t check_length(std::span<const std::byte> bytes, const std::string& path) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  MG_CHECK(size >= kLengthBytes, "'{}' is not a safetensors file: it has {} bytes, fewer than {}",
           path, size, kLengthBytes);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  MG_CHECK(length <= static_cast<uint64_t>(kMaximumHeader),
           "'{}' is not a safetensors file: its header claims {} bytes; at most {} are allowed",
           path, length, kMaximumHeader);
  MG_CHECK(
      length <= static_cast<uint64_t>(size - kLengthBytes),
      "'{}' is damaged: its header claims {} bytes, but {} bytes follow; it may have been copied "
      "or downloaded only in part",
      path, length, size - kLengthBytes);
  MG_CHECK(length > 0 && bytes[kLengthBytes] == std::byte{'{'},
           "'{}' is not a safetensors file: its header does not begin with '{{'", path);
  return kLengthBytes + static_cast<int64_t>(length);
}

std::vector<std::pair<std::string, std::string>> parse_metadata(const Json& value,
                                                                const std::string& path) {
  MG_CHECK(value.is_object(), "'{}': {} is not an object", path, kMetadata);
  std::vector<std::pair<std::string, std::string>> metadata;
  for (const auto& [key, text] : value.as_object()) {
    MG_CHECK(text.is_string(), "'{}': {} has a value for '{}' that is not a string", path,
             kMetadata, key);
    metadata.emplace_back(key, text.as_string());
  }
  return metadata;
}

// Checks that every byte of the data belongs to exactly one tensor.
void check_ranges(std::span<const TensorInfo> sorted, int64_t data_bytes, const std::string& path) {
  int64_t end = 0;
  for (const TensorInfo& info : sorted) {
    MG_CHECK(info.begin >= end,
             "'{}': tensor '{}' begins at byte {} of the data, inside the previous tensor, which "
             "ends at {}",
             path, info.name, info.begin, end);
    MG_CHECK(info.begin == end,
             "'{}': bytes [{}, {}) of the data before tensor '{}' belong to no "
             "tensor",
             path, end, info.begin, info.name);
    end = info.end;
  }
  MG_CHECK(end == data_bytes, "'{}': the last {} bytes of the data belong to no tensor", path,
           data_bytes - end);
}

template <class To, class From>
std::vector<To> converted(std::span<const std::byte> bytes) {
  std::vector<To> values(bytes.size() / sizeof(From));
  for (size_t i = 0; i < values.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    if constexpr (std::is_class_v<From>) values[i] = static_cast<To>(static_cast<float>(value));
    else values[i] = static_cast<To>(value);
  }
  return values;
}

template <class To>
std::vector<To> numbers(std::span<const std::byte> bytes, DType type) {
  switch (type) {
    case DType::f64: return converted<To, double>(bytes);
    case DType::f32: return converted<To, float>(bytes);
    case DType::bf16: return converted<To, bf16>(bytes);
    case DType::f16: return converted<To, f16>(bytes);
    case DType::i64: return converted<To, int64_t>(bytes);
    case DType::i32: return converted<To, int32_t>(bytes);
    case DType::i16: return converted<To, int16_t>(bytes);
    case DType::i8: return converted<To, int8_t>(bytes);
    case DType::u16: return converted<To, uint16_t>(bytes);
    case DType::u8: return converted<To, uint8_t>(bytes);
  }
  MG_ASSERT(false);
}

const TensorInfo& existing(const SafetensorsFile& file, std::string_view name) {
  const TensorInfo* const info = file.find(name);
  MG_CHECK(info != nullptr, "'{}' has no tensor '{}'", file.path(), name);
  MG_CHECK(info->foreign_type.empty(), "'{}': tensor '{}' has the type {}, which is not supported",
           file.path(), name, info->foreign_type);
  return *info;
}

}  // namespace

std::vector<double> SafetensorsFile::doubles_of(std::span<const std::byte> bytes, DType type) {
  return numbers<double>(bytes, type);
}

SafetensorsFile::SafetensorsFile(const std::string& path) : TensorFile(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  data_begin_ = check_length(bytes, path);
  const int64_t data_bytes = static_cast<int64_t>(bytes.size()) - data_begin_;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              static_cast<size_t>(data_begin_ - kLengthBytes));
  const Json header = Json::parse(text, "the header of '" + path + "'");
  for (const auto& [name, entry] : header.as_object()) {
    if (name == kMetadata) {
      metadata_ = parse_metadata(entry, path);
    } else {
      const EntryParser parser(entry, fmt::format("'{}': tensor '{}'", path, name));
      tensors_.push_back(parser.parse(name, data_bytes));
    }
  }
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_ranges(tensors_, data_bytes, path);
  index_names();
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& info) const {
  return file_.bytes().subspan(static_cast<size_t>(data_begin_ + info.begin),
                               static_cast<size_t>(info.end - info.begin));
}

std::span<const std::byte> SafetensorsFile::head() const {
  return file_.bytes().first(static_cast<size_t>(data_begin_));
}

std::vector<double> SafetensorsFile::doubles(std::string_view name) const {
  const TensorInfo& info = existing(*this, name);
  return numbers<double>(bytes(info), info.dtype);
}

std::vector<int64_t> SafetensorsFile::integers(std::string_view name) const {
  const TensorInfo& info = existing(*this, name);
  MG_CHECK(!is_floating(info.dtype), "'{}': tensor '{}' is {}, not an integer type", path(), name,
           format_name(info.dtype));
  return numbers<int64_t>(bytes(info), info.dtype);
}

namespace {

std::string json_text(const std::string& text) { return Json(text).dump(); }

}  // namespace

std::string safetensors_head(const std::string& path, std::span<TensorInfo> tensors,
                             std::span<const std::pair<std::string, std::string>> metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += json_text(std::string(kMetadata)) + ":{";
    for (size_t i = 0; i < metadata.size(); ++i) {
      text +=
          (i == 0 ? "" : ",") + json_text(metadata[i].first) + ":" + json_text(metadata[i].second);
    }
    text += "}";
  }
  int64_t end = 0;
  std::set<std::string_view> names = {kMetadata};
  for (TensorInfo& tensor : tensors) {
    MG_CHECK(names.insert(tensor.name).second,
             "cannot write '{}': two tensors are named '{}', or the name is reserved", path,
             tensor.name);
    const std::optional<int64_t> bytes = byte_count(tensor.shape, 8 * size_of(tensor.dtype));
    tensor.begin = end;
    MG_CHECK(bytes.has_value() && !__builtin_add_overflow(tensor.begin, *bytes, &end),
             "cannot write '{}': tensor '{}' of shape {} is too large", path, tensor.name,
             tensor.shape.str());
    tensor.end = end;
    std::string shape;
    for (int d = 0; d < tensor.shape.rank(); ++d) {
      shape += fmt::format("{}{}", d == 0 ? "" : ",", tensor.shape[d]);
    }
    text +=
        fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                    text.size() == 1 ? "" : ",", json_text(tensor.name),
                    tensor.foreign_type.empty() ? format_name(tensor.dtype) : tensor.foreign_type,
                    shape, tensor.begin, tensor.end);
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  MG_CHECK(static_cast<int64_t>(text.size()) <= kMaximumHeader,
           "cannot write '{}': its header of {} bytes exceeds the format's limit of {}; write "
           "fewer tensors per file (smaller shards)",
           path, text.size(), kMaximumHeader);
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       std::span<const std::pair<std::string, std::string>> metadata) {
  std::vector<TensorInfo> infos;
  for (const TensorToWrite& tensor : tensors)
    infos.push_back({.name = tensor.name,
                     .dtype = tensor.dtype,
                     .shape = tensor.shape,
                     .foreign_type = tensor.foreign_type});
  const std::string head = safetensors_head(path, infos, metadata);
  AtomicFile file(path);
  file.write(head);
  int64_t largest = 0;
  for (const TensorInfo& info : infos) largest = std::max(largest, info.end - info.begin);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(largest));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::span<std::byte> bytes(buffer.get(),
                                     static_cast<size_t>(infos[i].end - infos[i].begin));
    tensors[i].data(bytes);
    file.write(bytes);
  }
  file.commit();
}

}  // namespace megatron::checkpoint
