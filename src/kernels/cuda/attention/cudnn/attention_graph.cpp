#include "kernels/cuda/attention/cudnn/attention_graph.h"

namespace megatron::kernels::cuda::cudnn {
namespace {

class AttentionGraph {
 public:
  explicit AttentionGraph(const AttentionShape& shape)
      : s_(shape),
        graph_(std::make_unique<Graph>()),
        scores_{s_.batch, s_.heads, s_.queries, s_.keys},
        rows_{s_.batch, s_.heads, s_.queries, 1} {}

  std::unique_ptr<Graph> forward() {
    const Value &q = queries(kQ, s_.q, s_.width), &k = transposed(kK, s_.k, s_.width),
                &v = keys(kV, s_.v, s_.value_width);
    const Value& seen = mask(scaled(score(q, k)));
    const Value& most = graph_->reduce(CUDNN_REDUCE_TENSOR_MAX, seen, row());
    const Value& shifted = graph_->binary(CUDNN_POINTWISE_SUB, seen, most, graph_->inner(seen));
    const Value& e = graph_->unary(CUDNN_POINTWISE_EXP, shifted, graph_->inner(seen));
    const Value& sum = graph_->reduce(CUDNN_REDUCE_TENSOR_ADD, e, row());
    const Value& log = graph_->unary(CUDNN_POINTWISE_LOG, sum, row());
    graph_->binary(CUDNN_POINTWISE_ADD, most, log, stored_row(kLse));
    const Value& p = graph_->binary(CUDNN_POINTWISE_DIV, e, sum, graph_->inner(e, s_.type));
    graph_->matmul(p, v, queries(kOut, s_.out, s_.value_width));
    return std::move(graph_);
  }

  std::unique_ptr<Graph> backward(bool any_order) {
    const Value &q = queries(kQ, s_.q, s_.width), &k = transposed(kK, s_.k, s_.width),
                &v = transposed(kV, s_.v, s_.value_width);
    const Value &out = queries(kOut, s_.out, s_.value_width),
                &dout = queries(kDout, s_.dout, s_.value_width);
    const Value &lse = stored_row(kLse), &delta = deltas(dout, out);
    const Value& shifted = [&]() -> const Value& {
      const Value& s = scaled(score(q, k));
      return graph_->binary(CUDNN_POINTWISE_SUB, s, lse, graph_->inner(s));
    }();
    const Value& seen = mask(shifted);
    const Value& p = graph_->unary(CUDNN_POINTWISE_EXP, seen, graph_->inner(seen));
    key_gradient(turned(p), dout, keys(kDv, s_.dv, s_.value_width));

    const Value& dp = graph_->matmul(dout, v, score_like());
    const Value& less = graph_->binary(CUDNN_POINTWISE_SUB, dp, delta, graph_->inner(dp));
    const Value& weighted = graph_->binary(CUDNN_POINTWISE_MUL, less, p, graph_->inner(dp));
    const Value& ds =
        graph_->binary(CUDNN_POINTWISE_MUL, weighted, scale(), graph_->inner(dp, s_.type));
    key_gradient(turned(ds), q, keys(kDk, s_.dk, s_.width));
    const Sizes sizes{s_.batch, s_.kv_heads, s_.keys, s_.width};
    const Value& untransposed = graph_->reshape(k, graph_->inner(sizes, as_keys(s_.k), s_.type));
    const Value& dq = queries(kDq, s_.dq, s_.width);
    if (any_order) {
      const Value& sums = graph_->sums(kDqSums, {s_.batch, s_.heads, s_.queries, s_.width});
      graph_->unary(CUDNN_POINTWISE_IDENTITY, graph_->matmul(ds, untransposed, sums), dq);
    } else {
      graph_->matmul(ds, untransposed, dq);
    }
    return std::move(graph_);
  }

 private:
  static Sizes as_keys(const Strides& t) { return {t.sample, t.head, t.token, 1}; }

