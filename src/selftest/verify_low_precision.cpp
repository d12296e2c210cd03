#include "selftest/verify_low_precision.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "data/npy.h"
#include "kernels/quantize.h"
#include "kernels/table.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;
using kernels::BlockScale;

struct Named {
  LowFormat format;
  std::string_view name, in_blocks;  // in the names of files
};
constexpr Named kFormats[] = {{LowFormat::e4m3, "e4m3fn", "e4m3"},
                              {LowFormat::e5m2, "e5m2", "e5m2"},
                              {LowFormat::e2m1, "e2m1", "e2m1"}};

// Elements of a file: f32, or u8 as numbers.
struct Array {
  std::vector<float> values;
  Shape shape;
  bool bytes = false;
};

Array read_array(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const data::NpyHeader header = data::read_npy_header(text, path);
  Array array{.bytes = header.type == "|u1"};
  MG_CHECK(array.bytes || header.type == "<f4", "{}: its elements are {}; expected |u1 or <f4",
           path, header.type);
  MG_CHECK(header.shape.size() <= 2, "{} has {} dimensions; expected 1 or 2", path,
           header.shape.size());
  array.shape = header.shape.size() == 2 ? Shape{header.shape[0], header.shape[1]}
                                         : Shape{1, header.shape.empty() ? 1 : header.shape[0]};
  const auto n = static_cast<size_t>(array.shape.elements());
  const size_t wanted = n * (array.bytes ? 1 : sizeof(float));
  MG_CHECK(text.size() - header.data == wanted, "{} has {} bytes of data; its header says {}", path,
           text.size() - header.data, wanted);
  array.values.resize(n);
  const char* at = text.data() + header.data;
  if (!array.bytes) std::memcpy(array.values.data(), at, wanted);
  else
    std::ranges::transform(std::span(reinterpret_cast<const uint8_t*>(at), n), array.values.begin(),
                           [](uint8_t v) { return static_cast<float>(v); });
  return array;
}

// All NaN are equal.
bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// PyTorch's casts: e4m3 keeps the sign of NaN; e5m2 has infinity from halfway to the next number
// after the largest on.
uint8_t torch_code(LowFormat format, float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return 0x7f | sign;
  if (format == LowFormat::e5m2 && std::abs(x) >= 61440) return 0x7c | sign;
  return encode(format, x);
}

// PyTorch's cast: to the nearest power of two, halves up; beyond the largest one NaN.
uint8_t torch_e8m0_code(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x) & 0x7fffffff, exponent = bits >> 23;
  const bool up = exponent == 0 ? bits > 0x400000 : (bits & 0x400000) != 0;
  return static_cast<uint8_t>(std::min(exponent + (up && exponent < 255 ? 1 : 0), 255U));
}

class Comparison {
 public:
  Comparison(const std::string& directory, DeviceKind device, int threads, Report& report)
      : directory_(directory), runtime_({device}, threads), report_(report) {
    for (const auto& entry : fs::directory_iterator(directory))
      files_.insert(entry.path().filename().string());
  }

  void run() {
    for (const Named& format : kFormats) {
      compare_decoding(format);
      compare_encoding(format);
      compare_blocks(format, "floor", BlockScale::e8m0_floor);
      compare_blocks(format, "ceil", BlockScale::e8m0);
    }
    expect("decode_e8m0fnu", [] { return values_of(256, e8m0_value); });
    if (const auto x = input("e8m0_input", {"e8m0_torch_cast"}))
      expect("e8m0_torch_cast", [&] { return mapped(x->values, torch_e8m0_code); });
    compare_fp4();
    compare_facts();
    report_rest();
  }

 private:
  using Values = std::vector<float>;
  struct Quantised {
    Values values, codes, scales;
  };

  bool exists(const std::string& name) const { return files_.contains(name + ".npy"); }

  // The array, if one of the files that are made of it exists.
  std::optional<Array> input(const std::string& name, const std::vector<std::string>& results) {
    used_.insert(name + ".npy");
    const auto found = std::ranges::find_if(results, [&](auto& r) { return exists(r); });
    if (found == results.end() && !exists(name)) missing_.push_back(name);
    if (found == results.end()) return {};
    if (!exists(name)) {
      report_.fail(fmt::format("{}.npy is missing: {}.npy cannot be compared", name, *found));
      return {};
    }
    Array array = read_array(directory_ + "/" + name + ".npy");
    MG_CHECK(!array.bytes, "{}/{}.npy has bytes; expected <f4", directory_, name);
    return array;
  }

