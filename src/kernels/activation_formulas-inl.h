// Formulas of the activation kernels over X (formulas-inl.h). The back-end provides the functions:
// Function::value(x), and Function::slope(x), {value, derivative}.

template <class Function>
struct Activated {
  template <class X>
  LANES X operator()(X x) const {
    return Function::value(x);
  }
};
template <class Function>
struct ActivatedBackward {
  template <class X>
  LANES X operator()(X x, X dout) const {
    return dout * Function::slope(x).derivative;
  }
};

// Gate and up of a gated block, used unchanged
struct PlainGate {
  template <class X>
  LANES X gate(X gate) const {
    return gate;
  }
  template <class X>
  LANES X factor(X up) const {
    return up;
  }
  template <class X>
  LANES X gate_gradient(X, X gradient) const {
    return gradient;
  }
  template <class X>
  LANES X up_gradient(X, X gradient) const {
    return gradient;
  }
};
// or with a clamp and an offset. NaN is preserved.
struct ClampedGate {
  float clamp, offset;
  template <class Args>
  explicit ClampedGate(const Args& args)
      : clamp(args.clamp > 0 ? static_cast<float>(args.clamp)
                             : std::numeric_limits<float>::infinity()),
        offset(static_cast<float>(args.up_offset)) {}
  template <class X>
  LANES X gate(X gate) const {
    return select(gate > clamp, clamp, gate);
  }
  template <class X>
  LANES X factor(X up) const {
    return select(up > clamp, clamp, select(up < -clamp, -clamp, up)) + offset;
  }
  template <class X>
  LANES X gate_gradient(X gate, X gradient) const {
    return select(gate > clamp, 0.0f, gradient);
  }
  template <class X>
  LANES X up_gradient(X up, X gradient) const {
    return select(abs(up) > clamp, 0.0f, gradient);
  }
};

template <class Function, class Gate>
struct Gated {
  Gate gating;
  template <class X>
  LANES X operator()(X gate, X up) const {
    return Function::value(gating.gate(gate)) * gating.factor(up);
  }
};
template <class Function, class Gate>
struct GatedBackward {
  Gate gating;
  template <class X>
  LANES Pair<X> operator()(X gate, X up, X dout) const {
    const auto slope = Function::slope(gating.gate(gate));
    return {gating.gate_gradient(gate, dout * gating.factor(up) * slope.derivative),
            gating.up_gradient(up, dout * slope.value)};
  }
};
