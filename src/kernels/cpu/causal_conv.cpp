#include <numeric>

#include "base/error.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/causal_conv.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/silu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// A block of channels is computed in tiles of tokens: for each pair of vectors of channels, the
// window moves over the tokens of a tile in registers.
inline constexpr int64_t kTile = 16, kMostChannels = 1024, kUsualWidth = 4;

// Blocks of channels of about the same size, which begin at cache lines.
struct ChannelBlocks {
  explicit ChannelBlocks(int64_t channels_) : channels(channels_) {
    constexpr int64_t kStep = 64;
    const int64_t pieces = std::max<int64_t>(1, ceil_div(channels, kMostChannels));
    size = ceil_div(ceil_div(channels, pieces), kStep) * kStep;
    count = ceil_div(channels, size);
  }
  int64_t begin(int64_t block) const { return block * size; }
  int64_t size_of(int64_t block) const { return std::min(size, channels - begin(block)); }
  int64_t channels, size, count;
};

// Tensor [B,S,C] as rows.
template <class T>
struct TokenRows {
  explicit TokenRows(const Tensor& t) : p(t.data<T>()), batch(t.stride(0)), token(t.stride(1)) {}
  T* at(int64_t b, int64_t s) const { return p + b * batch + s * token; }
  T* p;
  int64_t batch, token;
};

template <class T>
Output<T> token_output(const Tensor& out) {
  return output_of<T>(out, std::gcd(out.stride(0), out.stride(1)), {});
}

// Inputs before the first token of a text or a document.
template <class T>
const T* zeros() {
  alignas(64) static const T kZeros[kMostChannels] = {};
  return kZeros;
}

// Weights, bias and sums of a block of channels. K is kUsualWidth, or kMaxConvolution for any other
// width, of which the last `width` weights are used.
template <class T, int64_t K>
class ChannelBlock {
 public:
  // Inputs of the tokens of a tile: that of token t for weight k is in[t + k].
  using Inputs = const T * [kTile + K - 1];

  ChannelBlock(const Tensor& weight, const Tensor& bias, int64_t begin, int64_t channels)
      : channels_(channels), width_(weight.size(1)) {
    const T* w = weight.data<T>() + begin * width();
    for (int64_t k = 0; k < width(); ++k)
      for (int64_t c = 0; c < channels; ++c)
        weight_[unused() + k][c] = static_cast<float>(w[c * width() + k]);
    for (int64_t c = 0; c < channels; ++c)
      bias_[c] = bias.defined() ? static_cast<float>(bias.data<T>()[begin + c]) : 0.0f;
  }

  // Computes a tile of tokens. ahead: distance of the inputs to prefetch.
  void convolve(const Inputs& in, int64_t tokens, int64_t ahead, Output<T> out,
                int64_t out_stride) const {
    for_pairs(0, channels_, [&](int64_t i, auto n) {
      VectorPair window[K];
      for (int64_t k = 0; k + 1 < K; ++k) window[k] = load_pair(in[k] + i, n);
      const Taps taps(*this, i, n);
      for (int64_t t = 0; t < tokens; ++t) {
        const T* x = in[t + K - 1] + i;
        prefetch(x + ahead, kPairBytes<T>);
        window[K - 1] = load_pair(x, n);
        const VectorPair s = taps.sum(window);
        store_pair({Silu<T>::value(s.a).v, Silu<T>::value(s.b).v}, out + (t * out_stride + i), n);
        for (int64_t k = 0; k + 1 < K; ++k) window[k] = window[k + 1];
      }
    });
  }