  // Compares a file, if there is one, with the results.
  template <class F>
  void expect(const std::string& name, F&& results) {
    used_.insert(name + ".npy");
    if (!exists(name)) return missing_.push_back(name);
    const Array expected = read_array(directory_ + "/" + name + ".npy");
    const Values own = results();
    std::string difference;
    if (own.size() != expected.values.size())
      difference = fmt::format("{} elements, expected {}", own.size(), expected.values.size());
    for (size_t i = 0; i < own.size() && difference.empty(); ++i)
      if (!same_bits(own[i], expected.values[i]))
        difference = fmt::format("element {} is {}, expected {}", i, own[i], expected.values[i]);
    report_.expect(expected.bytes ? "codes" : "values", name, difference);
  }

  template <class F>
  static Values values_of(int count, F&& f) {
    Values values;
    for (int code = 0; code < count; ++code) values.push_back(f(static_cast<uint8_t>(code)));
    return values;
  }
  template <class F>
  static Values mapped(const Values& from, F&& f) {
    Values to;
    for (const float x : from) to.push_back(f(x));
    return to;
  }

  Tensor tensor(const Shape& shape, DType type) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "vectors");
  }
  Tensor number(float value) {
    Tensor t = tensor({}, DType::f32);
    copy_from(t, std::span<const float>(&value, 1));
    return t;
  }
  static Values floats(const Tensor& t) {
    const std::vector<double> values = to_doubles(t);
    return {values.begin(), values.end()};
  }

  // By the device's kernel.
  Quantised quantise(const Array& x, LowFormat format, BlockScale rule, int64_t block,
                     float scale) {
    kernels::QuantizeArgs args{.format = format, .rule = rule};
    args.x = tensor(x.shape, DType::f32);
    copy_from(args.x, std::span<const float>(x.values));
    args.scale = number(scale);
    args.out = {.columns = block,
                .values = tensor(x.shape, DType::f32),
                .codes = tensor(x.shape, DType::u8),
                .scales = {}};
    if (rule != BlockScale::given)
      args.out.scales = tensor({x.shape[0], (x.shape[1] + block - 1) / block}, DType::u8);
    kernels::table(runtime_.stream()).quantize(args, runtime_.stream());
    runtime_.stream().synchronize();
    return {floats(args.out.values), floats(args.out.codes),
            args.out.scales.defined() ? floats(args.out.scales) : Values()};
  }

  void compare_decoding(const Named& format) {
    const int codes = format.format == LowFormat::e2m1 ? 16 : 256;
    expect(fmt::format("decode_{}", format.name), [&] {
      return values_of(codes, [&](uint8_t code) { return decode(format.format, code); });
    });
  }

  void compare_encoding(const Named& format) {
    const bool four_bits = format.format == LowFormat::e2m1;
    const std::string start = fmt::format("encode_{}_", format.name);
    std::vector<std::string> results = {start + "saturating"};
    if (!four_bits) results.push_back(start + "torch_cast");
    const auto x = input(four_bits ? "encode_e2m1_input" : "encode_input", results);
    if (!x) return;
    expect(results[0], [&] { return quantise(*x, format.format, BlockScale::given, 1, 1).codes; });
    if (four_bits) return;
    expect(results[1], [&] {
      return mapped(x->values, [&](float v) { return torch_code(format.format, v); });
    });
  }

  void compare_blocks(const Named& format, std::string_view name, BlockScale rule) {
    const std::string start = fmt::format("mx_{}_{}_", format.in_blocks, name);
    const auto x = input("block_input", {start + "codes", start + "scales", start + "dequant"});
    if (!x) return;
    const Quantised q = quantise(*x, format.format, rule, 32, 1);
    expect(start + "codes", [&] { return q.codes; });
    expect(start + "scales", [&] { return q.scales; });
    expect(start + "dequant", [&] { return q.values; });
  }

  void compare_fp4() {
    const auto x = input("nvfp4_input", {"nvfp4_codes", "nvfp4_dequant", "nvfp4_global_scale",
                                         "nvfp4_block_scales_e4m3"});
    if (!x) return;
    float largest = 0;
    for (const float value : x->values) largest = std::fmax(largest, std::abs(value));
    const float whole = largest / (448 * 6);
    constexpr int64_t kBlock = 16;
    const Quantised q = quantise(*x, LowFormat::e2m1, BlockScale::nvfp4_quotient, kBlock, whole);
    expect("nvfp4_global_scale", [&] { return Values{whole}; });
    expect("nvfp4_block_scales_e4m3", [&] { return q.scales; });
    expect("nvfp4_codes", [&] { return q.codes; });
    expect("nvfp4_dequant", [&] {
      Values values;
      const int64_t columns = x->shape[1], across = (columns + kBlock - 1) / kBlock;
      for (int64_t i = 0; i < std::ssize(q.codes); ++i) {
        const auto block = static_cast<size_t>(i / columns * across + i % columns / kBlock);
        values.push_back(
            decode(LowFormat::e2m1, static_cast<uint8_t>(q.codes[static_cast<size_t>(i)])) *
            (decode(LowFormat::e4m3, static_cast<uint8_t>(q.scales[block])) * whole));
      }
      return values;
    });
  }

  // Counts and codes of PyTorch's casts of encode_input.
  void compare_facts() {
    used_.insert("facts.json");
    if (!files_.contains("facts.json")) return missing_.push_back("facts.json");
    const Json facts = Json::read(directory_ + "/facts.json");
    const auto x = input("encode_input", {"encode_input"});
    if (!x) return;
    for (const Named& format : kFormats) {
      const Json* const own = facts.find(format.name);
      if (own == nullptr) continue;
      int64_t differ = 0;
      std::set<int64_t> beyond, nan;
      for (const float value : x->values) {
        const uint8_t code = torch_code(format.format, value);
        differ += code != encode(format.format, value) ? 1 : 0;
        if (std::isnan(value)) nan.insert(code);
        if (std::abs(value) > facts_of(format.format).largest) beyond.insert(code);
      }
      const auto list = [](const std::set<int64_t>& s) {
        return std::vector<int64_t>(s.begin(), s.end());
      };
      const std::string name = fmt::format("facts.json {}", format.name);
      const int64_t expected = (*own)["torch_cast_differs_from_saturating"].as_integer();
      report_.expect("facts", name + " torch_cast_differs_from_saturating",
                     differ == expected ? "" : fmt::format("{}, expected {}", differ, expected));
      for (const auto& [key, codes] : {std::pair{"torch_cast_over_range_code", list(beyond)},
                                       std::pair{"nan_codes_torch", list(nan)}})
        report_.expect("facts", fmt::format("{} {}", name, key),
                       first_difference(codes, integers_of((*own)[key])));
    }
  }

  void report_rest() {
    std::ranges::sort(missing_);
    missing_.erase(std::ranges::unique(missing_).begin(), missing_.end());
    for (const std::string& name : missing_)
      report_.note(fmt::format("{} is missing, and was not compared", name));
    for (const std::string& name : files_) {
      if (used_.contains(name)) continue;
      if (name.ends_with(".npy")) report_.fail(fmt::format("{} is unknown", name));
      else report_.note(fmt::format("{} is unknown, and was not compared", name));
    }
    if (report_.compared() == 0) report_.fail("nothing was compared");
  }

  const std::string& directory_;
  Runtime runtime_;
  Report& report_;
  std::set<std::string> files_, used_;
  std::vector<std::string> missing_;
};

}  // namespace

bool has_low_precision(const std::string& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    for (const std::string_view start : {"decode_", "encode_", "mx_", "nvfp4_"})
      if (name.starts_with(start) && name.ends_with(".npy")) return true;
  }
  return false;
}

std::vector<Report> verify_low_precision(const std::string& directory,
                                         const VerifyOptions& options) {
  std::vector<Report> reports;
  for (const DeviceKind device : options.devices) {
    Report report(fmt::format("{}: formats of 4 and 8 bits on {}", directory, name(device)));
    Comparison(directory, device, options.threads, report).run();
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace megatron::selftest
