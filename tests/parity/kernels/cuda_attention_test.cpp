// CUDA's attention beyond its Cases: every tile width, bits that do not depend on a query's
// position, and memory after the last key.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "device/cuda_plugin.h"
#include "kernels/table.h"

namespace megatron::kernels {
namespace {

// Tensors of one device; the same number gives the same values.
class Maker {
 public:
  explicit Maker(Runtime& runtime) : runtime_(runtime) {}

  Tensor empty(Shape shape, DType type) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
  }
  Tensor values(Shape shape, DType type, uint32_t number) {
    Tensor tensor = empty(shape, type);
    std::vector<double> all(static_cast<size_t>(tensor.elements()));
    uint64_t state = number * 0x9E3779B97F4A7C15ull + 1;
    for (double& x : all) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      x = static_cast<double>(state >> 40) / (1 << 22) - 2;
    }
    copy_from(tensor, std::span<const double>(all));
    return tensor;
  }
  // period: number of elements after which it starts again; 0: never.
  Tensor counting(Shape shape, int32_t first, int64_t period = 0) {
    Tensor tensor = empty(shape, DType::i32);
    std::vector<int32_t> all(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = first + static_cast<int32_t>(period == 0 ? i : i % static_cast<size_t>(period));
    copy_from(tensor, std::span<const int32_t>(all));
    return tensor;
  }
  Stream& stream() { return runtime_.stream(); }

 private:
  Runtime& runtime_;
};

struct Problem {
  int64_t queries, keys, heads, kv_heads, width;
  DType type = DType::f32;
  float dropout = 0;
};

AttentionArgs forward_args(Maker& make, const Problem& p) {
  const Shape rows = {1, p.queries, p.heads, p.width}, keys = {1, p.keys, p.kv_heads, p.width};
  AttentionArgs args{.q = make.values(rows, p.type, 1),
                     .k = make.values(keys, p.type, 2),
                     .v = make.values(keys, p.type, 3)};
  args.scale = 1 / std::sqrt(static_cast<double>(p.width));
  args.out = make.empty(rows, p.type);
  args.lse = make.empty({1, p.heads, p.queries}, DType::f32);
  if (p.dropout > 0) {
    args.dropout = {.p = p.dropout, .seed = 7, .stream = 11};
    args.dropout.rows.sample_ids = make.empty({1}, DType::i64);
    const int64_t number = (int64_t{3} << 33) + 5;
    copy_bytes_from(args.dropout.rows.sample_ids, std::as_bytes(std::span(&number, 1)));
  }
  return args;
}

AttentionBackwardArgs backward_args(Maker& make, const AttentionArgs& f) {
  AttentionBackwardArgs args{.q = f.q, .k = f.k, .v = f.v, .out = f.out, .lse = f.lse};
  args.dout = make.values(f.q.shape(), f.q.dtype(), 4);
  args.causal = f.causal;
  args.scale = f.scale;
  args.dropout = f.dropout;
  args.dq = make.empty(f.q.shape(), f.q.dtype());
  args.dk = make.empty(f.k.shape(), f.k.dtype());
  args.dv = make.empty(f.v.shape(), f.v.dtype());
  return args;
}

using Results = std::vector<std::vector<double>>;

Results run(Runtime& runtime, const Problem& p) {
  Maker make(runtime);
  const AttentionArgs args = forward_args(make, p);
  const AttentionBackwardArgs back = backward_args(make, args);
  table(make.stream()).attention(args, make.stream());
  table(make.stream()).attention_backward(back, make.stream());
  make.stream().synchronize();
  Results all;
  for (const Tensor& t : {args.out, args.lse, back.dq, back.dk, back.dv})
    all.push_back(to_doubles(t));
  return all;
}

// Queries of latents in pages at positions `first`, `first` + 1, ... of each text. Values are the
// latents' first 264 elements.
AttentionArgs latent_args(Maker& make, const Tensor& latents, const Tensor& block_table,
                          int64_t queries, int64_t heads, int32_t first) {
  const int64_t texts = block_table.size(0), width = latents.size(3), values = 264;
  const DType type = latents.dtype();
  AttentionArgs args{.q = make.values({texts, queries, heads, width}, type, 1),
                     .k = latents,
                     .v = latents.slice(3, 0, values)};
  args.q_positions = make.counting({texts, queries}, first, queries);
  args.block_table = block_table;
  args.scale = 0.1;
  args.out = make.empty({texts, queries, heads, values}, type);
  args.lse = make.empty({texts, heads, queries}, DType::f32);
  return args;
}

class CudaAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_state().plugin == nullptr) GTEST_SKIP() << cuda_state().why_not;
  }
};

