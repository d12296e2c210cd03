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
        queries_(queries),
        keys_(keys),
        q_(load_integers(args.q_positions)),
        k_(load_integers(args.k_positions)),
        begins_(load_integers(args.window_start)) {}

  int64_t query(int64_t b, int64_t i) const { return q_.empty() ? i : q_[b * queries_ + i]; }
  int64_t key(int64_t b, int64_t j) const { return k_.empty() ? j : k_[b * keys_ + j]; }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    return (!causal_ || key(b, j) <= query(b, i)) &&
           (begins_.empty() || key(b, j) >= begins_[b * queries_ + i]);
  }

 private:
  bool causal_;
  int64_t queries_, keys_;
  std::vector<int64_t> q_, k_, begins_;
};

// Row of scaled scores -> probabilities in place, 0 where hidden; returns log sum exp, -infinity
// when all is hidden.
template <class C>
C softmax_row(std::vector<C>& scores, const Visibility& visible, int64_t b, int64_t i) {
  constexpr C kHidden = -std::numeric_limits<C>::infinity();
  C maximum = kHidden, sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (!visible.sees(b, i, static_cast<int64_t>(j))) scores[j] = kHidden;
    maximum = std::max(maximum, scores[j]);
  }
  if (maximum == kHidden) {
    std::fill(scores.begin(), scores.end(), C{0});
    return kHidden;
  }
  for (C& score : scores) sum += score = std::exp(score - maximum);
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
  C scale;
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
    for (int64_t j = 0; j < x.keys; ++j) {
      p[j] = x.scale * x.dot(&x.q[x.query_row(b, i, n)], &x.k[x.key_row(b, j, n)], x.width);
    }
    lse[row] = softmax_row(p, x.visible, b, i);
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
//   dv += f p dout,  ds = p (f dout . v - delta),  dq += scale ds k,  dk += scale ds q.
template <class C>
void differentiate(const AttentionBackwardArgs& args, Stream& stream) {
  const Heads<C> x(args);
  const std::vector<C> out = load<C>(args.out), lse = load<C>(args.lse), dout = load<C>(args.dout);
  std::vector<C> dq(x.q.size()), dk(x.k.size()), dv(x.v.size());
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
        for (int64_t j = 0; j < x.keys; ++j) {
          if (!x.visible.sees(b, i, j)) continue;
          const int64_t kr = x.key_row(b, j, n);
          const C p = std::exp(x.scale * x.dot(&x.q[qr], &x.k[kr], x.width) - row_lse);
          const C ds = x.scale * p * (factors[j] * x.dot(&dout[qr], &x.v[kr], x.width) - delta);
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
