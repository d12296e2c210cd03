#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/elements.h"
#include "kernels/reference/keep.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

// The keys that query i of a sample attends to, and those that dropout keeps.
class Visibility {
 public:
  template <class Args>
  Visibility(const Args& args, int64_t queries, int64_t keys)
      : causal_(args.causal),
        window_(args.window),
        chunk_(args.chunk),
        queries_(queries),
        keys_(keys),
        q_(load_integers(args.q_positions)),
        k_(load_integers(args.k_positions)),
        begins_(load_integers(args.window_start)),
        ends_(load_integers(args.window_end)) {}

  int64_t query(int64_t b, int64_t i) const { return q_.empty() ? i : q_[b * queries_ + i]; }
  int64_t key(int64_t b, int64_t j) const { return k_.empty() ? j : k_[b * keys_ + j]; }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    const int64_t at = key(b, j), position = query(b, i);
    return (causal_ ? at <= position : window_ == 0 || at < position + window_) &&
           (window_ == 0 || at > position - window_) &&
           (chunk_ == 0 || at >= position - position % chunk_) &&
           (begins_.empty() || at >= begins_[b * queries_ + i]) &&
           (ends_.empty() || at <= ends_[b * queries_ + i]);
  }
  // The keys that query i of sample b sees, in ascending order.
  void list(int64_t b, int64_t i, std::vector<int64_t>& seen) const {
    seen.clear();
    for (int64_t j = 0; j < keys_; ++j)
      if (sees(b, i, j)) seen.push_back(j);
  }

 private:
  bool causal_;
  int64_t window_, chunk_, queries_, keys_;
  std::vector<int64_t> q_, k_, begins_, ends_;
};

// The score of a query-key product, and its derivative by the product.
template <class C>
struct Score {
  C scale, cap;  // cap 0: uncapped
  C operator()(C product) const {
    return cap == 0 ? scale * product : cap * std::tanh(scale * product / cap);
  }
  C slope(C score) const { return cap == 0 ? scale : scale * (1 - (score / cap) * (score / cap)); }
};
template <class C, class Args>
Score<C> score_of(const Args& args) {
  return {static_cast<C>(args.scale), static_cast<C>(args.soft_cap)};
}

// Replaces the scores of the keys that a query sees by probabilities. Returns the log sum exp of
// them and of the sink (-infinity: none), -infinity if there are neither.
template <class C>
C softmax_row(std::vector<C>& scores, C sink) {
  constexpr C kHidden = -std::numeric_limits<C>::infinity();
  C maximum = sink, sum = 0;
  for (const C score : scores) maximum = std::max(maximum, score);
  if (maximum == kHidden) {
    std::fill(scores.begin(), scores.end(), C{0});
    return kHidden;
  }
  for (C& score : scores) sum += score = std::exp(score - maximum);
  if (sink != kHidden) sum += std::exp(sink - maximum);
  for (C& score : scores) score /= sum;
  return maximum + std::log(sum);
}

template <class C>
C sink_of(const std::vector<C>& sinks, int64_t head) {
  return sinks.empty() ? -std::numeric_limits<C>::infinity() : sinks[head];
}

// dsinks of rows [B,N,T] with their deltas.
template <class C>
void differentiate_sinks(const Tensor& sinks_tensor, const Accumulate& to,
                         const std::vector<C>& lse, const std::vector<C>& delta, int64_t queries) {
  if (!to.out.defined()) return;
  const std::vector<C> sinks = load<C>(sinks_tensor);
  std::vector<C> gradient(sinks.size());
  for (size_t row = 0; row < delta.size(); ++row) {
    const size_t n = row / static_cast<size_t>(queries) % sinks.size();
    if (sinks[n] == -std::numeric_limits<C>::infinity()) continue;
    gradient[n] -= std::exp(sinks[n] - lse[row]) * delta[row];
  }
  store_sum(to, std::move(gradient));
}