  // The gradients of a tile of tokens, last token first. kInputs: computes dx, else only what
  // earlier tokens need. kSums: adds to the sums.
  template <bool kInputs, bool kSums>
  void differentiate(const Inputs& in, const T* dout, int64_t dout_stride, int64_t tokens,
                     int64_t ahead, Output<T> dx, int64_t dx_stride) {
    for_pairs(0, channels_, [&](int64_t i, auto n) {
      VectorPair window[K], later[K];  // later[j]: ds, j + 1 tokens later
      for (int64_t k = 0; k + 1 < K; ++k) {
        window[k] = load_pair(in[tokens + k] + i, n);
        later[k] = load_pair(&later_[k][i]);
      }
      VectorPair dweight[K], dbias = load_pair(&dbias_[i]);
      for (int64_t k = 0; k < K; ++k) dweight[k] = load_pair(&dweight_[k][i]);
      const Taps taps(*this, i, n);
      for (int64_t t = tokens - 1; t >= 0; --t) {
        for (int64_t k = K - 1; k > 0; --k) window[k] = window[k - 1];
        prefetch(in[t + K - 1] - ahead + i, kPairBytes<T>);
        window[0] = load_pair(in[t] + i, n);
        const VectorPair s = taps.sum(window);
        const T* d = dout + t * dout_stride + i;
        prefetch(d - kTile * dout_stride, kPairBytes<T>);
        const VectorPair of_out = load_pair(d, n);
        const VectorPair ds{hn::Mul(of_out.a, Silu<T>::slope(s.a).derivative.v),
                            hn::Mul(of_out.b, Silu<T>::slope(s.b).derivative.v)};
        if constexpr (kSums) {
          for (int64_t k = 0; k < K; ++k) {
            if (k < unused()) continue;
            dweight[k] = {hn::MulAdd(ds.a, window[k].a, dweight[k].a),
                          hn::MulAdd(ds.b, window[k].b, dweight[k].b)};
          }
          dbias = {hn::Add(dbias.a, ds.a), hn::Add(dbias.b, ds.b)};
        }
        if constexpr (kInputs) store_pair(taps.input(ds, later), dx + (t * dx_stride + i), n);
        for (int64_t k = K - 2; k > 0; --k) later[k] = later[k - 1];
        later[0] = ds;
      }
      for (int64_t k = 0; k + 1 < K; ++k) store_pair(later[k], &later_[k][i]);
      if constexpr (kSums) {
        for (int64_t k = 0; k < K; ++k) store_pair(dweight[k], &dweight_[k][i]);
        store_pair(dbias, &dbias_[i]);
      }
    });
  }

  // Clears the later tokens' gradients: none reaches this document.
  void begin_document() {
    for (auto& row : later_) std::fill_n(row, kMostChannels, 0.0f);
  }
  void begin_sums() {
    for (auto& row : dweight_) std::fill_n(row, kMostChannels, 0.0f);
    std::fill_n(dbias_, kMostChannels, 0.0f);
  }
  // Writes the sums: dweight [channels, width], dbias [channels]; each may be null.
  void end_sums(float* dweight, float* dbias) {
    for (int64_t k = 0; k < width() && dweight != nullptr; ++k) {
      const float* sums = in_order(dweight_[unused() + k]);
      for (int64_t c = 0; c < channels_; ++c) dweight[c * width() + k] = sums[c];
    }
    if (dbias != nullptr) std::copy_n(in_order(dbias_), channels_, dbias);
  }

 private:
  // Weights and bias of two vectors of channels.
  struct Taps {
    HWY_INLINE Taps(const ChannelBlock& block, int64_t i, auto n)
        : bias(load_pair_for<T>(block.bias_ + i, n)), unused(block.unused()) {
      for (int64_t k = 0; k < K; ++k) {
        weight[k] = {hn::Zero(kFloats), hn::Zero(kFloats)};
        if (k >= unused) weight[k] = load_pair_for<T>(block.weight_[k] + i, n);
      }
    }
    HWY_INLINE VectorPair sum(const VectorPair (&window)[K]) const {
      VectorPair s = bias;
      for (int64_t k = 0; k < K; ++k) {
        if (k < unused) continue;
        s = {hn::MulAdd(weight[k].a, window[k].a, s.a), hn::MulAdd(weight[k].b, window[k].b, s.b)};
      }
      return s;
    }
    // The gradient of an input, from ds of its token and of the later ones.
    HWY_INLINE VectorPair input(VectorPair ds, const VectorPair (&later)[K]) const {
      VectorPair d{hn::Mul(weight[K - 1].a, ds.a), hn::Mul(weight[K - 1].b, ds.b)};
      for (int64_t k = K - 2; k >= 0; --k) {
        if (k < unused) continue;
        const VectorPair& of = later[K - 2 - k];
        d = {hn::MulAdd(weight[k].a, of.a, d.a), hn::MulAdd(weight[k].b, of.b, d.b)};
      }
      return d;
    }
    VectorPair weight[K], bias;
    int64_t unused;
  };

  // Known to the compiler for the usual width.
  HWY_INLINE int64_t width() const { return K == kUsualWidth ? K : width_; }
  HWY_INLINE int64_t unused() const { return K - width(); }