TEST_F(CudaAttention, EqualsReferenceAtEveryWidth) {
  Runtime cuda({DeviceKind::cuda}, 1), reference({DeviceKind::reference}, 1);
  for (const int64_t width : {63, 64, 65, 80, 96, 128, 129, 192, 256}) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      const Problem p{37, 70, 2, 1, width, type, width % 2 == 0 ? 0.3f : 0.0f};
      const Results got = run(cuda, p), want = run(reference, p);
      const double bound = type == DType::f32 ? 2e-5 : type == DType::bf16 ? 4e-2 : 5e-3;
      for (size_t i = 0; i < want.size(); ++i) {
        for (size_t j = 0; j < want[i].size(); ++j) {
          ASSERT_NEAR(got[i][j], want[i][j], bound * std::max(1.0, std::abs(want[i][j])))
              << "width " << width << " " << name(type) << ", result " << i << " at " << j;
        }
      }
    }
  }
}

// Computes in one call of the library, in one per key head, and again. A GPU uses training's size.
TEST_F(CudaAttention, GivesTheSameBitsInPartsOfEverySize) {
  const bool stand_in = cuda_plugin().devices().front().name == "CUDA shim on the CPU";
  const Problem p = stand_in ? Problem{128, 128, 4, 2, 16, DType::bf16}
                             : Problem{4096, 4096, 32, 8, 128, DType::bf16};
  Runtime cuda({DeviceKind::cuda}, 1);
  const auto in_parts = [&](int64_t most) {
    cuda.stream().limit_attention_workspace(most);
    return run(cuda, p);
  };
  const Results whole = in_parts(int64_t{1280} << 20);
  for (const int64_t most : {int64_t{1280} << 20, int64_t{768} << 20, int64_t{1}, int64_t{1}})
    EXPECT_TRUE(in_parts(most) == whole) << most;
}

// Meta and CUDA request the same scratch memory for a part.
TEST_F(CudaAttention, TakesTheScratchThatIsPlannedForPartsOfEverySize) {
  constexpr int64_t kLength = 256;
  const auto taken = [](Runtime& runtime, int64_t most) {
    Maker make(runtime);
    AttentionBackwardArgs args;
    for (Tensor* t :
         {&args.q, &args.k, &args.v, &args.out, &args.dout, &args.dq, &args.dk, &args.dv})
      *t = make.empty({1, kLength, 4, 8}, DType::bf16);
    args.lse = make.empty({1, 4, kLength}, DType::f32);
    make.stream().limit_attention_workspace(most);
    table(make.stream()).attention_backward(args, make.stream());
    make.stream().synchronize();
    return make.stream().scratch().high_water();
  };
  int64_t before = 0;
  for (const int64_t most :
       {int64_t{1}, int64_t{3} << 17, int64_t{768} << 20}) {  // 1, 2 and 4 heads
    Runtime cuda({DeviceKind::cuda}, 1), planned({DeviceKind::meta}, 1, DeviceKind::cuda);
    const int64_t bytes = taken(cuda, most);
    EXPECT_EQ(bytes, taken(planned, most)) << most;
    EXPECT_GT(bytes, before) << most;
    before = bytes;
  }
}

// GPUs of compute capability 8.6, 8.9 or 12.0 have too little shared memory for the widest tiles.
TEST_F(CudaAttention, SaysWhatASmallerGpuCannotCompute) {
  if (cuda_plugin().devices().front().name != "CUDA shim on the CPU")
    GTEST_SKIP() << "this GPU is what it is";
  const auto set = reinterpret_cast<bool (*)(const char*, int64_t)>(cuda_symbol("shim_set"));
  Runtime cuda({DeviceKind::cuda}, 1);
  ASSERT_TRUE(set("shared", 99 << 10));
  for (const Problem& fits :
       {Problem{16, 16, 1, 1, 64, DType::f32}, Problem{16, 16, 1, 1, 128, DType::bf16}})
    EXPECT_NO_THROW(run(cuda, fits)) << fits.width;
  for (const Problem& large :
       {Problem{16, 16, 1, 1, 128, DType::f32}, Problem{48, 48, 1, 1, 256, DType::bf16}}) {
    try {
      run(cuda, large);
      ADD_FAILURE() << large.width;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(" bytes of shared memory, but GPU 0 allows 101376 per block"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("use --bf16"), std::string::npos) << text;
    }
  }
  Maker make(cuda);
  const Tensor latents = make.values({1, 32, 1, 264}, DType::bf16, 2);
  const auto with_heads = [&](int64_t heads) {
    const AttentionArgs args = latent_args(make, latents, make.counting({1, 1}, 0), 1, heads, 9);
    table(make.stream()).attention(args, make.stream());
  };
  EXPECT_NO_THROW(with_heads(32));
  try {
    with_heads(33);
    ADD_FAILURE() << "tiles of 64 rows of latents";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("use --mla-decode plain"), std::string::npos)
        << error.what();
  }
  ASSERT_TRUE(set("shared", 227 << 10));
}