// Rows of dense copies of q, k and v, and the dropout factors.
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
        value_width(args.v.size(3)),
        keys(args.keys()),
        kv_heads(args.k.size(2)),
        sinks(load<C>(args.sinks)),
        bias(load<C>(args.bias)),
        score(score_of<C>(args)),
        visible(args, queries, keys),
        mask(args.dropout),
        samples(load_integers(args.dropout.rows.sample_ids)) {
    if constexpr (requires { args.block_table; }) {
      table = load_integers(args.block_table);
      page = args.k.size(1);
    }
  }

  // Indices of a query's head, in units of rows of q or out, and of a key's, of k or v.
  int64_t query_row(int64_t b, int64_t i, int64_t n) const { return (b * queries + i) * heads + n; }
  int64_t key_row(int64_t b, int64_t j, int64_t n) const {
    const int64_t row =
        table.empty() ? b * keys + j : table[b * (keys / page) + j / page] * page + j % page;
    return row * kv_heads + n / (heads / kv_heads);
  }
  static C dot(const C* a, const C* b, int64_t n) {
    C sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  }
  // Index of the bias of a query, key and head.
  int64_t bias_index(int64_t b, int64_t i, int64_t j, int64_t n) const {
    const int64_t radius = static_cast<int64_t>(bias.size()) / heads / 2;
    const int64_t distance = visible.key(b, j) - visible.query(b, i);
    return (radius + std::clamp(distance, -radius, radius)) * heads + n;
  }
  C bias_of(int64_t b, int64_t i, int64_t j, int64_t n) const {
    return bias.empty() ? 0 : bias[bias_index(b, i, j, n)];
  }
  // keep / (1 - p) for the probabilities of the keys that one query sees.
  void dropout_row(int64_t b, int64_t i, int64_t n, const std::vector<int64_t>& seen,
                   std::vector<C>& factors) const {
    factors.assign(seen.size(), C{1});
    if (mask.p == 0) return;
    const Keep keep(mask, mix_stream(mask.stream, static_cast<uint64_t>(mask.first_head + n)));
    for (size_t s = 0; s < seen.size(); ++s) {
      factors[s] = keep(samples[b], visible.query(b, i), visible.key(b, seen[s]))
                       ? 1 / (1 - static_cast<C>(mask.p))
                       : 0;
    }
  }

  std::vector<C> q, k, v;
  int64_t batch, queries, heads, width, value_width, keys, kv_heads;
  std::vector<C> sinks, bias;  // bias [2R+1,N]
  Score<C> score;
  Visibility visible;
  const DropoutArgs::Mask& mask;
  std::vector<int64_t> samples;
  std::vector<int64_t> table;  // page table of the keys
  int64_t page = 1;
};

template <class C>
void attend(const AttentionArgs& args, Stream& stream) {
  const Heads<C> x(args);
  std::vector<C> out(args.out.elements()), lse(args.lse.elements());
  for_rows(stream, x.batch * x.heads * x.queries, 16, [&](int64_t row) {
    const int64_t b = row / (x.heads * x.queries), n = row / x.queries % x.heads,
                  i = row % x.queries;
    std::vector<int64_t> seen;
    x.visible.list(b, i, seen);
    std::vector<C> p(seen.size()), factors(seen.size());
    for (size_t s = 0; s < seen.size(); ++s)
      p[s] = x.score(x.dot(&x.q[x.query_row(b, i, n) * x.width],
                           &x.k[x.key_row(b, seen[s], n) * x.width], x.width)) +
             x.bias_of(b, i, seen[s], n);
    lse[row] = softmax_row(p, sink_of(x.sinks, n));
    x.dropout_row(b, i, n, seen, factors);
    for (size_t s = 0; s < seen.size(); ++s) {
      const int64_t j = seen[s];
      const C weight = p[s] * factors[s];
      for (int64_t d = 0; d < x.value_width; ++d)
        out[x.query_row(b, i, n) * x.value_width + d] +=
            weight * x.v[x.key_row(b, j, n) * x.value_width + d];
    }
  });
  store(args.out, out);
  store(args.lse, lse);
}

