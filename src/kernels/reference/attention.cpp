#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/elements.h"
#include "kernels/reference/keep.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

// What query i of a sample may see, and what dropout keeps of it.
class Visibility {
 public:
  template <class Args>
  Visibility(const Args& args, int64_t queries, int64_t keys)
      : causal_(args.causal),
        window_(window_of(args)),
        chunk_(chunk_of(args)),
        queries_(queries),
        keys_(keys),
        q_(load_integers(args.q_positions)),
        k_(load_integers(args.k_positions)),
        begins_(load_integers(args.window_start)) {}

  int64_t query(int64_t b, int64_t i) const { return q_.empty() ? i : q_[b * queries_ + i]; }
  int64_t key(int64_t b, int64_t j) const { return k_.empty() ? j : k_[b * keys_ + j]; }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    const int64_t at = query(b, i);
    return (!causal_ || key(b, j) <= at) && (window_ == 0 || key(b, j) > at - window_) &&
           (chunk_ == 0 || key(b, j) >= at - at % chunk_) &&
           (begins_.empty() || key(b, j) >= begins_[b * queries_ + i]);
  }

 private:
  // A softmax has neither.
  static int64_t window_of(const auto& args) {
    if constexpr (requires { args.window; }) return args.window;
    return 0;
  }
  static int64_t chunk_of(const auto& args) {
    if constexpr (requires { args.chunk; }) return args.chunk;
    return 0;
  }

  bool causal_;
  int64_t window_, chunk_;
  int64_t queries_, keys_;
  std::vector<int64_t> q_, k_, begins_;
};

// Row of scaled scores -> probabilities in place, 0 where hidden; returns log sum exp, that of the
// sink when all is hidden (-infinity: there is none).
template <class C>
C softmax_row(std::vector<C>& scores, const Visibility& visible, int64_t b, int64_t i,
              C sink = -std::numeric_limits<C>::infinity()) {
  constexpr C kHidden = -std::numeric_limits<C>::infinity();
  C maximum = sink, sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (!visible.sees(b, i, static_cast<int64_t>(j))) scores[j] = kHidden;
    maximum = std::max(maximum, scores[j]);
  }
  if (maximum == kHidden) {
    std::fill(scores.begin(), scores.end(), C{0});
    return kHidden;
  }
  for (C& score : scores) sum += score = std::exp(score - maximum);
  sum += std::exp(sink - maximum);
  for (C& score : scores) score /= sum;
  return maximum + std::log(sum);
}

// [B,T,N,D] rows of dense copies, and the dropout factors.
template <class C>
struct Heads {
  template <class Args>
  explicit Heads(const Args& args)
      : q(load<C>(args.q)),
        k(load<C>(args.k)),
        v(load<C>(args.v)),
        batch(args.q.size(0)),
        queries(args.q.size(1)),
        heads(args.q.size(2)),
        width(args.q.size(3)),
        keys(args.k.size(1)),
        kv_heads(args.k.size(2)),
        scale(static_cast<C>(args.scale)),
        cap(static_cast<C>(args.soft_cap)),
        sinks(load<C>(args.sinks)),
        visible(args, queries, keys),
        mask(args.dropout),
        samples(load_integers(args.dropout.sample_ids)) {}

  int64_t query_row(int64_t b, int64_t i, int64_t n) const {
    return ((b * queries + i) * heads + n) * width;
  }
  int64_t key_row(int64_t b, int64_t j, int64_t n) const {
    return ((b * keys + j) * kv_heads + n / (heads / kv_heads)) * width;
  }
  static C dot(const C* a, const C* b, int64_t n) {
    C sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  }
  C score(int64_t b, int64_t i, int64_t j, int64_t n) const {
    const C s = scale * dot(&q[query_row(b, i, n)], &k[key_row(b, j, n)], width);
    return cap > 0 ? cap * std::tanh(s / cap) : s;
  }
  C sink(int64_t n) const { return sinks.empty() ? -std::numeric_limits<C>::infinity() : sinks[n]; }
  // keep / (1 - p) of the probabilities of one query.
  void dropout_row(int64_t b, int64_t i, int64_t n, std::vector<C>& factors) const {
    std::fill(factors.begin(), factors.end(), C{1});
    if (mask.p == 0) return;
    const Keep keep(mask, mix_stream(mask.stream, static_cast<uint64_t>(mask.first_head + n)));
    for (int64_t j = 0; j < keys; ++j) {
      factors[j] = keep(samples[b], visible.query(b, i), visible.key(b, j))
                       ? 1 / (1 - static_cast<C>(mask.p))
                       : 0;
    }
  }

  std::vector<C> q, k, v;
  int64_t batch, queries, heads, width, keys, kv_heads;
  C scale, cap;
  std::vector<C> sinks;
  Visibility visible;
  const DropoutArgs::Mask& mask;
  std::vector<int64_t> samples;
};

template <class C>
void attend(const AttentionArgs& args, Stream& stream) {
  const Heads<C> x(args);
  std::vector<C> out(args.out.elements()), lse(args.lse.elements());
  for_rows(stream, x.batch * x.heads * x.queries, 16, [&](int64_t row) {
    const int64_t b = row / (x.heads * x.queries), n = row / x.queries % x.heads,
                  i = row % x.queries;
    std::vector<C> p(x.keys), factors(x.keys);
    for (int64_t j = 0; j < x.keys; ++j) p[j] = x.score(b, i, j, n);
    lse[row] = softmax_row(p, x.visible, b, i, x.sink(n));
    x.dropout_row(b, i, n, factors);
    for (int64_t j = 0; j < x.keys; ++j) {
      const C weight = p[j] * factors[j];
      for (int64_t d = 0; d < x.width; ++d)
        out[x.query_row(b, i, n) + d] += weight * x.v[x.key_row(b, j, n) + d];
    }
  });
  store(args.out, out);
  store(args.lse, lse);
}

