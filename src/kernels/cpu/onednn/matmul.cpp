#include "kernels/cpu/matmul.h"

#include <array>
#include <memory>
#include <unordered_map>

#include "kernels/cpu/onednn/onednn.h"

namespace megatron::kernels::cpu {

namespace {

using dnnl::memory;

struct Key {
  std::array<int64_t, 7> words{};
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t h = 0x9E3779B97F4A7C15ull;
    for (const int64_t word : key.words) {
      h = (h ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccdull;
      h ^= h >> 32;
    }
    return h;
  }
};

Key key_of(const Product& p) {
  const int64_t flags = p.transpose_a | p.transpose_b << 1 | p.accumulate << 2 |
                        (p.bias != nullptr) << 3 | static_cast<int64_t>(p.in) << 8 |
                        static_cast<int64_t>(p.out) << 16 | static_cast<int64_t>(p.bias_type) << 24;
  return {{p.m, p.n, p.k, p.lda, p.ldb, p.ldc, flags}};
}

dnnl::matmul::primitive_desc describe(const Product& p, const dnnl::engine& engine) {
  const auto a = matrix(p.m, p.k, p.lda, p.transpose_a, p.in);
  const auto b = matrix(p.k, p.n, p.ldb, p.transpose_b, p.in);
  const auto c = matrix(p.m, p.n, p.ldc, false, p.out);
  const auto bias = p.bias == nullptr ? memory::desc() : matrix(1, p.n, p.n, false, p.bias_type);
  return matmul(a, b, bias, c, p.accumulate, engine);
}

class Plan {
 public:
  Plan(const Product& p, const dnnl::engine& engine) : Plan(p, engine, describe(p, engine)) {}

  void run(const Product& p, const dnnl::stream& stream) const {
    a_.set_data_handle(const_cast<void*>(p.a));
    b_.set_data_handle(const_cast<void*>(p.b));
    c_.set_data_handle(p.c);
    if (p.bias != nullptr) bias_.set_data_handle(const_cast<void*>(p.bias));
    scratch_.set_data_handle(thread_buffer(Slot::primitive, scratch_bytes_));
    primitive_.execute(stream, arguments_);
  }

 private:
  Plan(const Product& p, const dnnl::engine& engine, const dnnl::matmul::primitive_desc& d)
      : primitive_(d),
        a_(d.src_desc(), engine, nullptr),
        b_(d.weights_desc(), engine, nullptr),
        c_(d.dst_desc(), engine, nullptr),
        scratch_(d.scratchpad_desc(), engine, nullptr),
        scratch_bytes_(static_cast<int64_t>(d.scratchpad_desc().get_size())),
        arguments_{{DNNL_ARG_SRC, a_},
                   {DNNL_ARG_WEIGHTS, b_},
                   {DNNL_ARG_DST, c_},
                   {DNNL_ARG_SCRATCHPAD, scratch_}} {
    if (p.bias == nullptr) return;
    bias_ = memory(d.bias_desc(), engine, nullptr);
    arguments_.emplace(DNNL_ARG_BIAS, bias_);
  }

  dnnl::matmul primitive_;
  memory a_, b_, c_, scratch_, bias_;
  int64_t scratch_bytes_ = 0;
  std::unordered_map<int, memory> arguments_;
};

class Plans {
 public:
  Plans() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    omp_set_num_threads(1);  // a value of the calling thread: each one computes its blocks alone
  }

  void run(const Product& p) {
    const Key key = key_of(p);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      if (plans_.size() >= kMaxPlans) plans_.clear();
      found = plans_.try_emplace(key, p, engine_).first;
    }
    found->second.run(p, stream_);
  }

 private:
  static constexpr size_t kMaxPlans =
      1024;  // shapes of a model: tens; of serving, where every length is one: unbounded
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<Key, Plan, KeyHash> plans_;
};

}  // namespace

void multiply(const Product& product) {
  thread_local Plans plans;
  try {
    plans.run(product);
  } catch (const dnnl::error& error) {
    fail("oneDNN cannot multiply [{}, {}] by [{}, {}] ({} to {}): {}", product.m, product.k,
         product.k, product.n, name(product.in), name(product.out), error.what());
  }
}

bool has_library() { return true; }

}  // namespace megatron::kernels::cpu
