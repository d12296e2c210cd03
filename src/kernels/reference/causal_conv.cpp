#include <algorithm>
#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
struct Convolution {
  template <class Args>
  explicit Convolution(const Args& args)
      : x(load<C>(args.x)),
        weight(load<C>(args.weight)),
        bias(load<C>(args.bias)),
        batch(args.x.size(0)),
        length(args.x.size(1)),
        channels(args.x.size(2)),
        width(args.weight.size(1)) {}

  // The sum of channel c, where input(k) is the input for weight k.
  template <class F>
  C sum(int64_t c, F input) const {
    C s = bias.empty() ? 0 : bias[c];
    for (int64_t k = 0; k < width; ++k) s += weight[c * width + k] * input(k);
    return s;
  }
  int64_t at(int64_t b, int64_t t, int64_t c) const { return (b * length + t) * channels + c; }

  std::vector<C> x, weight, bias;
  int64_t batch, length, channels, width;
};

template <class C>
C sigmoid_of_sum(C s) {
  return 1 / (1 + std::exp(-s));
}

// Index of the first token of each token's document.
template <class Args>
std::vector<int64_t> document_starts(const Args& args) {
  if (args.starts.defined()) return load_integers(args.starts);
  return std::vector<int64_t>(args.x.size(0) * args.x.size(1));
}

template <class C>
void convolve(const CausalConvArgs& args) {
  const Convolution<C> conv(args);
  const std::vector<int64_t> starts = document_starts(args);
  std::vector<C> out(conv.x.size());
  for (int64_t b = 0; b < conv.batch; ++b) {
    for (int64_t t = 0; t < conv.length; ++t) {
      for (int64_t c = 0; c < conv.channels; ++c) {
        const C s = conv.sum(c, [&](int64_t k) {
          const int64_t from = t - (conv.width - 1) + k;
          return from >= starts[b * conv.length + t] ? conv.x[conv.at(b, from, c)] : 0;
        });
        out[conv.at(b, t, c)] = s * sigmoid_of_sum(s);
      }
    }
  }
  store(args.out, out);
}

// ds = dout f'(s) for every token; each ds goes to the inputs and the weights of its sum.
template <class C>
void differentiate(const CausalConvBackwardArgs& args) {
  const Convolution<C> conv(args);
  const std::vector<int64_t> starts = document_starts(args);
  const std::vector<C> dout = load<C>(args.dout);
  std::vector<C> dx(conv.x.size()), dweight(conv.weight.size()), dbias(conv.channels);
  for (int64_t b = 0; b < conv.batch; ++b) {
    for (int64_t t = 0; t < conv.length; ++t) {
      const int64_t oldest = t - (conv.width - 1), start = starts[b * conv.length + t];
      for (int64_t c = 0; c < conv.channels; ++c) {
        const C s = conv.sum(c, [&](int64_t k) {
          return oldest + k >= start ? conv.x[conv.at(b, oldest + k, c)] : 0;
        });
        const C p = sigmoid_of_sum(s), ds = dout[conv.at(b, t, c)] * p * (1 + s * (1 - p));
        for (int64_t k = std::max<int64_t>(0, start - oldest); k < conv.width; ++k) {
          dx[conv.at(b, oldest + k, c)] += conv.weight[c * conv.width + k] * ds;
          dweight[c * conv.width + k] += conv.x[conv.at(b, oldest + k, c)] * ds;
        }
        dbias[c] += ds;
      }
    }
  }
  store(args.dx, dx);
  store_sum(args.dweight, std::move(dweight));
  store_sum(args.dbias, std::move(dbias));
}

// Token by token: each reads the tail before it and writes the one after it.
template <class C>
void convolve_pieces(const CausalConvContinuedArgs& args) {
  const Convolution<C> conv(args);
  const std::vector<int64_t> positions = load_integers(args.positions),
                             table = load_integers(args.block_table);
  const int64_t blocks = args.block_table.size(1), kept = (conv.width - 1) * conv.channels;
  std::vector<C> tails = load<C>(args.tails), out(conv.x.size());
  for (int64_t b = 0; b < conv.batch; ++b) {
    const auto tail_after = [&](int64_t token) {
      return tails.begin() + table[b * blocks + token / args.block_size] * kept;
    };
    for (int64_t t = 0; t < conv.length; ++t) {
      const int64_t q = positions[b * conv.length + t];
      if (q < 0) continue;
      std::vector<C> inputs(kept);
      if (q > 0) std::copy_n(tail_after(q - 1), kept, inputs.begin());
      for (int64_t c = 0; c < conv.channels; ++c) inputs.push_back(conv.x[conv.at(b, t, c)]);
      for (int64_t c = 0; c < conv.channels; ++c) {
        const C s = conv.sum(c, [&](int64_t k) { return inputs[k * conv.channels + c]; });
        out[conv.at(b, t, c)] = s * sigmoid_of_sum(s);
      }
      std::copy_n(inputs.begin() + conv.channels, kept, tail_after(q));
    }
  }
  store(args.tails, tails);
  store(args.out, out);
}

}  // namespace

void causal_conv(const CausalConvArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? convolve<double>(args) : convolve<float>(args);
}
void causal_conv_backward(const CausalConvBackwardArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? differentiate<double>(args) : differentiate<float>(args);
}
void causal_conv_continued(const CausalConvContinuedArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? convolve_pieces<double>(args) : convolve_pieces<float>(args);
}

}  // namespace megatron::kernels::reference
