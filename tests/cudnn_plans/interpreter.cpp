// cuDNN's graph interface on host memory. A graph's operations are computed one by one as their
// attributes say, in f32, and rounded if a tensor has another type.
#include <cudnn.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "played.h"

struct Attribute {
  int64_t count = 0;
  std::vector<std::byte> bytes;
};
struct Described {
  cudnnBackendDescriptorType_t type;
  std::map<int, Attribute> attributes;

  template <class T>
  T one(int name) const {
    T value;
    std::memcpy(&value, attributes.at(name).bytes.data(), sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> all(int name) const {
    const Attribute& attribute = attributes.at(name);
    std::vector<T> values(static_cast<size_t>(attribute.count));
    std::memcpy(values.data(), attribute.bytes.data(), values.size() * sizeof(T));
    return values;
  }
  const Described& at(int name) const { return *one<const Described*>(name); }
  bool has(int name) const { return attributes.contains(name); }
};

namespace {

using megatron::bf16;
using megatron::f16;
using Index = std::array<int64_t, 4>;

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void*);
    default: return sizeof(int);  // enums
  }
}

float rounded(float value, cudnnDataType_t type) {
  if (type == CUDNN_DATA_BFLOAT16) return static_cast<float>(bf16(value));
  if (type == CUDNN_DATA_HALF) return static_cast<float>(f16(value));
  return value;
}

// A tensor's values in row-major order, and their layout in memory.
struct Values {
  Index sizes{}, strides{};
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<float> at;

  explicit Values(const Described& tensor)
      : type(tensor.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)) {
    const auto dims = tensor.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const auto steps = tensor.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    std::copy(dims.begin(), dims.end(), sizes.begin());
    std::copy(steps.begin(), steps.end(), strides.begin());
    at.assign(static_cast<size_t>(sizes[0] * sizes[1] * sizes[2] * sizes[3]), 0);
  }

  template <class F>
  void for_each(const F& f) const {
    Index i{};
    for (i[0] = 0; i[0] < sizes[0]; ++i[0])
      for (i[1] = 0; i[1] < sizes[1]; ++i[1])
        for (i[2] = 0; i[2] < sizes[2]; ++i[2])
          for (i[3] = 0; i[3] < sizes[3]; ++i[3]) f(i);
  }
  size_t place(const Index& i) const {
    return static_cast<size_t>(((i[0] * sizes[1] + i[1]) * sizes[2] + i[2]) * sizes[3] + i[3]);
  }
  int64_t offset(const Index& i) const {
    return i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] + i[3] * strides[3];
  }
  // The index here that corresponds to an index of a tensor of other sizes: broadcast, or one per
  // group.
  Index belonging(const Index& i, const Index& of) const {
    Index mine{};
    for (size_t dim = 0; dim < 4; ++dim) mine[dim] = i[dim] * sizes[dim] / of[dim];
    return mine;
  }
  float get(const Index& i, const Index& of) const { return at[place(belonging(i, of))]; }
};

class Run {
 public:
  Run(const Described& graph, const Described& pack) {
    const auto ids = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto pointers = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (size_t i = 0; i < ids.size(); ++i) memory_[ids[i]] = pointers[i];
    for (const Described* operation : graph.all<const Described*>(CUDNN_ATTR_OPERATIONGRAPH_OPS))
      compute(*operation);
  }

 private:
  static int64_t id(const Described& tensor) {
    return tensor.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  }

  const Values& read(const Described& tensor) {
    const auto known = values_.find(id(tensor));
    if (known != values_.end()) return known->second;
    Values values(tensor);
    const auto* const p = static_cast<const std::byte*>(memory_.at(id(tensor)));
    values.for_each([&](const Index& i) {
      const int64_t at = values.offset(i);
      float& value = values.at[values.place(i)];
      if (values.type == CUDNN_DATA_BFLOAT16) {
        value = static_cast<float>(reinterpret_cast<const bf16*>(p)[at]);
      } else if (values.type == CUDNN_DATA_HALF) {
        value = static_cast<float>(reinterpret_cast<const f16*>(p)[at]);
      } else {
        value = reinterpret_cast<const float*>(p)[at];
      }
    });
    return values_.emplace(id(tensor), std::move(values)).first->second;
  }

