// A reader of Python's pickle format as plain values: nothing is imported, called or built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::checkpoint {

// A value of a pickle. Nested values may be shared, and a list or dict may even contain itself, so
// code that follows `items` must limit its depth.
struct PickleValue {
  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    large_integer,  // `text`: two's complement, little-endian, of more than 8 bytes
    real,           // value is not kept
    text,           // as in the file, not checked to be UTF-8
    bytes,          // stored in `text`
    tuple,          // its items
    list,           // its items
    dict,           // key, value, key, value, ... in order; also a collections.OrderedDict
    global,         // `text`: "module.name"
    call,           // two items: the callable (a global) and the tuple of its arguments
    persistent,     // one item: id of an object stored outside of the pickle
  };
  Kind kind = Kind::none;
  int64_t integer = 0;    // also for a boolean
  std::string_view text;  // points into the bytes that were read, or to a known name
  std::vector<const PickleValue*> items;

  bool is(Kind wanted) const { return kind == wanted; }
  bool is_global(std::string_view name) const { return kind == Kind::global && text == name; }
};

// One pickle of protocol 2 to 5, from the beginning of `bytes`, which must outlive this.
class Pickle {
 public:
  // Throws Error beginning with `where` for damage, for more than kMaxSteps instructions, and for
  // a callable that is not in `known`, naming it. Known callables are not called either: they
  // become values of the kind `call`. collections.OrderedDict is always known and becomes a dict;
  // attributes set on one (_metadata) are dropped.
  Pickle(std::span<const std::byte> bytes, std::span<const std::string_view> known,
         const std::string& where);
  Pickle(Pickle&&) = default;
  Pickle& operator=(Pickle&&) = delete;

  const PickleValue& root() const { return *root_; }
  const std::vector<const PickleValue*>& persistent() const { return persistent_; }  // all of them
  size_t size() const { return size_; }  // bytes of the pickle

  static constexpr size_t kMaxSteps = 5'000'000;  // enough for a hundred thousand tensors

 private:
  friend class PickleReader;

  std::deque<PickleValue> values_;  // values that point to each other
  std::vector<const PickleValue*> persistent_;
  const PickleValue* root_ = nullptr;
  size_t size_ = 0;
};

}  // namespace megatron::checkpoint