TEST_F(CudaAttention, RefusesWiderHeads) {
  Runtime cuda({DeviceKind::cuda}, 1);
  EXPECT_THROW(run(cuda, {4, 4, 1, 1, 257}), Error);
}

// The last queries alone, with their positions, give the same bits as among all queries, in tiles
// of many rows and of few: decoding equals training.
TEST_F(CudaAttention, GivesAQueryTheSameBitsWhereverItStands) {
  constexpr int64_t kT = 150;
  Runtime cuda({DeviceKind::cuda}, 1);
  Maker make(cuda);
  struct Form {
    int64_t width;
    DType type;
  };
  for (const auto& [width, type] :
       {Form{32, DType::f32}, Form{80, DType::f32}, Form{192, DType::f32}, Form{64, DType::bf16},
        Form{80, DType::f16}}) {
    const AttentionArgs all = forward_args(make, {kT, kT, 4, 2, width, type, 0.2f});
    table(make.stream()).attention(all, make.stream());
    for (const int64_t first : {1, 77, 148}) {
      AttentionArgs part = all;
      part.q = all.q.slice(1, first, kT - first);
      part.out = make.empty(part.q.shape(), type);
      part.lse = make.empty({1, 4, kT - first}, DType::f32);
      part.q_positions = make.counting({1, kT - first}, static_cast<int32_t>(first));
      part.k_positions = make.counting({1, kT}, 0);
      table(make.stream()).attention(part, make.stream());
      EXPECT_EQ(to_doubles(part.out), to_doubles(all.out.slice(1, first, kT - first)))
          << name(type) << ", width " << width << " from " << first;
    }
  }
}

// In tiles of many rows and of few, and with one range of keys and with two: decoding equals
// reading a prompt. The window leaves keys on both sides of the border at 1024.
TEST_F(CudaAttention, GivesAQueryOfLatentsTheSameBitsWhereverItStands) {
  constexpr int64_t kQueries = 20, kFirst = 1010;
  Runtime cuda({DeviceKind::cuda}, 1);
  Maker make(cuda);
  for (const DType type : {DType::f32, DType::bf16}) {
    const Tensor latents = make.values({33, 32, 1, 272}, type, 2);
    AttentionArgs all = latent_args(make, latents, make.counting({1, 33}, 0), kQueries, 2, kFirst);
    all.window = 50;
    table(make.stream()).attention(all, make.stream());
    struct Piece {
      int64_t begin, count, blocks;
    };
    for (const auto& [begin, count, blocks] :
         {Piece{0, 10, 32}, Piece{5, 1, 32}, Piece{12, 8, 33}, Piece{19, 1, 33}}) {
      AttentionArgs part = all;
      part.q = all.q.slice(1, begin, count);
      part.out = make.empty(all.out.slice(1, begin, count).shape(), type);
      part.lse = make.empty({1, 2, count}, DType::f32);
      part.q_positions = make.counting({1, count}, static_cast<int32_t>(kFirst + begin));
      part.block_table = make.counting({1, blocks}, 0);
      table(make.stream()).attention(part, make.stream());
      EXPECT_EQ(to_doubles(part.out), to_doubles(all.out.slice(1, begin, count)))
          << name(type) << " from " << begin;
      EXPECT_EQ(to_doubles(part.lse), to_doubles(all.lse.slice(2, begin, count)))
          << name(type) << " from " << begin;
    }
  }
}

