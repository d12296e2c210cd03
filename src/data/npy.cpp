#include "data/npy.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace megatron::data {
namespace {

constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
constexpr struct {
  IntegerType type;
  std::string_view text;
  int64_t bytes;
} kTypes[] = {{IntegerType::i16, "<i2", 2},
              {IntegerType::i32, "<i4", 4},
              {IntegerType::u32, "<u4", 4},
              {IntegerType::i64, "<i8", 8}};

const auto& facts(IntegerType type) { return kTypes[static_cast<int>(type)]; }

// Text of one value of the header's dictionary, after "key: ".
std::string_view value_of(std::string_view header, std::string_view key, const std::string& path) {
  const size_t at = header.find(key);
  MG_CHECK(at != header.npos, "{}: its .npy header has no {}", path, key);
  std::string_view rest = header.substr(at + key.size());
  while (!rest.empty() && (rest.front() == ' ' || rest.front() == ':')) rest.remove_prefix(1);
  return rest;
}

std::vector<int64_t> parse_shape(std::string_view text, const std::string& path) {
  const size_t close = text.find(')');
  MG_CHECK(!text.empty() && text.front() == '(' && close != text.npos,
           "{}: its .npy header has no shape", path);
  std::vector<int64_t> shape;
  int64_t product = 1;
  const char* at = text.data() + 1;
  const char* const end = text.data() + close;
  while (at < end) {
    if (*at == ' ' || *at == ',') {
      ++at;
      continue;
    }
    int64_t extent = 0;
    const auto [next, error] = std::from_chars(at, end, extent);
    const bool good = error == std::errc() && extent >= 0 && extent < (int64_t{1} << 48);
    MG_CHECK(good && (extent == 0 || product < (int64_t{1} << 48) / extent),
             "{}: its .npy header has shape {}", path, text.substr(0, close + 1));
    product *= extent;
    shape.push_back(extent);
    at = next;
  }
  return shape;
}

}  // namespace

std::string_view name(IntegerType type) { return facts(type).text; }

IntegerArray::IntegerArray(IntegerType type, std::vector<int64_t> shape)
    : type_(type), shape_(std::move(shape)), item_(facts(type).bytes) {
  for (const int64_t extent : shape_) size_ *= extent;
  // Zero pages, which are first touched by the threads that fill them.
  const auto bytes = static_cast<size_t>(size_ * item_);
  memory_.reset(static_cast<std::byte*>(std::calloc(std::max<size_t>(bytes, 1), 1)));
  MG_CHECK(memory_ != nullptr,
           "an index of {} entries needs {} bytes of memory, which this machine does not have",
           size_, bytes);
  data_ = memory_.get();
}

void IntegerArray::Free::operator()(std::byte* memory) const { std::free(memory); }

NpyHeader read_npy_header(std::string_view file, const std::string& path) {
  MG_CHECK(file.size() >= 10 && file.substr(0, 8) == kMagic, "{} is not a .npy file of version 1.0",
           path);
  const size_t length =
      static_cast<unsigned char>(file[8]) + 256u * static_cast<unsigned char>(file[9]);
  MG_CHECK(length <= file.size() - 10, "{} is truncated inside its header", path);
  const std::string_view header = file.substr(10, length);
  const std::string_view descr = value_of(header, "'descr'", path);
  MG_CHECK(value_of(header, "'fortran_order'", path).starts_with("False"),
           "{} is in Fortran order; only C order is supported", path);
  return {.type = descr.size() < 5 ? std::string_view() : descr.substr(1, 3),
          .shape = parse_shape(value_of(header, "'shape'", path), path),
          .data = 10 + length};
}

IntegerArray IntegerArray::map(const std::string& path) {
  MappedFile file(path);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  NpyHeader header = read_npy_header(text, path);
  for (const auto& known : kTypes) {
    if (header.type != known.text) continue;
    IntegerArray array(known.type, {0});
    array.shape_ = std::move(header.shape);
    array.size_ = 1;
    for (const int64_t extent : array.shape_) array.size_ *= extent;
    const auto wanted = static_cast<size_t>(array.size_ * known.bytes);
    MG_CHECK(text.size() - header.data == wanted, "{} has {} bytes of data; its header says {}",
             path, text.size() - header.data, wanted);
    array.data_ = bytes.data() + header.data;
    array.file_.emplace(std::move(file));
    return array;
  }
  fail("{}: its elements are {}; expected <i2, <i4, <u4 or <i8", path, header.type);
}

int64_t IntegerArray::operator[](int64_t i) const {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, data_ + i * static_cast<int64_t>(sizeof value), sizeof value);
    return static_cast<int64_t>(value);
  };
  switch (type_) {
    case IntegerType::i16: return load(int16_t{});
    case IntegerType::i32: return load(int32_t{});
    case IntegerType::u32: return load(uint32_t{});
    default: return load(int64_t{});
  }
}

void IntegerArray::write(AtomicFile& file) const {
  std::string shape;
  for (const int64_t extent : shape_)
    shape += fmt::format("{}{}", shape.empty() ? "" : ", ", extent);
  if (shape_.size() == 1) shape += ',';
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                   facts(type_).text, shape);
  while ((10 + header.size() + 1) % 64 != 0) header.push_back(' ');
  header.push_back('\n');
  file.write(kMagic);
  const auto length = static_cast<uint16_t>(header.size());
  file.write(std::string_view(reinterpret_cast<const char*>(&length), sizeof length));
  file.write(header);
  file.write(bytes());
}

}  // namespace megatron::data