  // Sums are kept in load_pair's order.
  const float* in_order(float* sums) {
    for_pairs(0, channels_,
              [&](int64_t i, auto) { store_pair_for<T>(load_pair(sums + i), sums + i, Whole{}); });
    return sums;
  }

  int64_t channels_, width_;
  alignas(64) float weight_[K][kMostChannels];
  alignas(64) float bias_[kMostChannels];
  alignas(64) float later_[K][kMostChannels];
  alignas(64) float dweight_[K][kMostChannels];
  alignas(64) float dbias_[kMostChannels];
};

// The tokens of all sequences [B,S], cut where sequences and documents begin.
class Documents {
 public:
  Documents(const Tensor& x, const Tensor& starts)
      : length_(x.size(1)), starts_(data_or_null<int32_t>(starts)) {}
  int64_t sequence(int64_t token) const { return token / length_; }
  int64_t index(int64_t token) const { return token % length_; }
  // Index in its sequence of the first token of a token's document.
  int64_t first(int64_t token) const { return starts_ == nullptr ? 0 : starts_[token]; }
  bool are_together(int64_t a, int64_t b) const {
    return sequence(a) == sequence(b) && first(a) == first(b);
  }

 private:
  int64_t length_;
  const int32_t* starts_;
};

// Inputs of the tokens [begin, end) of a document.
template <class T, int64_t K>
void find_inputs(const Documents& documents, const TokenRows<T>& x, int64_t channel, int64_t begin,
                 int64_t end, typename ChannelBlock<T, K>::Inputs& in) {
  const int64_t b = documents.sequence(begin), first = documents.first(begin);
  int64_t s = documents.index(begin) - (K - 1);
  for (int64_t i = 0; i < end - begin + K - 1; ++i, ++s)
    in[i] = s >= first ? x.at(b, s) + channel : zeros<T>();
}

// Calls f(T{}, std::integral_constant<int64_t, K>) with the storage type and ChannelBlock's K.
template <class F>
void for_convolution(const char* kernel, const Tensor& weight, F&& f) {
  for_storage_type(kernel, weight.dtype(), [&](auto type) {
    weight.size(1) == kUsualWidth ? f(type, std::integral_constant<int64_t, kUsualWidth>())
                                  : f(type, std::integral_constant<int64_t, kMaxConvolution>());
  });
}

// Tokens of a block that is computed with one set of weights.
int64_t tokens_per_block(const ChannelBlocks& channels) {
  return std::max(4 * kTile, kBlockElements / std::max<int64_t>(1, channels.size));
}

void convolve(const CausalConvArgs& args, Stream& stream) {
  const int64_t tokens = args.x.size(0) * args.x.size(1);
  const ChannelBlocks channels(args.x.size(2));
  const int64_t height = tokens_per_block(channels), blocks = ceil_div(tokens, height);
  const Documents documents(args.x, args.starts);
  for_convolution("causal_conv", args.weight, [&](auto type, auto size) {
    using T = decltype(type);
    constexpr int64_t K = size;
    const TokenRows<T> x(args.x), out(args.out);
    const bool streamed = token_output<T>(args.out).streamed;
    for_each_block(stream, channels.count * blocks, [&](int64_t index, int) {
      const int64_t begin = index % blocks * height, end = std::min(tokens, begin + height);
      const int64_t channel = channels.begin(index / blocks);
      const ChannelBlock<T, K> block(args.weight, args.bias, channel,
                                     channels.size_of(index / blocks));
      for (int64_t t = begin, after = t; t < end; t = after) {
        while (after < end && after - t < kTile && documents.are_together(t, after)) ++after;
        typename ChannelBlock<T, K>::Inputs in;
        find_inputs<T, K>(documents, x, channel, t, after, in);
        const Output<T> to{out.at(documents.sequence(t), documents.index(t)) + channel, streamed};
        block.convolve(in, after - t, kTile * x.token, to, out.token);
      }
    });
  });
}