// The results of the ranges of nine texts need more scratch memory than one launch may use.
TEST_F(CudaAttention, ReadsLatentsOfManyTextsInSeveralLaunches) {
  constexpr int64_t kTexts = 9, kBlocks = 64;
  Runtime cuda({DeviceKind::cuda}, 1);
  Maker make(cuda);
  const Tensor latents = make.values({1, 1024, 1, 264}, DType::bf16, 2);
  AttentionArgs all =
      latent_args(make, latents, make.counting({kTexts, kBlocks}, 0, 1), 1, 33, kBlocks * 1024 - 6);
  all.window = 40;
  table(make.stream()).attention(all, make.stream());
  AttentionArgs last = all;
  for (Tensor* t : {&last.q, &last.q_positions, &last.block_table}) *t = t->slice(0, kTexts - 1, 1);
  last.out = make.empty(last.q.shape(), DType::bf16).slice(3, 0, 264);
  last.lse = make.empty({1, 33, 1}, DType::f32);
  table(make.stream()).attention(last, make.stream());
  EXPECT_EQ(to_doubles(last.out), to_doubles(all.out.slice(0, kTexts - 1, 1)));
}

// The cache is longer than its written part.
TEST_F(CudaAttention, DoesNotReadBehindTheLastKeyThatIsSeen) {
  constexpr int64_t kKeys = 200, kWritten = 70, kLast = 2;
  Runtime cuda({DeviceKind::cuda}, 1);
  for (const DType type : {DType::f32, DType::bf16}) {
    Maker make(cuda);
    AttentionArgs args = forward_args(make, {kLast, kKeys, 2, 1, 40, type});
    args.q_positions = make.counting({1, kLast}, kWritten - kLast);
    args.k_positions = make.counting({1, kKeys}, 0);
    AttentionBackwardArgs back = backward_args(make, args);
    back.q_positions = args.q_positions;
    back.k_positions = args.k_positions;
    const auto results = [&] {
      table(make.stream()).attention(args, make.stream());
      table(make.stream()).attention_backward(back, make.stream());
      Results all;
      for (const Tensor& t : {args.out, args.lse, back.dq, back.dk, back.dv})
        all.push_back(to_doubles(t));
      return all;
    };
    const Results want = results();
    Tensor rest_k = args.k.slice(1, kWritten, kKeys - kWritten),
           rest_v = args.v.slice(1, kWritten, kKeys - kWritten);
    const std::vector<double> nan(static_cast<size_t>(rest_k.elements()),
                                  std::numeric_limits<double>::quiet_NaN());
    copy_from(rest_k, std::span<const double>(nan));
    copy_from(rest_v, std::span<const double>(nan));
    EXPECT_EQ(results(), want);
  }
}

// Keys in two parts, each with the log-sum-exp over all keys: the gradients add up to the gradient
// of the whole.
TEST_F(CudaAttention, TakesTheLogSumExpOfAllKeysInBackward) {
  Runtime cuda({DeviceKind::cuda}, 1);
  for (const DType type : {DType::f32, DType::bf16}) {
    const double bound = type == DType::f32 ? 1e-5 : 2e-2;
    Maker make(cuda);
    AttentionArgs args = forward_args(make, {80, 160, 2, 1, 16, type});
    args.causal = false;
    const AttentionBackwardArgs whole = backward_args(make, args);
    table(make.stream()).attention(args, make.stream());
    table(make.stream()).attention_backward(whole, make.stream());
    const Results want = {to_doubles(whole.dq), to_doubles(whole.dk), to_doubles(whole.dv)};
    Results got = {std::vector<double>(want[0].size()), {}, {}};
    for (const int64_t begin : {0, 60}) {
      AttentionBackwardArgs part = whole;
      for (Tensor* t : {&part.k, &part.v, &part.dk, &part.dv})
        *t = t->slice(1, begin, begin == 0 ? 60 : 100);
      table(make.stream()).attention_backward(part, make.stream());
      const auto dq = to_doubles(part.dq), dk = to_doubles(part.dk), dv = to_doubles(part.dv);
      for (size_t i = 0; i < dq.size(); ++i) got[0][i] += dq[i];
      got[1].insert(got[1].end(), dk.begin(), dk.end());
      got[2].insert(got[2].end(), dv.begin(), dv.end());
    }
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].size(), want[i].size());
      for (size_t j = 0; j < want[i].size(); ++j)
        ASSERT_NEAR(got[i][j], want[i][j], bound * std::max(1.0, std::abs(want[i][j])));
    }
  }
}

}  // namespace
}  // namespace megatron::kernels
