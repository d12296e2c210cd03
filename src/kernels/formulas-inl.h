// Formulas of the element-wise kernels over X: vectors of f32 on the host (cpu/lanes-inl.h), float
// on
// CUDA (cuda/lanes.h). Each back-end includes this inside its namespace, the host once per
// instruction set, after it has declared
//   template <class Args> struct Formula;  constructed from the arguments of a call
//   LANES                                  attributes of functions that compute in X
//   Pair<X>                                result of a formula with two outputs, {first, second}
//   + - * / and comparisons of X, where a float is broadcast
//   select(condition, yes, no), fma(a, b, c) = a b + c and one_less(a, b) = 1 - a b, rounded once;
//   abs, sigmoid, tanh
// Operations are evaluated exactly as written.

template <>
struct Formula<ScaleArgs> {
  float factor;
  explicit Formula(const ScaleArgs& args) : factor(static_cast<float>(args.factor)) {}
  template <class X>
  LANES X operator()(X x) const {
    return x * factor;
  }
};

template <>
struct Formula<SoftCapArgs> {
  float cap, inverse;
  explicit Formula(const SoftCapArgs& args) : cap(static_cast<float>(args.cap)), inverse(1 / cap) {}
  template <class X>
  LANES X operator()(X x) const {
    return cap * tanh(x * inverse);
  }
};
template <>
struct Formula<SoftCapBackwardArgs> {
  float inverse;
  explicit Formula(const SoftCapBackwardArgs& args) : inverse(1 / static_cast<float>(args.cap)) {}
  template <class X>
  LANES X operator()(X out, X dout) const {
    const X t = out * inverse;
    return dout * one_less(t, t);
  }
};

// A NaN compares false and is preserved.
template <>
struct Formula<ClipArgs> {
  float limit;
  explicit Formula(const ClipArgs& args) : limit(static_cast<float>(args.limit)) {}
  template <class X>
  LANES X operator()(X x) const {
    return select(x > limit, limit, select(x < -limit, -limit, x));
  }
};
template <>
struct Formula<ClipBackwardArgs> {
  float limit;
  explicit Formula(const ClipBackwardArgs& args) : limit(static_cast<float>(args.limit)) {}
  template <class X>
  LANES X operator()(X x, X dout) const {
    return select(abs(x) <= limit, dout, 0.0f);
  }
};

template <>
struct Formula<GateArgs> {
  explicit Formula(const GateArgs&) {}
  template <class X>
  LANES X operator()(X x, X gate) const {
    return x * sigmoid(gate);
  }
};
template <>
struct Formula<GateBackwardArgs> {
  explicit Formula(const GateBackwardArgs&) {}
  template <class X>
  LANES Pair<X> operator()(X x, X gate, X dout) const {
    const X s = sigmoid(gate), dx = dout * s;
    return {dx, dx * x * (1.0f - s)};
  }
};

template <>
struct Formula<SquaredErrorArgs> {
  explicit Formula(const SquaredErrorArgs&) {}
  template <class X>
  LANES Pair<X> operator()(X x, X target, X weight) const {
    const X error = x - target, of_none = 0.0f;
    const auto counts = weight != 0.0f;
    return {select(counts, error * error, of_none), select(counts, 2.0f * weight * error, of_none)};
  }
};
