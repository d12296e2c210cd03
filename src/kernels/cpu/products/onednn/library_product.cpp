#include "kernels/cpu/products/library_product.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "kernels/cpu/products/onednn/onednn.h"
#include "kernels/instruction_set.h"
#include "tensor/tensor.h"

namespace megatron::kernels::cpu {

namespace {

using dnnl::memory;
using Order = LibraryProduct::Order;

// Has three dimensions if there is a batch.
memory::desc layout(int64_t batch, int64_t rows, int64_t cols, Order order, DType type) {
  if (order == Order::packed) {
    const memory::dims dims =
        batch > 1 ? memory::dims{batch, rows, cols} : memory::dims{rows, cols};
    return {dims, type_of(type), memory::format_tag::any};
  }
  const int64_t stride = order == Order::rows ? cols : rows;
  if (batch == 1) return matrix(rows, cols, stride, order == Order::columns, type);
  const memory::dims strides = order == Order::rows ? memory::dims{rows * cols, cols, 1}
                                                    : memory::dims{rows * cols, 1, rows};
  return {{batch, rows, cols}, type_of(type), strides};
}

// A matrix with small values in any layout.
class Matrix {
 public:
  Matrix(const memory::desc& wanted, const LibraryProduct& p, int64_t rows, int64_t cols,
         DType type, Arena& arena, const dnnl::engine& engine, dnnl::stream& stream) {
    bytes_ = Tensor::empty(arena, {static_cast<int64_t>(wanted.get_size())}, DType::u8, "library");
    memory_ = memory(wanted, engine, bytes_.raw());
    Tensor plain = Tensor::empty(arena, {p.batch, rows, cols}, type, "library.plain");
    if (type == DType::f32) {
      std::ranges::fill(plain.span<float>(), 0.25f);
    } else {
      std::ranges::fill(plain.span<bf16>(), bf16(0.25f));
    }
    memory from(layout(p.batch, rows, cols, Order::rows, type), engine, plain.raw());
    dnnl::reorder(from, memory_).execute(stream, from, memory_);
    stream.wait();
  }
  memory& get() { return memory_; }

 private:
  Tensor bytes_;
  memory memory_;
};

void run_here(const LibraryProduct& p, Arena& scratch,
              const std::function<void(const std::function<void()>&)>& measure) {
  // Must precede any other call of the library; it has no effect later.
  if (instruction_set_limit() == InstructionSet::avx2) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto d =
      matmul(layout(p.batch, p.m, p.k, p.a, p.in), layout(p.batch, p.k, p.n, p.b, p.in),
             memory::desc(), layout(p.batch, p.m, p.n, Order::rows, p.out), p.accumulate, engine);
  Matrix a(d.src_desc(), p, p.m, p.k, p.in, scratch, engine, stream);
  Matrix b(d.weights_desc(), p, p.k, p.n, p.in, scratch, engine, stream);
  Matrix c(d.dst_desc(), p, p.m, p.n, p.out, scratch, engine, stream);
  const Tensor work = Tensor::empty(scratch, {static_cast<int64_t>(d.scratchpad_desc().get_size())},
                                    DType::u8, "library.work");
  memory workspace(d.scratchpad_desc(), engine, work.raw());
  const dnnl::matmul primitive(d);
  measure([&] {
    primitive.execute(stream, {{DNNL_ARG_SRC, a.get()},
                               {DNNL_ARG_WEIGHTS, b.get()},
                               {DNNL_ARG_DST, c.get()},
                               {DNNL_ARG_SCRATCHPAD, workspace}});
    stream.wait();
  });
}

}  // namespace

bool with_library_product(const LibraryProduct& product, int threads, Arena& scratch,
                          const std::function<void(const std::function<void()>& run)>& measure) {
  bool known = true;
  std::exception_ptr failure;
  std::thread([&] {
    try {
      omp_set_num_threads(threads);
      run_here(product, scratch, measure);
    } catch (const dnnl::error&) {
      known = false;
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
  return known;
}

}  // namespace megatron::kernels::cpu
