// Reverse-mode differentiation with an explicit tape per micro-batch and stage.
#pragma once

#include <any>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/metrics.h"
#include "autograd/parameter.h"
#include "autograd/saved.h"
#include "kernels/norm.h"
#include "kernels/row_tokens.h"
#include "kernels/table.h"

namespace megatron {

// A value on a tape. id < 0: it has no gradient.
struct Var {
  Tensor value;
  int id = -1;
  Var() = default;
  Var(Tensor t) : value(std::move(t)) {}  // a constant
  Var(Tensor t, int i) : value(std::move(t)), id(i) {}
  bool needs_gradient() const { return id >= 0; }
};

// A short list of named Vars passed between segments, layers and stages.
class Bundle {
 public:
  Bundle() = default;
  Bundle(std::initializer_list<std::pair<std::string, Var>> vars) : vars_(vars) {}
  const Var& operator[](std::string_view name) const;  // throws InternalError if absent
  bool contains(std::string_view name) const;
  void set(std::string_view name, Var var);
  std::span<const std::pair<std::string, Var>> all() const { return vars_; }

 private:
  std::vector<std::pair<std::string, Var>> vars_;
};

using GradSlot = kernels::Accumulate;  // {out, beta}
class Backward;

// The tokens of all rows of a batch.
struct BatchRows {
  kernels::RowTokens tokens;
  int64_t rows = 0;
};

// One recorded op. dgrad sets the gradients of the inputs; wgrad those of the weights, and may run
// later. If wgrad is null, dgrad does both. Everything that backward needs is listed in saved,
// weights and attributes; nothing is captured.
struct Node {
  std::string_view name;
  std::vector<int> inputs, outputs;  // ids of Vars; -1 for constants
  std::vector<Saved> saved;
  std::vector<Weight> weights;
  std::any attributes;
  std::shared_ptr<const BatchRows> rows;  // set by the tape
  std::any for_wgrad;                     // left by dgrad (Backward::for_wgrad)
  void (*dgrad)(Backward&) = nullptr;
  void (*wgrad)(Backward&) = nullptr;
  bool root = false;    // runs even if no gradient reaches its outputs (a loss)
  bool trains = false;  // may have trainable weights that it does not list
};

// evaluate: a forward pass without backward.
enum class Pass { forward, backward, recompute, evaluate };
std::string_view name(Pass pass);

// A named part of the model: a layer, an embedding, a head. Recompute, parameter gather and
// release, offload and profiling all act on spans.
struct Span {
  std::string name;
  std::vector<Parameter*> parameters;
  bool recompute = false;
};
class SpanListener {
 public:
  virtual ~SpanListener() = default;
  virtual void enter(const Span& span, Pass pass) = 0;
  virtual void leave(const Span& span, Pass pass) = 0;
};

enum class BackwardPart { all, input, weight };

namespace ops {
struct ExpertLowRank;
}

class Tape;
// Additions to the products of some rows with matrices, in passes without backward.
class ProductAdditions {
 public:
  virtual ~ProductAdditions() = default;
  // Adds to y = x w^T where a row of x has an addition to w.
  virtual void add(Tape& tape, const Weight& w, const Tensor& x, const Tensor& y) const = 0;
  // Calls f(first, count) for each range of rows that have one.
  using OfRows = std::function<void(int64_t first, int64_t count)>;
  virtual void for_each_range(const Weight& w, const OfRows& f) const = 0;
  // The same for the matrices of a layer's experts: calls f(first, count, added to up, added to
  // down) for ranges that cover all rows, with null where nothing is added. Does not call f if
  // nothing is added to any row.
  using OfExpertRows = std::function<void(
      int64_t first, int64_t count, const ops::ExpertLowRank* up, const ops::ExpertLowRank* down)>;
  virtual void for_each_expert_range(const Weight& up, const Weight& down,
                                     const OfExpertRows& f) const = 0;
};

class Tape {
 public:
  enum class Mode { record, infer };
  // Borrows the runtime and the listeners (which may be null or empty). table: default: the
  // device's.
  explicit Tape(Runtime& runtime, Mode mode = Mode::record, const kernels::Table* table = nullptr);

  Runtime& runtime() const { return runtime_; }
  Stream& stream() const { return runtime_.stream(); }
  const kernels::Table& kernels() const {
    return table_ != nullptr ? *table_ : megatron::kernels::table(stream());
  }
  bool recording() const { return mode_ == Mode::record; }
  // True if adapters are applied (ops/low_rank.h); false: the model computes as without them.
  bool adapts() const { return adapts_; }
  void leave_out_adapters() { adapts_ = false; }
  // In a training pass: the rows of products, for the dropout of adapters and for stochastic
  // rounding. A node's backward uses those that were set when it was recorded. Null: none.
  void set_batch_rows(std::shared_ptr<const BatchRows> rows) { batch_rows_ = std::move(rows); }
  void set_batch_rows(BatchRows rows) {
    set_batch_rows(std::make_shared<const BatchRows>(std::move(rows)));
  }
  const std::shared_ptr<const BatchRows>& batch_rows() const { return batch_rows_; }
  // The pass for which forward functions run: Pass::forward once per micro-batch, Pass::recompute
  // when backward runs them again, Pass::evaluate on a tape of Mode::infer. A model counts and
  // observes only in Pass::forward.
  Pass pass() const { return pass_; }
  Tensor empty(Shape shape, DType dtype, std::string_view label) const;  // activations arena