// Gradients of a block of tokens, from the last to the first.
template <bool kSums, class T, int64_t K>
void differentiate_tokens(const CausalConvBackwardArgs& args, const Documents& documents,
                          int64_t channel, int64_t begin, int64_t end, ChannelBlock<T, K>& block) {
  const int64_t tokens = args.x.size(0) * args.x.size(1), width = args.weight.size(1);
  const TokenRows<T> x(args.x), dout(args.dout), dx(args.dx);
  const bool streamed = token_output<T>(args.dx).streamed;
  typename ChannelBlock<T, K>::Inputs in;
  const auto tile = [&]<bool kInputs>(int64_t first, int64_t last) {
    find_inputs<T, K>(documents, x, channel, first, last, in);
    const int64_t b = documents.sequence(first), s = documents.index(first);
    block.template differentiate<kInputs, kInputs && kSums>(
        in, dout.at(b, s) + channel, dout.token, last - first, kTile * x.token,
        Output<T>{dx.at(b, s) + channel, streamed}, dx.token);
  };
  block.begin_document();
  int64_t behind = end;  // tokens after the block whose sums contain its inputs
  while (behind < std::min(tokens, end + width - 1) && documents.are_together(end - 1, behind))
    ++behind;
  if (behind > end) tile.template operator()<false>(end, behind);
  for (int64_t t = end; t > begin;) {
    if (t < end && !documents.are_together(t - 1, t)) block.begin_document();
    int64_t first = t - 1;
    while (first > begin && t - first < kTile && documents.are_together(first - 1, t - 1)) --first;
    tile.template operator()<true>(first, t);
    t = first;
  }
}

void differentiate(const CausalConvBackwardArgs& args, Stream& stream) {
  const ChannelBlocks channels(args.x.size(2));
  const int64_t width = args.weight.size(1);
  const RowBlocks blocks = causal_conv_blocks(args);
  const Documents documents(args.x, args.starts);
  const ConvPartials partials = causal_conv_backward_scratch(args, stream);
  const auto partial = [](const Tensor& sums, int64_t block, int64_t channel) -> float* {
    return sums.defined() ? sums.data<float>() + block * sums.size(1) + channel : nullptr;
  };
  const bool sums = partials.dweights.defined() || partials.dbiases.defined();
  for_convolution("causal_conv_backward", args.weight, [&](auto type, auto size) {
    using T = decltype(type);
    for_each_block(stream, channels.count * blocks.count, [&](int64_t index, int) {
      const int64_t row = index % blocks.count, begin = row * blocks.height,
                    end = std::min(blocks.rows, begin + blocks.height),
                    channel = channels.begin(index / blocks.count);
      ChannelBlock<T, size> block(args.weight, args.bias, channel,
                                  channels.size_of(index / blocks.count));
      if (!sums) return differentiate_tokens<false>(args, documents, channel, begin, end, block);
      block.begin_sums();
      differentiate_tokens<true>(args, documents, channel, begin, end, block);
      block.end_sums(partial(partials.dweights, row, channel * width),
                     partial(partials.dbiases, row, channel));
    });
  });
  if (partials.dweights.defined()) add_partial_rows(partials.dweights, args.dweight, stream);
  if (partials.dbiases.defined()) add_partial_rows(partials.dbiases, args.dbias, stream);
}

// A text's piece and its tails.
template <class T>
class Piece {
 public:
  Piece(const CausalConvContinuedArgs& args, int64_t text)
      : text_(text),
        kept_(args.tails.size(1)),
        channels_(args.tails.size(2)),
        block_size_(args.block_size),
        slots_(args.tails.size(0)),
        blocks_(args.block_table.size(1)),
        table_(args.block_table.data<int32_t>() + text * blocks_),
        tails_(args.tails.data<T>()),
        x_(args.x) {
    const int64_t length = args.x.size(1);
    const int32_t* positions = args.positions.data<int32_t>() + text * length;
    count_ =
        std::find_if(positions, positions + length, [](int32_t q) { return q < 0; }) - positions;
    if (count_ == 0) return;
    begin_ = positions[0];
    if (begin_ > 0) before_ = tail_after(begin_ - 1);
  }
  int64_t count() const { return count_; }  // tokens, without padding

  // Input s of the piece, or before it.
  const T* input(int64_t s, int64_t channel) const {
    if (s >= 0) return x_.at(text_, s) + channel;
    return before_ == nullptr || s < -kept_ ? zeros<T>()
                                            : before_ + (kept_ + s) * channels_ + channel;
  }

  // Stores the tails after the blocks of tokens whose first tokens here are in [begin, end). The
  // slot that may be that of the tail before the piece is the last to be written.
  void store_tails(int64_t begin, int64_t end, int64_t channel, int64_t channels) const {
    int64_t s = begin + (block_size_ - (begin_ + begin) % block_size_) % block_size_;
    for (; s < std::min(end, count_); s += block_size_)
      if (s > 0) store_tail(s, channel, channels);
    if (begin == 0 && count_ > 0) store_tail(0, channel, channels);
  }