  const Value& queries(int64_t id, const Strides& t, int64_t width) {
    return graph_->stored(id, {s_.batch, s_.heads, s_.queries, width}, as_keys(t), s_.type);
  }
  const Value& keys(int64_t id, const Strides& t, int64_t width) {
    return graph_->stored(id, {s_.batch, s_.kv_heads, s_.keys, width}, as_keys(t), s_.type);
  }
  const Value& transposed(int64_t id, const Strides& t, int64_t width) {
    return graph_->stored(id, {s_.batch, s_.kv_heads, width, s_.keys},
                          {t.sample, t.head, 1, t.token}, s_.type);
  }
  const Value& stored_row(int64_t id) {
    return graph_->stored(id, rows_, dense(rows_), CUDNN_DATA_FLOAT);
  }
  const Value& row() { return graph_->inner(rows_, dense(rows_), CUDNN_DATA_FLOAT); }
  const Value& score_like() { return graph_->inner(scores_, dense(scores_), CUDNN_DATA_FLOAT); }

  const Value& scale() {
    if (scale_ == nullptr) scale_ = &graph_->scalar(kScale);
    return *scale_;
  }
  const Value& score(const Value& q, const Value& k) { return graph_->matmul(q, k, score_like()); }
  const Value& scaled(const Value& s) {
    return graph_->binary(CUDNN_POINTWISE_MUL, s, scale(), graph_->inner(s));
  }

  // Query i sees keys up to i.
  const Value& mask(const Value& s) {
    if (!s_.causal) return s;
    const Value &query = graph_->index(s, 2), &key = graph_->index(s, 3);
    const Value& sees = graph_->binary(CUDNN_POINTWISE_CMP_GE, query, key,
                                       graph_->inner(s, CUDNN_DATA_BOOLEAN), CUDNN_DATA_BOOLEAN);
    return graph_->select(sees, s, graph_->scalar(kHidden), graph_->inner(s));
  }

  // Sum over dout * out for each query.
  const Value& deltas(const Value& dout, const Value& out) {
    const Value& products = graph_->inner(out.sizes, dense(out.sizes), CUDNN_DATA_FLOAT);
    graph_->binary(CUDNN_POINTWISE_MUL, dout, out, products);
    const Value& sums = graph_->reduce(CUDNN_REDUCE_TENSOR_ADD, products, row());
    return graph_->binary(CUDNN_POINTWISE_MUL, sums, graph_->scalar(kOne), stored_row(kDelta));
  }

  // Scores transposed to [keys, queries] and rounded to the storage type.
  const Value& turned(const Value& scores) {
    const int64_t of_head = s_.queries * s_.keys;
    const Sizes sizes{s_.batch, s_.heads, s_.keys, s_.queries};
    return graph_->reshape(
        scores, graph_->inner(sizes, {s_.heads * of_head, of_head, 1, s_.keys}, s_.type));
  }

  // to = scores^T x, summed over the query heads of each key head.
  void key_gradient(const Value& scores, const Value& x, const Value& to) {
    if (s_.heads == s_.kv_heads) {
      graph_->matmul(scores, x, to);
      return;
    }
    const Sizes sizes{s_.batch, s_.heads, s_.keys, x.sizes[3]};
    const Value& each = graph_->matmul(scores, x, graph_->inner(sizes, dense(sizes), s_.type));
    graph_->reduce(CUDNN_REDUCE_TENSOR_ADD, each, to);
  }

  const AttentionShape& s_;
  std::unique_ptr<Graph> graph_;
  Sizes scores_, rows_;
  const Value* scale_ = nullptr;
};

}  // namespace

std::unique_ptr<Graph> attention_graph(const AttentionShape& shape) {
  return AttentionGraph(shape).forward();
}

std::unique_ptr<Graph> attention_backward_graph(const AttentionShape& shape) {
  return AttentionGraph(shape).backward(false);
}

std::unique_ptr<Graph> attention_backward_graph_in_any_order(const AttentionShape& shape) {
  return AttentionGraph(shape).backward(true);
}

}  // namespace megatron::kernels::cuda::cudnn