  void listen(GradientListener* listener) { gradient_listener_ = listener; }
  void listen(SpanListener* listener) { span_listeners_.push_back(listener); }
  void collect(Metrics* metrics) { metrics_ = metrics; }
  // Only in Mode::infer. additions: borrowed; null: none.
  void add_to_products(const ProductAdditions* additions) { additions_ = additions; }
  const ProductAdditions* additions() const { return additions_; }
  // Adds to the step's metric of that name in Pass::forward, if metrics are collected. An unknown
  // name is an InternalError.
  void report(std::string_view metric, const MetricReport& report) {
    if (pass_ == Pass::forward && metrics_ != nullptr) metrics_->add(metric, report, *this);
  }
  // Tensor in which a layer counts for a tally of the step; undefined if report() would add
  // nothing. Counts are summed over ranks, so of the ranks that see the same tokens only one
  // counts.
  Tensor tally(std::string_view metric, int64_t layer) const {
    return pass_ == Pass::forward && metrics_ != nullptr ? metrics_->tally(metric, layer)
                                                         : Tensor();
  }

  // An input whose gradient is required (the input of a pipeline stage).
  Var leaf(Tensor value);
  // Adds an op; gives each output value its Var. In infer mode, and for an op without a trainable
  // weight or an input that has a gradient, nothing is kept and the Vars are constants.
  std::vector<Var> record(Node node, std::vector<Tensor> outputs);
  Var record_one(Node node, Tensor output) {
    return record(std::move(node), {std::move(output)})[0];
  }

  // Destination of a weight's gradient: its accumulator, with beta 0 for the first write in a step
  // and 1 afterwards. out is undefined if the weight is not trainable.
  GradSlot grad_slot(const Weight& weight);
  // Signals that the weight's gradient of this micro-batch is in its slot. The engine calls it
  // after wgrad; an op that computes a weight gradient in forward (the loss) calls it itself and
  // lists no weights.
  void gradient_done(const Weight& weight);

  using SpanFunction = std::function<Bundle(Tape&, const Bundle&)>;
  // Runs forward(tape, in) as a span, recomputed if the span says so.
  Bundle span(const Span& span, const Bundle& in, const SpanFunction& forward);
  // Begin and end of a span that is not recomputed, if it is not a single function. Backward enters
  // only spans in which something was recorded.
  void begin_span(const Span& span);
  void end_span(const Span& span);

  // Runs forward(tape, in) and keeps only `in`; backward runs it again with the same bits (Chen et
  // al. 2016). Spans inside are reported to the listeners, in backward as Pass::recompute and then
  // Pass::backward. Objects that forward captures must outlive the tape, and must not be tensors
  // that nothing else keeps. remade: outputs that later nodes do not keep either; the first node
  // whose backward needs one has them recomputed.
  using Names = std::initializer_list<std::string_view>;
  Bundle recompute(const Bundle& in, const SpanFunction& forward, Names remade = {});
  // How recompute() stores its input if `remade` is empty; default: as it is.
  using Keeper = std::function<std::shared_ptr<Source>(Tape&, const Tensor&)>;
  void keep_inputs(Keeper keeper) { keeper_ = std::move(keeper); }

  // A part of a layer: recompute() if its name is among those last passed to recompute_modules()
  // (none by default); otherwise forward(*this, in).
  Bundle module(std::string_view name, const Bundle& in, const SpanFunction& forward, Names remade);
  void recompute_modules(std::span<const std::string> names) {
    modules_.assign(names.begin(), names.end());
  }
  bool recomputes(std::string_view module) const;

  // A value that forward derives from more than its inputs, such as a sum over the micro-batches so
  // far: calls make() in Pass::forward, and returns the same tensor when backward runs forward
  // again. The order of calls must be the same each time.
  Tensor once(const std::function<Tensor()>& make);

  // The gradient of a Var: set before backward (a stage's outputs), read after it (leaves).
  void set_gradient(const Var& var, Tensor gradient);
  Tensor gradient(const Var& var) const;  // undefined if it has no gradient

