#include "checkpoint/torch_file.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/torch_archive.h"

namespace megatron::checkpoint {
namespace {

using Kind = PickleValue::Kind;

// Layout of a tensor in its storage; sizes and strides in elements.
struct Layout {
  Shape shape;
  std::array<int64_t, kMaxRank> strides{};
  int64_t offset = 0;
};

// Numbers of a shape or of strides.
std::vector<int64_t> numbers(const PickleValue& value, std::string_view what,
                             const std::string& where) {
  MG_CHECK(value.is(Kind::tuple), "{}: its {} are not a tuple", where, what);
  MG_CHECK(value.items.size() <= static_cast<size_t>(kMaxRank),
           "{} has {} dimensions; at most {} are supported", where, value.items.size(), kMaxRank);
  std::vector<int64_t> result;
  for (const PickleValue* number : value.items) {
    MG_CHECK(number->is(Kind::integer) && number->integer >= 0,
             "{}: its {} are not all non-negative integers", where, what);
    result.push_back(number->integer);
  }
  return result;
}

// Layout from the arguments (storage, offset, sizes, strides, ...).
Layout layout_of(const std::vector<const PickleValue*>& arguments, const std::string& where) {
  Layout layout;
  MG_CHECK(arguments[1]->is(Kind::integer) && arguments[1]->integer >= 0,
           "{}: its offset is not a non-negative integer", where);
  layout.offset = arguments[1]->integer;
  const std::vector<int64_t> sizes = numbers(*arguments[2], "sizes", where),
                             strides = numbers(*arguments[3], "strides", where);
  MG_CHECK(sizes.size() == strides.size(), "{} has {} sizes and {} strides", where, sizes.size(),
           strides.size());
  layout.shape = Shape(sizes);
  std::ranges::copy(strides, layout.strides.begin());
  return layout;
}

bool is_contiguous(const Layout& layout) {
  int64_t inner = 1;
  for (int d = layout.shape.rank() - 1; d >= 0; --d) {
    if (layout.shape[d] != 1 && layout.strides[static_cast<size_t>(d)] != inner) return false;
    inner *= layout.shape[d];
  }
  return true;
}

// Checks that the first and the last element are inside the storage, and so all between them.
void check_inside(const Layout& layout, int64_t stored, const std::string& where) {
  int64_t last = layout.offset;
  bool empty = false, fits = true;
  for (int d = 0; d < layout.shape.rank(); ++d) {
    int64_t reach = 0;
    empty = empty || layout.shape[d] == 0;
    fits = fits &&
           !__builtin_mul_overflow(std::max<int64_t>(layout.shape[d], 1) - 1,
                                   layout.strides[static_cast<size_t>(d)], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  const int64_t end = empty ? layout.offset : last;
  MG_CHECK(fits && (empty ? end <= stored : end < stored),
           "{} of shape {}, which begins at element {}, does not fit in its storage of {} elements",
           where, layout.shape.str(), layout.offset, stored);
}

template <class T>
void copy_elements(const std::byte* from, const Shape& shape, std::span<const int64_t> strides,
                   int dim, std::byte*& out) {
  const int64_t step = strides[static_cast<size_t>(dim)] * static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < shape[dim]; ++i, from += step) {
    if (dim + 1 < shape.rank()) {
      copy_elements<T>(from, shape, strides, dim + 1, out);
    } else {
      std::memcpy(out, from, sizeof(T));
      out += sizeof(T);
    }
  }
}

void copy_elements(const std::byte* from, const TensorInfo& info, std::span<const int64_t> strides,
                   std::byte* out) {
  switch ((info.end - info.begin) / info.shape.elements()) {
    case 1: return copy_elements<uint8_t>(from, info.shape, strides, 0, out);
    case 2: return copy_elements<uint16_t>(from, info.shape, strides, 0, out);
    case 4: return copy_elements<uint32_t>(from, info.shape, strides, 0, out);
    case 8: return copy_elements<uint64_t>(from, info.shape, strides, 0, out);
    case 16: return copy_elements<std::array<uint64_t, 2>>(from, info.shape, strides, 0, out);
    default: MG_ASSERT(false);
  }
}

// True if a value is a call of `name` with `fewest` to `most` arguments.
bool calls(const PickleValue& value, std::string_view name, size_t fewest, size_t most) {
  if (!value.is(Kind::call) || !value.items[0]->is_global(name)) return false;
  const size_t count = value.items[1]->items.size();
  return count >= fewest && count <= most;
}

// Element type of a storage, for a tensor that may name it.
const TorchType& type_of(const TorchStorage& storage, const PickleValue* named,
                         const std::string& where) {
  const TorchType* type = storage.type;
  if (named != nullptr) {
    type = named->is(Kind::global) ? torch_dtype(named->text) : nullptr;
    MG_CHECK(type != nullptr, "{}: its type is not a dtype", where);
  }
  MG_CHECK(type != nullptr && (storage.type == nullptr || storage.type == type),
           "{} has no type, or a different one than its storage", where);
  return *type;
}

}  // namespace

TorchFile::TorchFile(const std::string& path) : TensorFile(path) {
  metadata_ = {{"format", "pt"}};  // transformers marks torch weights this way
  const TorchArchive archive = TorchArchive::open(file_.bytes(), path);
  const PickleValue& root = archive.object.root();
  MG_CHECK(root.is(Kind::dict),
           "'{}' does not contain a dict of named tensors; save the model's state_dict()", path);
  std::set<std::string_view> names;
  for (size_t i = 0; i < root.items.size(); i += 2) {
    const PickleValue& key = *root.items[i];
    MG_CHECK(key.is(Kind::text), "'{}': one of the keys is not a string", path);
    MG_CHECK(names.insert(key.text).second, "'{}' has two tensors named '{}'", path, key.text);
    add(archive, std::string(key.text), *root.items[i + 1]);
  }
  index_names();
}

void TorchFile::add(const TorchArchive& archive, const std::string& name,
                    const PickleValue& value) {
  const std::string where = fmt::format("'{}': tensor '{}'", path(), name);
  const PickleValue& tensor =
      calls(value, kRebuildParameter, 3, 3) ? *value.items[1]->items[0] : value;
  const bool has_dtype = calls(tensor, kRebuildTensor3, 7, 8);
  MG_CHECK(has_dtype || calls(tensor, kRebuildTensor2, 6, 7),
           "'{}': '{}' is not a tensor; save only the model's state_dict()", path(), name);
  const std::vector<const PickleValue*>& arguments = tensor.items[1]->items;
  const PickleValue& last = *arguments.back();
  MG_CHECK(arguments.size() < (has_dtype ? 8u : 7u) || last.is(Kind::none) ||
               (last.is(Kind::dict) && last.items.empty()),
           "{} is a conjugate or negative view of another tensor; save its values (.resolve_conj() "
           "or .resolve_neg())",
           where);
  const TorchStorage& storage = archive.storage(*arguments[0], where);
  const Layout layout = layout_of(arguments, where);
  const TorchType& type = type_of(storage, has_dtype ? arguments[6] : nullptr, where);
  TensorInfo info{name, type.type, layout.shape};
  if (type.foreign_bytes > 0) info.foreign_type = type.dtype;
  const int64_t size = type.size();
  const std::optional<int64_t> bytes = byte_count(info.shape, 8 * size);
  MG_CHECK(bytes.has_value(), "{}: the shape {} is too large: its bytes do not fit in 64 bits",
           where, info.shape.str());
  const int64_t stored = static_cast<int64_t>(storage.bytes.size()) / size;
  check_inside(layout, stored, where);
  const std::byte* const first = storage.bytes.data() + layout.offset * size;
  if (*bytes > 0 && is_contiguous(layout)) info.begin = first - file_.bytes().data();
  else if (*bytes > 0) strided_[name] = {first, layout.strides, stored, nullptr};
  info.end = info.begin + *bytes;
  tensors_.push_back(std::move(info));
}

std::span<const std::byte> TorchFile::bytes(const TensorInfo& info) const {
  const size_t count = static_cast<size_t>(info.end - info.begin);
  const std::lock_guard lock(mutex_);
  const auto found = strided_.find(info.name);
  if (found == strided_.end()) return file_.bytes().subspan(static_cast<size_t>(info.begin), count);
  Strided& strided = found->second;
  if (strided.elements == nullptr) {
    MG_CHECK(info.shape.elements() <= strided.stored,
             "'{}': tensor '{}' of shape {} repeats the {} elements of its storage; save its "
             "values (.contiguous())",
             path(), info.name, info.shape.str(), strided.stored);
    strided.elements = std::make_unique_for_overwrite<std::byte[]>(count);
    copy_elements(strided.first, info, strided.strides, strided.elements.get());
  }
  return {strided.elements.get(), count};
}

}  // namespace megatron::checkpoint