// With p = exp(s - lse), f the dropout factors and delta = dout . out:
//   dv += f p dout,  ds = p (f dout . v - delta) (1 - (s / cap)^2),  dq += scale ds k,  dk += scale ds q,
//   dsink -= exp(sink - lse) delta.
template <class C>
void differentiate(const AttentionBackwardArgs& args, Stream& stream) {
  const Heads<C> x(args);
  const std::vector<C> out = load<C>(args.out), lse = load<C>(args.lse), dout = load<C>(args.dout);
  std::vector<C> dq(x.q.size()), dk(x.k.size()), dv(x.v.size());
  std::vector<C> dsinks(x.batch * x.heads);
  const int64_t group = x.heads / x.kv_heads;
  for_rows(stream, x.batch * x.kv_heads, 1, [&](int64_t task) {
    const int64_t b = task / x.kv_heads, first = task % x.kv_heads * group;
    std::vector<C> factors(x.keys);
    for (int64_t n = first; n < first + group; ++n) {
      for (int64_t i = 0; i < x.queries; ++i) {
        const int64_t qr = x.query_row(b, i, n);
        const C row_lse = lse[(b * x.heads + n) * x.queries + i];
        const C delta = x.dot(&dout[qr], &out[qr], x.width);
        x.dropout_row(b, i, n, factors);
        if (!x.sinks.empty()) dsinks[b * x.heads + n] -= std::exp(x.sink(n) - row_lse) * delta;
        for (int64_t j = 0; j < x.keys; ++j) {
          if (!x.visible.sees(b, i, j)) continue;
          const int64_t kr = x.key_row(b, j, n);
          const C s = x.score(b, i, j, n), p = std::exp(s - row_lse);
          const C slope = x.cap > 0 ? 1 - s / x.cap * (s / x.cap) : 1;
          const C ds =
              x.scale * slope * p * (factors[j] * x.dot(&dout[qr], &x.v[kr], x.width) - delta);
          for (int64_t d = 0; d < x.width; ++d) {
            dv[kr + d] += factors[j] * p * dout[qr + d];
            dq[qr + d] += ds * x.k[kr + d];
            dk[kr + d] += ds * x.q[qr + d];
          }
        }
      }
    }
  });
  store(args.dq, dq);
  store(args.dk, dk);
  store(args.dv, dv);
  if (!args.dsinks.out.defined()) return;
  std::vector<C> sums(x.heads);
  if (args.dsinks.beta != 0) sums = load<C>(args.dsinks.out);
  for (int64_t b = 0; b < x.batch; ++b)
    for (int64_t n = 0; n < x.heads; ++n) sums[n] += dsinks[b * x.heads + n];
  store(args.dsinks.out, sums);
}

template <class C>
void normalise(const SoftmaxArgs& args, Stream& stream) {
  const std::vector<C> s = load<C>(args.s);
  const int64_t heads = args.s.size(1), queries = args.s.size(2), keys = args.s.size(3);
  const Visibility visible(args, queries, keys);
  const int64_t rows = args.s.size(0) * heads * queries;
  std::vector<C> p(s.size()), lse(rows);
  for_rows(stream, rows, 16, [&](int64_t row) {
    std::vector<C> scores(s.begin() + row * keys, s.begin() + (row + 1) * keys);
    for (C& score : scores) score *= static_cast<C>(args.scale);
    lse[row] = softmax_row(scores, visible, row / (heads * queries), row % queries);
    std::copy(scores.begin(), scores.end(), p.begin() + row * keys);
  });
  store(args.p, p);
  store(args.lse, lse);
}

template <class C>
void differentiate(const SoftmaxBackwardArgs& args, Stream& stream) {
  const std::vector<C> p = load<C>(args.p), dp = load<C>(args.dp);
  const int64_t keys = args.p.size(3), rows = args.p.size(0) * args.p.size(1) * args.p.size(2);
  std::vector<C> ds(p.size());
  for_rows(stream, rows, 16, [&](int64_t row) {
    C delta = 0;
    for (int64_t i = row * keys; i < (row + 1) * keys; ++i) delta += dp[i] * p[i];
    for (int64_t i = row * keys; i < (row + 1) * keys; ++i)
      ds[i] = static_cast<C>(args.scale) * p[i] * (dp[i] - delta);
  });
  store(args.ds, ds);
}

}  // namespace

void attention(const AttentionArgs& args, Stream& stream) {
  check(args);
  args.q.dtype() == DType::f64 ? attend<double>(args, stream) : attend<float>(args, stream);
}

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  check(args);
  args.q.dtype() == DType::f64 ? differentiate<double>(args, stream)
                               : differentiate<float>(args, stream);
}

void softmax(const SoftmaxArgs& args, Stream& stream) {
  check(args);
  args.s.dtype() == DType::f64 ? normalise<double>(args, stream) : normalise<float>(args, stream);
}

void softmax_backward(const SoftmaxBackwardArgs& args, Stream& stream) {
  check(args);
  args.p.dtype() == DType::f64 ? differentiate<double>(args, stream)
                               : differentiate<float>(args, stream);
}

}  // namespace megatron::kernels::reference