 private:
  T* tail_after(int64_t token) const {
    const int64_t block = token / block_size_;
    MG_CHECK(block < blocks_ && table_[block] >= 0 && table_[block] < slots_,
             "causal_conv_continued: block {} of text {} has no slot", block, text_);
    return tails_ + table_[block] * kept_ * channels_;
  }
  // Stores the tail after the block of token s.
  void store_tail(int64_t s, int64_t channel, int64_t channels) const {
    const int64_t q = begin_ + s, end = std::min(count_, s + block_size_ - q % block_size_);
    T* tail = tail_after(q) + channel;
    for (int64_t row = 0; row < kept_; ++row)
      std::memcpy(tail + row * channels_, input(end - kept_ + row, channel),
                  static_cast<size_t>(channels) * sizeof(T));
  }

  int64_t text_, kept_, channels_, block_size_, slots_, blocks_;
  const int32_t* table_;
  T* tails_;
  TokenRows<T> x_;
  int64_t count_ = 0, begin_ = 0;
  const T* before_ = nullptr;
};

// Whole texts, or a part of one. One block has all tokens that read the tail before a piece.
template <class T, int64_t K>
void convolve_piece(const CausalConvContinuedArgs& args, int64_t text, int64_t begin, int64_t end,
                    int64_t channel, int64_t channels, const ChannelBlock<T, K>& block) {
  static_assert(K <= kTile);
  const Piece<T> piece(args, text);
  const TokenRows<T> out(args.out);
  const bool streamed = token_output<T>(args.out).streamed;
  const int64_t last = std::min(end, piece.count());
  for (int64_t s = begin, after = s; s < last; s = after) {
    after = std::min(last, s + kTile);
    typename ChannelBlock<T, K>::Inputs in;
    for (int64_t i = 0; i < after - s + K - 1; ++i) in[i] = piece.input(s - (K - 1) + i, channel);
    block.convolve(in, after - s, kTile * args.x.stride(1),
                   Output<T>{out.at(text, s) + channel, streamed}, out.token);
  }
  for (int64_t s = std::max(begin, last); s < end; ++s)
    std::fill_n(out.at(text, s) + channel, channels, T());
  piece.store_tails(begin, end, channel, channels);
}

void convolve_pieces(const CausalConvContinuedArgs& args, Stream& stream) {
  const int64_t texts = args.x.size(0), length = args.x.size(1);
  if (length == 0) return;
  const ChannelBlocks channels(args.x.size(2));
  const int64_t most = tokens_per_block(channels), height = std::min(most, length);
  const int64_t texts_per_block = std::max<int64_t>(1, most / length);
  const int64_t parts = ceil_div(length, height), blocks = ceil_div(texts, texts_per_block) * parts;
  for_convolution("causal_conv_continued", args.weight, [&](auto type, auto size) {
    using T = decltype(type);
    for_each_block(stream, channels.count * blocks, [&](int64_t index, int) {
      const int64_t channel = channels.begin(index / blocks),
                    count = channels.size_of(index / blocks);
      const ChannelBlock<T, size> block(args.weight, args.bias, channel, count);
      const int64_t first = index % blocks / parts * texts_per_block,
                    begin = index % parts * height, end = std::min(length, begin + height);
      for (int64_t text = first; text < std::min(texts, first + texts_per_block); ++text)
        convolve_piece(args, text, begin, end, channel, count, block);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(convolve);
HWY_EXPORT(differentiate);
HWY_EXPORT(convolve_pieces);

RowBlocks causal_conv_blocks(const CausalConvBackwardArgs& args) {
  constexpr int64_t kMostBlocks = 32;  // there are channels to divide, too
  return RowBlocks(args.x.size(0) * args.x.size(1), kMostBlocks);
}

ConvPartials causal_conv_backward_scratch(const CausalConvBackwardArgs& args, Stream& stream) {
  const RowBlocks blocks = causal_conv_blocks(args);
  ConvPartials partials;
  if (args.dweight.out.defined())
    partials.dweights = partial_rows(blocks, args.weight.elements(), stream);
  if (args.dbias.out.defined()) partials.dbiases = partial_rows(blocks, args.x.size(2), stream);
  return partials;
}

void causal_conv(const CausalConvArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(convolve)(args, stream);
}
void causal_conv_backward(const CausalConvBackwardArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(differentiate)(args, stream);
}
void causal_conv_continued(const CausalConvContinuedArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(convolve_pieces)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
