// Reverse-mode differentiation: one explicit tape a micro-batch and stage.
#pragma once

#include <any>
#include <deque>
#include <functional>
#include <initializer_list>
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
#include "kernels/table.h"

namespace megatron {

// A value on a tape. id < 0: no gradient flows to it.
struct Var {
  Tensor value;
  int id = -1;
  Var() = default;
  Var(Tensor t) : value(std::move(t)) {}  // a constant
  Var(Tensor t, int i) : value(std::move(t)), id(i) {}
  bool needs_gradient() const { return id >= 0; }
};

// A short list of named Vars: what flows between segments, layers and stages.
class Bundle {
 public:
  Bundle() = default;
  Bundle(std::initializer_list<std::pair<std::string, Var>> vars) : vars_(vars) {}
  const Var& operator[](std::string_view name) const;  // throws InternalError when absent
  bool contains(std::string_view name) const;
  void set(std::string_view name, Var var);
  std::span<const std::pair<std::string, Var>> all() const { return vars_; }

 private:
  std::vector<std::pair<std::string, Var>> vars_;
};

using GradSlot = kernels::Accumulate;  // {out, beta}
class Backward;

// One recorded op. dgrad sets the gradients of the inputs; wgrad those of the weights, and may run
// later. Where wgrad is null, dgrad does both. What backward needs is listed in saved, weights and
// attributes; nothing is captured.
struct Node {
  std::string_view name;
  std::vector<int> inputs, outputs;  // ids of Vars; -1 for constants
  std::vector<Saved> saved;
  std::vector<Weight> weights;
  std::any attributes;
  void (*dgrad)(Backward&) = nullptr;
  void (*wgrad)(Backward&) = nullptr;
  bool root = false;  // runs although no gradient reached its outputs (a loss)
};

// evaluate: forward that no backward follows.
enum class Pass { forward, backward, recompute, evaluate };
std::string_view name(Pass pass);

// A named stretch of the model: a layer, an embedding, a head. The one place where recompute,
// parameter gather and free, offload and profiling listen.
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

class Tape {
 public:
  enum class Mode { record, infer };
  // Borrowed: the runtime, and the listeners (may be null / empty). table: the device's by default.
  explicit Tape(Runtime& runtime, Mode mode = Mode::record, const kernels::Table* table = nullptr);

  Runtime& runtime() const { return runtime_; }
  Stream& stream() const { return runtime_.stream(); }
  const kernels::Table& kernels() const {
    return table_ != nullptr ? *table_ : megatron::kernels::table(stream());
  }
  bool recording() const { return mode_ == Mode::record; }
  // What forward functions run for: Pass::forward once a micro-batch, Pass::recompute where backward
  // runs them again, Pass::evaluate on a tape of Mode::infer. What a model counts or observes, it
  // does in Pass::forward only.
  Pass pass() const { return pass_; }
  Tensor empty(Shape shape, DType dtype, std::string_view label) const;  // activations arena

  void listen(GradientListener* listener) { gradient_listener_ = listener; }
  void listen(SpanListener* listener) { span_listeners_.push_back(listener); }
  void collect(Metrics* metrics) { metrics_ = metrics; }
  // Adds to the step's metric of that name, in Pass::forward and where somebody collects them. A
  // name that is not among those collected is an InternalError.
  void report(std::string_view metric, const MetricReport& report) {
    if (pass_ == Pass::forward && metrics_ != nullptr) metrics_->add(metric, report, *this);
  }
  // Where a layer counts what the step has a tally of; undefined where report() would add nothing. The ranks' counts
  // are added up: of ranks that see the same tokens, one counts.
  Tensor tally(std::string_view metric, int64_t layer) const {
    return pass_ == Pass::forward && metrics_ != nullptr ? metrics_->tally(metric, layer)
                                                         : Tensor();
  }

  // An input whose gradient is wanted (the input of a pipeline stage).
  Var leaf(Tensor value);
  // Adds an op; gives each output value its Var. In infer mode nothing is kept and the Vars are
  // constants.
  std::vector<Var> record(Node node, std::vector<Tensor> outputs);
  Var record_one(Node node, Tensor output) {
    return record(std::move(node), {std::move(output)})[0];
  }

  // Where a weight's gradient goes now: its accumulator, beta 0 the first time in a step and 1
  // after. Not trainable: out undefined.
  GradSlot grad_slot(const Weight& weight);
  // The weight's gradient of this micro-batch is in its slot. The engine calls it after wgrad; an
  // op that forms a weight gradient in forward (the loss) calls it itself and lists no weights.
  void gradient_done(const Weight& weight);

  using SpanFunction = std::function<Bundle(Tape&, const Bundle&)>;
  // Runs forward(tape, in) as a span, recomputed where the span says so.
  Bundle span(const Span& span, const Bundle& in, const SpanFunction& forward);
  // The beginning and the end of a span that is not recomputed, where it is not one function.
  void begin_span(const Span& span);
  void end_span(const Span& span);