  // Runs the recorded nodes in reverse. BackwardPart::input leaves the weight gradients (and what
  // they need) to a later BackwardPart::weight. After BackwardPart::all or BackwardPart::weight the
  // tape is empty.
  void backward(BackwardPart part = BackwardPart::all);
  // Marks a place where backward_to_stop() ends: after everything recorded so far.
  void stop() {
    if (recording()) stops_.push_back(nodes_.size());
  }
  // Like backward(), but only to the last stop that it has not reached yet; without one, to the
  // end.
  void backward_to_stop(BackwardPart part = BackwardPart::all);
  size_t nodes() const { return nodes_.size(); }
  // Visits what the nodes from index `first` on have saved.
  void for_each_saved(size_t first, const std::function<void(Saved&)>& f);
  // Empties the tape for another micro-batch: drops the recorded nodes and the gradients, but keeps
  // the memory of its lists.
  void clear();

 private:
  friend class Backward;
  void accumulate(int id, Tensor gradient);
  void run_wgrad(Node& node, std::span<const Tensor> output_gradients, BackwardPart part);
  void run_last_node(BackwardPart part);
  class Stretch;
  Bundle record_stretch(const Span* span, const Bundle& in, const SpanFunction& forward,
                        Names remade);
  void tell(const Span& span, Pass pass, bool enters);
  void mark(const Span& span, bool end);
  bool ends_with_begin_of(const Span& span) const;
  bool differentiates(const Node& node) const;
  // Results of once(), in order, and the index of the next one to return again.
  struct Once {
    std::vector<Tensor> made;
    size_t next = 0;
  };
  // The form in which a node with the input `var` keeps a tensor of it.
  Saved saved(const Tensor& tensor, int var) const;

  Runtime& runtime_;
  Mode mode_;
  bool adapts_ = true;
  std::shared_ptr<const BatchRows> batch_rows_;
  const kernels::Table* table_;  // null: the stream's, which may change while it is watched
  GradientListener* gradient_listener_ = nullptr;
  std::vector<SpanListener*> span_listeners_;
  Metrics* metrics_ = nullptr;
  const ProductAdditions* additions_ = nullptr;
  Once* made_ = nullptr;   // during Pass::recompute: what the previous pass computed
  Once* keeps_ = nullptr;  // what is computed now; null: it is not recomputed
  Pass pass_;
  bool trains_ = false;  // in infer mode: an op had a trainable weight
  Keeper keeper_;
  std::vector<std::string> modules_;
  // Deques, like gradients_, because they grow without large blocks of memory.
  std::deque<Node> nodes_;
  std::deque<Tensor> gradients_;  // by Var id
  std::vector<bool> leaves_;      // by Var id: the gradient outlives backward
  std::vector<size_t> stops_;     // indices of nodes
  struct Deferred {
    Node node;
    std::vector<Tensor> output_gradients;
  };
  std::vector<Deferred> deferred_;
  struct Remade {
    const void* storage;
    std::weak_ptr<Source> source;  // owned by its node
    size_t which;
  };
  std::unordered_map<int, Remade> remade_;  // by Var id
};

// An op's arguments and results in its backward function.
class Backward {
 public:
  Backward(Tape& tape, Node& node, std::span<const Tensor> output_gradients,
           BackwardPart part = BackwardPart::all)
      : tape_(tape), node_(node), output_gradients_(output_gradients), part_(part) {}

  Tape& tape() { return tape_; }
  BackwardPart part() const {
    return part_;
  }  // for backward: all, or input in dgrad and weight in wgrad
  Stream& stream() { return tape_.stream(); }
  const kernels::Table& kernels() { return tape_.kernels(); }
  Tensor empty(Shape shape, DType dtype, std::string_view label) {
    return tape_.empty(shape, dtype, label);
  }

  const Tensor& gradient(size_t output) const {
    return output_gradients_[output];
  }  // undefined if it has no gradient
  const Tensor& saved(size_t index) const { return node_.saved[index].tensor(); }
  const Weight& weight(size_t index) const { return node_.weights[index]; }
  size_t weights() const { return node_.weights.size(); }
  template <class A>
  const A& attributes() const {
    return *std::any_cast<A>(&node_.attributes);
  }
  template <class A>
  A& attributes() {
    return *std::any_cast<A>(&node_.attributes);
  }

  // Where dgrad may leave something for a wgrad that follows at once; null if it runs later.
  std::any* for_wgrad() { return part_ == BackwardPart::all ? &node_.for_wgrad : nullptr; }

  bool needs(size_t input) const { return node_.inputs[input] >= 0; }
  void set(size_t input, Tensor gradient) {
    tape_.accumulate(node_.inputs[input], std::move(gradient));
  }
  GradSlot grad_slot(size_t weight) { return tape_.grad_slot(node_.weights[weight]); }

 private:
  Tape& tape_;
  Node& node_;
  std::span<const Tensor> output_gradients_;
  BackwardPart part_;
};

}  // namespace megatron