  void write(const Described& tensor, Values values) {
    for (float& value : values.at) value = rounded(value, values.type);
    const bool is_inner = tensor.has(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    if (!is_inner) {
      auto* const p = static_cast<std::byte*>(memory_.at(id(tensor)));
      values.for_each([&](const Index& i) {
        const int64_t at = values.offset(i);
        const float value = values.at[values.place(i)];
        if (values.type == CUDNN_DATA_BFLOAT16) {
          reinterpret_cast<bf16*>(p)[at] = bf16(value);
        } else if (values.type == CUDNN_DATA_HALF) {
          reinterpret_cast<f16*>(p)[at] = f16(value);
        } else {
          reinterpret_cast<float*>(p)[at] = value;
        }
      });
    }
    values_.insert_or_assign(id(tensor), std::move(values));
  }

  void compute(const Described& operation) {
    switch (operation.type) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return pointwise(operation);
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return matmul(operation);
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return reduce(operation);
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return reshape(operation);
      default: megatron::fail("no operation {}", static_cast<int>(operation.type));
    }
  }

  static float result(cudnnPointwiseMode_t mode, float x, float y, float t, int64_t index) {
    switch (mode) {
      case CUDNN_POINTWISE_MUL: return x * y;
      case CUDNN_POINTWISE_ADD: return x + y;
      case CUDNN_POINTWISE_SUB: return x - y;
      case CUDNN_POINTWISE_DIV: return x / y;
      case CUDNN_POINTWISE_IDENTITY: return x;
      case CUDNN_POINTWISE_EXP: return std::exp(x);
      case CUDNN_POINTWISE_LOG: return std::log(x);
      case CUDNN_POINTWISE_CMP_GE: return x >= y ? 1.0f : 0.0f;
      case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : y;
      case CUDNN_POINTWISE_GEN_INDEX: return static_cast<float>(index);
      default: megatron::fail("no pointwise mode {}", static_cast<int>(mode));
    }
  }