  // Runs forward(tape, in) and keeps nothing inside but `in`; backward runs it again, bit for bit
  // alike (Chen et al. 2016). Spans inside are reported to the listeners, in backward as
  // Pass::recompute and then Pass::backward. What forward captures must outlive the tape, and must
  // not be a tensor that nobody else keeps. remade: outputs that later nodes do not keep, either;
  // the first whose backward needs one has them computed again.
  using Names = std::initializer_list<std::string_view>;
  Bundle recompute(const Bundle& in, const SpanFunction& forward, Names remade = {});
  // How recompute() keeps its input where nothing is remade; by default, as it is.
  using Keeper = std::function<std::shared_ptr<Source>(Tape&, const Tensor&)>;
  void keep_inputs(Keeper keeper) { keeper_ = std::move(keeper); }

  // A part of a layer: recompute() where its name is among those that recompute_modules() was given
  // last, by default none; else forward(*this, in).
  Bundle module(std::string_view name, const Bundle& in, const SpanFunction& forward, Names remade);
  void recompute_modules(std::span<const std::string> names) {
    modules_.assign(names.begin(), names.end());
  }
  bool recomputes(std::string_view module) const;

  // What forward makes of more than its inputs, such as a sum over the micro-batches so far: make() in
  // Pass::forward, and the same tensor again where backward runs forward again. Calls come in the same
  // order each time.
  Tensor once(const std::function<Tensor()>& make);

  // The gradient of a Var: set before backward (a stage's outputs), read after it (leaves).
  void set_gradient(const Var& var, Tensor gradient);
  Tensor gradient(const Var& var) const;  // undefined when none arrived

  // Runs the recorded nodes in reverse. BackwardPart::input leaves the weight gradients (and what they
  // need) to a later BackwardPart::weight. After BackwardPart::all or BackwardPart::weight the tape is empty.
  void backward(BackwardPart part = BackwardPart::all);
  // A place where backward_to_stop() ends: after what has been recorded so far.
  void stop() {
    if (recording()) stops_.push_back(nodes_.size());
  }
  // As backward(), but no further than to the last stop that it has not reached yet; without one, to the end.
  void backward_to_stop(BackwardPart part = BackwardPart::all);
  size_t nodes() const { return nodes_.size(); }
  // Of the nodes recorded since there were `first`.
  void for_each_saved(size_t first, const std::function<void(Saved&)>& f);
  // Empty, for another micro-batch: drops what is recorded and the gradients, keeps the memory of
  // its lists.
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
  // Results of once(), in order, and the next one that is asked for again.
  struct Once {
    std::vector<Tensor> made;
    size_t next = 0;
  };
  // As a node that takes `var` keeps a tensor of it.
  Saved saved(const Tensor& tensor, int var) const;

  Runtime& runtime_;
  Mode mode_;
  const kernels::Table* table_;  // null: the stream's, which may change while it is watched
  GradientListener* gradient_listener_ = nullptr;
  std::vector<SpanListener*> span_listeners_;
  Metrics* metrics_ = nullptr;
  Once* made_ = nullptr;   // in Pass::recompute: by the pass before
  Once* keeps_ = nullptr;  // what is made; null: it is not made again
  Pass pass_;
  Keeper keeper_;
  std::vector<std::string> modules_;
  std::deque<Node> nodes_;        // and gradients_: grow without large blocks of memory
  std::deque<Tensor> gradients_;  // by Var id
  std::vector<bool> leaves_;      // by Var id: the gradient outlives backward
  std::vector<size_t> stops_;     // numbers of nodes
  struct Deferred {
    Node node;
    std::vector<Tensor> output_gradients;
  };
  std::vector<Deferred> deferred_;
  struct Remade {
    const void* storage;
    std::weak_ptr<Source> source;  // its node has it
    size_t which;
  };
  std::unordered_map<int, Remade> remade_;  // by Var id
};

// What a backward function of an op sees.
class Backward {
 public:
  Backward(Tape& tape, Node& node, std::span<const Tensor> output_gradients,
           BackwardPart part = BackwardPart::all)
      : tape_(tape), node_(node), output_gradients_(output_gradients), part_(part) {}

  Tape& tape() { return tape_; }
  BackwardPart part() const {
    return part_;
  }  // of backward: all, or input in dgrad and weight in wgrad
  Stream& stream() { return tape_.stream(); }
  const kernels::Table& kernels() { return tape_.kernels(); }
  Tensor empty(Shape shape, DType dtype, std::string_view label) {
    return tape_.empty(shape, dtype, label);
  }

  const Tensor& gradient(size_t output) const {
    return output_gradients_[output];
  }  // undefined: none arrived
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