template <class C>
std::vector<C> sum_of_samples(const std::vector<C>& parts, size_t size) {
  std::vector<C> sum(size);
  for (size_t i = 0; i < parts.size(); ++i) sum[i % size] += parts[i];
  return sum;
}

// With p = exp(s - lse), f the dropout factors and delta = dout . out:
//   dv += f p dout,  dbias += p (f dout . v - delta),  ds = dbias (ds/dproduct),
//   dq += ds k,      dk += ds q.
template <class C>
void differentiate(const AttentionBackwardArgs& args, Stream& stream) {
  const Heads<C> x(args);
  const std::vector<C> out = load<C>(args.out), lse = load<C>(args.lse), dout = load<C>(args.dout);
  std::vector<C> dq(x.q.size()), dk(x.k.size()), dv(x.v.size()), deltas(lse.size()),
      dbias(args.dbias.out.defined() ? x.batch * x.bias.size() : 0);  // by sample
  const int64_t group = x.heads / x.kv_heads;
  for_rows(stream, x.batch * x.kv_heads, 1, [&](int64_t task) {
    const int64_t b = task / x.kv_heads, first = task % x.kv_heads * group;
    std::vector<int64_t> seen;
    std::vector<C> factors;
    for (int64_t n = first; n < first + group; ++n) {
      for (int64_t i = 0; i < x.queries; ++i) {
        const int64_t qr = x.query_row(b, i, n) * x.width,
                      outr = x.query_row(b, i, n) * x.value_width;
        const int64_t row = (b * x.heads + n) * x.queries + i;
        const C delta = deltas[row] = x.dot(&dout[outr], &out[outr], x.value_width);
        x.visible.list(b, i, seen);
        x.dropout_row(b, i, n, seen, factors);
        for (size_t s = 0; s < seen.size(); ++s) {
          const int64_t j = seen[s];
          const int64_t kr = x.key_row(b, j, n) * x.width, vr = x.key_row(b, j, n) * x.value_width;
          const C score = x.score(x.dot(&x.q[qr], &x.k[kr], x.width));
          const C p = std::exp(score + x.bias_of(b, i, j, n) - lse[row]);
          const C dp = x.dot(&dout[outr], &x.v[vr], x.value_width);
          const C dscore = p * (factors[s] * dp - delta), ds = x.score.slope(score) * dscore;
          if (!dbias.empty()) dbias[b * x.bias.size() + x.bias_index(b, i, j, n)] += dscore;
          for (int64_t d = 0; d < x.value_width; ++d) dv[vr + d] += factors[s] * p * dout[outr + d];
          for (int64_t d = 0; d < x.width; ++d) {
            dq[qr + d] += ds * x.k[kr + d];
            dk[kr + d] += ds * x.q[qr + d];
          }
        }
      }
    }
  });
  const float beta_q = static_cast<float>(args.beta_q), beta_kv = static_cast<float>(args.beta_kv);
  store_sum<C>({args.dq, beta_q}, std::move(dq));
  store_sum<C>({args.dk, beta_kv}, std::move(dk));
  store_sum<C>({args.dv, beta_kv}, std::move(dv));
  differentiate_sinks(args.sinks, args.dsinks, lse, deltas, x.queries);
  if (args.dbias.out.defined()) store_sum(args.dbias, sum_of_samples(dbias, x.bias.size()));
}

}  // namespace

void attention(const AttentionArgs& args, Stream& stream) {
  args.q.dtype() == DType::f64 ? attend<double>(args, stream) : attend<float>(args, stream);
}

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  args.q.dtype() == DType::f64 ? differentiate<double>(args, stream)
                               : differentiate<float>(args, stream);
}

}  // namespace megatron::kernels::reference