  void pointwise(const Described& operation) {
    const Described& kind = operation.at(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = kind.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const Described& out = operation.at(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const auto operand = [&](int name) -> const Values* {
      return operation.has(name) ? &read(operation.at(name)) : nullptr;
    };
    const Values* const x = operand(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const Values* const y = operand(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const Values* const t = operand(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const int64_t axis =
        kind.has(CUDNN_ATTR_POINTWISE_AXIS) ? kind.one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS) : 0;
    Values values(out);
    values.for_each([&](const Index& i) {
      const auto of = [&](const Values* v) { return v == nullptr ? 0 : v->get(i, values.sizes); };
      values.at[values.place(i)] = result(mode, of(x), of(y), of(t), i[static_cast<size_t>(axis)]);
    });
    write(out, std::move(values));
  }

  void matmul(const Described& operation) {
    const Values& a = read(operation.at(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
    const Values& b = read(operation.at(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    const Described& out = operation.at(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    Values values(out);
    MG_CHECK(
        a.sizes[3] == b.sizes[2] && values.sizes[2] == a.sizes[2] && values.sizes[3] == b.sizes[3],
        "a matmul of other sizes");
    values.for_each([&](const Index& i) {
      const int64_t head_a = i[1] * a.sizes[1] / values.sizes[1];
      const int64_t head_b = i[1] * b.sizes[1] / values.sizes[1];
      float sum = 0;
      for (int64_t k = 0; k < a.sizes[3]; ++k)
        sum += a.at[a.place({i[0], head_a, i[2], k})] * b.at[b.place({i[0], head_b, k, i[3]})];
      values.at[values.place(i)] = sum;
    });
    write(out, std::move(values));
  }

  void reduce(const Described& operation) {
    const Values& x = read(operation.at(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
    const bool is_max =
        operation.at(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
            .one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const Described& out = operation.at(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    Values values(out);
    if (is_max) values.at.assign(values.at.size(), -std::numeric_limits<float>::infinity());
    x.for_each([&](const Index& i) {
      float& to = values.at[values.place(values.belonging(i, x.sizes))];
      const float value = x.at[x.place(i)];
      to = is_max ? std::max(to, value) : to + value;
    });
    write(out, std::move(values));
  }

  // The same memory with other sizes.
  void reshape(const Described& operation) {
    const Values& x = read(operation.at(CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
    const Described& out = operation.at(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    std::map<int64_t, float> at;
    x.for_each([&](const Index& i) { at[x.offset(i)] = x.at[x.place(i)]; });
    Values values(out);
    values.for_each([&](const Index& i) { values.at[values.place(i)] = at.at(values.offset(i)); });
    write(out, std::move(values));
  }

  std::map<int64_t, void*> memory_;
  std::map<int64_t, Values> values_;
};

Described& of(cudnnBackendDescriptor_t handle) { return *static_cast<Described*>(handle); }

// An engine, a configuration or a plan is identified by its place among the proposed ones.
void set_engine(Described& described, size_t place) {
  const auto* const from = reinterpret_cast<const std::byte*>(&place);
  described.attributes[CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = {1, {from, from + sizeof place}};
}
size_t engine_of(const Described& described) {
  return described.one<size_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
}

int64_t workspace_of(const Described& graph) {
  int64_t products = 0, largest = 0;
  bool adds = false;
  for (const Described* operation : graph.all<const Described*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    if (operation->type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) continue;
    const Described& out = operation->at(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    ++products;
    adds |= out.has(CUDNN_ATTR_TENSOR_REORDERING_MODE);
    largest = std::max(largest, static_cast<int64_t>(Values(out).at.size()) * 2);
  }
  return products > 2 && !adds ? largest : 0;
}

}  // namespace

std::vector<PlayedEngine> played_engines(1);
size_t played_cudnn_version = CUDNN_VERSION;
int64_t played_launches = 0;

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  *made = new Described{type, {}};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t handle) {
  delete static_cast<Described*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  const auto* const from = static_cast<const std::byte*>(values);
  of(handle).attributes[name] = {count, {from, from + static_cast<size_t>(count) * size_of(type)}};
  // A plan outlives the configuration from which it was made.
  if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) {
    const Described& choice = of(handle).at(name);
    of(handle).attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] =
        choice.attributes.at(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    set_engine(of(handle), engine_of(choice));
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t handle,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t most, int64_t* count,
                                       void* values) {
  Described& asked = of(handle);
  *count = 1;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    *count = static_cast<int64_t>(played_engines.size());
    for (size_t i = 0; i < static_cast<size_t>(std::min(most, *count)); ++i) {
      Described& choice = *static_cast<Described**>(values)[i];
      choice.attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] =
          asked.attributes.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      set_engine(choice, i);
    }
  } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
    set_engine(**static_cast<Described**>(values), engine_of(asked));
  } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
    *count = played_engines[engine_of(asked)].noted_nondeterministic ? 1 : 0;
    if (*count == 1)
      *static_cast<cudnnBackendNumericalNote_t*>(values) = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
  } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *static_cast<int64_t*>(values) = played_engines[engine_of(asked)].workspace.value_or(
        workspace_of(asked.at(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)));
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  ++played_launches;
  Run(of(plan).at(CUDNN_ATTR_ENGINE_OPERATION_GRAPH), of(pack));
  return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion() { return played_cudnn_version; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "an error"; }
void cudnnGetLastErrorString(char* text, size_t) { *text = 0; }
