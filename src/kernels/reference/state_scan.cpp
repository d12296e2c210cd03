#include <algorithm>
#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
struct Inputs {
  template <class Args>
  explicit Inputs(const Args& args)
      : sequences(args.x.size(0)),
        tokens(args.x.size(1)),
        heads(args.x.size(2)),
        width(args.x.size(3)),
        groups(args.b.size(2)),
        states(args.b.size(3)),
        x(load<C>(args.x)),
        dt(load<C>(args.dt)),
        b(load<C>(args.b)),
        a_log(load<C>(args.numbers.a_log)),
        dt_bias(load<C>(args.numbers.dt_bias)),
        d(load<C>(args.numbers.d)),
        min_step(static_cast<C>(args.numbers.min_step)),
        max_step(static_cast<C>(args.numbers.max_step)) {
    if constexpr (requires { args.c; }) c = load<C>(args.c);
  }

  int64_t token(int64_t sequence, int64_t t) const { return sequence * tokens + t; }
  int64_t of_dt(int64_t token, int64_t h) const { return token * heads + h; }
  int64_t of_x(int64_t token, int64_t h) const { return of_dt(token, h) * width; }
  int64_t group(int64_t h) const { return h * groups / heads; }
  int64_t of_b(int64_t token, int64_t h) const { return (token * groups + group(h)) * states; }
  // The state of a head of a sequence in a tensor [B,H,P,N]; 0 if it is undefined.
  std::vector<C> state_in(const Tensor& tensor, int64_t sequence, int64_t h) const {
    if (!tensor.defined()) return std::vector<C>(width * states);
    return load<C>(tensor.select(0, sequence).select(0, h));
  }

  C before_limits(int64_t token, int64_t h) const {
    const C z = dt[of_dt(token, h)] + dt_bias[h];
    return std::max(z, C{0}) + std::log1p(std::exp(-std::abs(z)));
  }
  C step(int64_t token, int64_t h) const {
    return std::min(std::max(before_limits(token, h), min_step), max_step);
  }
  C decay(C step, int64_t h) const { return std::exp(-step * std::exp(a_log[h])); }

  int64_t sequences, tokens, heads, width, groups, states;
  std::vector<C> x, dt, b, a_log, dt_bias, d, c;
  C min_step, max_step;
};

// True for the first tokens of documents, whose state does not depend on the tokens before.
// inherits: without starts, the only document began before the sequence.
std::vector<bool> first_tokens(const Tensor& starts, int64_t sequences, int64_t tokens,
                               bool inherits) {
  const std::vector<int64_t> start =
      starts.defined() ? load_integers(starts)
                       : std::vector<int64_t>(sequences * tokens, inherits ? -1 : 0);
  std::vector<bool> first(sequences * tokens);
  for (int64_t i = 0; i < sequences * tokens; ++i) first[i] = start[i] == i % tokens;
  return first;
}

// state = decay * state + step * x b^T.
template <class C>
void advance(std::vector<C>& state, C decay, C step, const C* x, int64_t width, const C* b,
             int64_t states) {
  for (int64_t p = 0; p < width; ++p)
    for (int64_t n = 0; n < states; ++n)
      state[p * states + n] = decay * state[p * states + n] + step * x[p] * b[n];
}

// out = state c + d x.
template <class C>
void output(const std::vector<C>& state, const C* c, int64_t states, C d, const C* x, int64_t width,
            C* out) {
  for (int64_t p = 0; p < width; ++p) {
    C sum = 0;
    for (int64_t n = 0; n < states; ++n) sum += state[p * states + n] * c[n];
    out[p] = sum + d * x[p];
  }
}

template <class C>
void scan(const StateScanArgs& args, Stream& stream) {
  const Inputs<C> in(args);
  const std::vector<bool> first =
      first_tokens(args.starts, in.sequences, in.tokens, args.initial.defined());
  std::vector<C> out(in.x.size());
  for_rows(stream, in.sequences * in.heads, 1, [&](int64_t row) {
    const int64_t h = row % in.heads;
    std::vector<C> state = in.state_in(args.initial, row / in.heads, h);
    for (int64_t t = 0; t < in.tokens; ++t) {
      const int64_t token = in.token(row / in.heads, t);
      const C step = in.step(token, h), decay = first[token] ? C{0} : in.decay(step, h);
      const C* x = &in.x[in.of_x(token, h)];
      advance(state, decay, step, x, in.width, &in.b[in.of_b(token, h)], in.states);
      output(state, &in.c[in.of_b(token, h)], in.states, in.d[h], x, in.width,
             &out[in.of_x(token, h)]);
    }
  });
  store(args.out, out);
}

// Gradients are computed in f64, as they cancel more than the outputs do.
struct Gradients {
  explicit Gradients(const Inputs<double>& in)
      : x(in.x.size()),
        dt(in.dt.size()),
        b(in.b.size()),
        c(in.c.size()),
        a_log(in.heads),
        dt_bias(in.heads),
        d(in.heads) {}
  std::vector<double> x, dt, b, c, a_log, dt_bias, d;
};

// The states of one head of one sequence, that before the first token and those after each.
std::vector<std::vector<double>> all_states(const Inputs<double>& in,
                                            const std::vector<bool>& first, const Tensor& initial,
                                            int64_t sequence, int64_t h) {
  std::vector<double> state = in.state_in(initial, sequence, h);
  std::vector<std::vector<double>> states = {state};
  for (int64_t t = 0; t < in.tokens; ++t) {
    const int64_t token = in.token(sequence, t);
    const double step = in.step(token, h), decay = first[token] ? 0.0 : in.decay(step, h);
    advance(state, decay, step, &in.x[in.of_x(token, h)], in.width, &in.b[in.of_b(token, h)],
            in.states);
    states.push_back(state);
  }
  return states;
}

// The adjoint recurrence of one head of one sequence: dstate is the gradient of the state after
// token t.
void differentiate(const StateScanBackwardArgs& args, const Inputs<double>& in,
                   const std::vector<bool>& first, int64_t sequence, int64_t h,
                   const std::vector<double>& dout, Gradients& to) {
  const std::vector<std::vector<double>> states = all_states(in, first, args.initial, sequence, h);
  const double rate = std::exp(in.a_log[h]);
  std::vector<double> dstate = in.state_in(args.dfinal, sequence, h);
  for (int64_t t = in.tokens - 1; t >= 0; --t) {
    const int64_t token = in.token(sequence, t), at = in.of_x(token, h), at_b = in.of_b(token, h);
    const double step = in.step(token, h), decay = in.decay(step, h);
    const double *x = &in.x[at], *dy = &dout[at], *b = &in.b[at_b], *c = &in.c[at_b];
    double dstep = 0, ddecay = 0;  // sums of P N terms
    for (int64_t p = 0; p < in.width; ++p) {
      double dx = in.d[h] * dy[p];
      for (int64_t n = 0; n < in.states; ++n) {
        double& ds = dstate[p * in.states + n];
        ds += dy[p] * c[n];
        to.c[at_b + n] += states[t + 1][p * in.states + n] * dy[p];
        to.b[at_b + n] += step * ds * x[p];
        dx += step * ds * b[n];
        dstep += ds * x[p] * b[n];
        if (!first[token]) ddecay += ds * states[t][p * in.states + n];
        ds = first[token] ? 0.0 : decay * ds;
      }
      to.x[at + p] = dx;
      to.d[h] += dy[p] * x[p];
    }
    dstep -= ddecay * decay * rate;
    to.a_log[h] -= static_cast<double>(ddecay * decay * step * rate);
    const double open = in.before_limits(token, h), z = in.dt[in.of_dt(token, h)] + in.dt_bias[h];
    const double slope = static_cast<double>(dstep) / (1 + std::exp(-z)),
                 dz = open < in.min_step || open > in.max_step ? 0.0 : slope;
    to.dt[in.of_dt(token, h)] = dz;
    to.dt_bias[h] += dz;
  }
}

template <class C>
struct Slots {
  explicit Slots(const ScanSlots& slots)
      : state(load<C>(slots.state)),
        x(load<C>(slots.x)),
        b(load<C>(slots.b)),
        steps(load<C>(slots.steps)) {}
  std::vector<C> state, x, b, steps;
};

// One head of one text. Tokens of its chunk that earlier pieces read are replayed.
template <class C>
class ContinuedHead {
 public:
  // position: of the first token of this piece.
  ContinuedHead(const Inputs<C>& in, int64_t block_size, const int64_t* table, int64_t position,
                int64_t h, Slots<C>& slots)
      : in_(in),
        block_size_(block_size),
        table_(table),
        h_(h),
        slots_(slots),
        state_(in.width * in.states),
        before_(state_) {
    if (position == 0) return;
    const int64_t slot = slot_of(position - 1), size = in_.width * in_.states;
    if (position >= kScanChunk) {
      const C* const from = &slots_.state[(slot * in_.heads + h_) * size];
      std::copy(from, from + size, state_.begin());
    }
    before_ = state_;
    for (int64_t row = 0; row < position % kScanChunk; ++row) {
      const int64_t at = slot * kScanChunk + row;
      const C step = slots_.steps[in_.of_dt(at, h_)];
      advance(state_, in_.decay(step, h_), step, &slots_.x[in_.of_x(at, h_)], in_.width,
              &slots_.b[in_.of_b(at, h_)], in_.states);
    }
  }

  // whole: the piece has all tokens of the chunk.
  void read_token(int64_t token, int64_t position, bool whole, C* out) {
    const int64_t row = position % kScanChunk, slot = slot_of(position);
    if (row == 0) before_ = state_;
    const C step = in_.step(token, h_);
    const C *x = &in_.x[in_.of_x(token, h_)], *b = &in_.b[in_.of_b(token, h_)];
    advance(state_, position == 0 ? C{0} : in_.decay(step, h_), step, x, in_.width, b, in_.states);
    output(state_, &in_.c[in_.of_b(token, h_)], in_.states, in_.d[h_], x, in_.width, out);
    if (!whole) {
      const int64_t at = slot * kScanChunk + row;
      std::copy(x, x + in_.width, &slots_.x[in_.of_x(at, h_)]);
      std::copy(b, b + in_.states, &slots_.b[in_.of_b(at, h_)]);
      slots_.steps[in_.of_dt(at, h_)] = step;
    }
    const std::vector<C>& kept = row == kScanChunk - 1 ? state_ : before_;
    std::copy(kept.begin(), kept.end(),
              slots_.state.begin() + (slot * in_.heads + h_) * static_cast<int64_t>(kept.size()));
  }

 private:
  int64_t slot_of(int64_t position) const { return table_[position / block_size_]; }

  const Inputs<C>& in_;
  int64_t block_size_;
  const int64_t* table_;
  int64_t h_;
  Slots<C>& slots_;
  std::vector<C> state_, before_;  // after the last token; before its chunk
};

template <class C>
void scan_continued(const StateScanContinuedArgs& args) {
  const Inputs<C> in(args);
  const std::vector<int64_t> positions = load_integers(args.positions),
                             table = load_integers(args.block_table);
  const int64_t blocks = args.block_table.size(1);
  Slots<C> slots(args.slots);
  std::vector<C> out(in.x.size());
  for (int64_t text = 0; text < in.sequences; ++text) {
    const auto begin = positions.begin() + text * in.tokens, end = begin + in.tokens;
    const auto first = std::find_if(begin, end, [](int64_t position) { return position >= 0; });
    if (first == end) continue;
    const int64_t low = *first, high = *std::max_element(begin, end) + 1;
    const auto whole = [&](int64_t position) {
      const int64_t chunk = position / kScanChunk * kScanChunk;
      return chunk >= low && chunk + kScanChunk <= high;
    };
    std::vector<ContinuedHead<C>> heads;
    for (int64_t h = 0; h < in.heads; ++h)
      heads.emplace_back(in, args.block_size, &table[text * blocks], low, h, slots);
    for (int64_t t = 0; t < in.tokens; ++t) {
      const int64_t token = in.token(text, t), position = positions[token];
      if (position < 0) continue;
      for (int64_t h = 0; h < in.heads; ++h)
        heads[h].read_token(token, position, whole(position), &out[in.of_x(token, h)]);
    }
  }
  store(args.out, out);
  store(args.slots.state, slots.state);
  store(args.slots.x, slots.x);
  store(args.slots.b, slots.b);
  store(args.slots.steps, slots.steps);
}

// The recurrence from the state 0, or the adjoint one from the gradient 0.
template <class C>
void carry(const StateCarryArgs& args) {
  const Inputs<C> in(args);
  const std::vector<bool> first = first_tokens(args.starts, in.sequences, in.tokens, true);
  std::vector<C> states, decays;
  for (int64_t sequence = 0; sequence < in.sequences; ++sequence) {
    for (int64_t h = 0; h < in.heads; ++h) {
      std::vector<C> state(in.width * in.states);
      C all = 1;
      for (int64_t i = 0; i < in.tokens; ++i) {
        const int64_t token = in.token(sequence, args.gradient ? in.tokens - 1 - i : i);
        const C step = in.step(token, h), decay = first[token] ? C{0} : in.decay(step, h);
        const C *x = &in.x[in.of_x(token, h)], *b = &in.b[in.of_b(token, h)];
        if (args.gradient) {
          advance(state, C{1}, C{1}, x, in.width, b, in.states);
          for (C& element : state) element *= decay;
        } else {
          advance(state, decay, step, x, in.width, b, in.states);
        }
        all *= decay;
      }
      states.insert(states.end(), state.begin(), state.end());
      decays.push_back(all);
    }
  }
  store(args.state, states);
  if (args.decay.defined()) store(args.decay, decays);
}

}  // namespace

void state_scan(const StateScanArgs& args, Stream& stream) {
  args.x.dtype() == DType::f64 ? scan<double>(args, stream) : scan<float>(args, stream);
}

void state_scan_backward(const StateScanBackwardArgs& args, Stream&) {
  const Inputs<double> in(args);
  const std::vector<bool> first =
      first_tokens(args.starts, in.sequences, in.tokens, args.initial.defined());
  const std::vector<double> dout = load<double>(args.dout);
  Gradients to(in);
  for (int64_t sequence = 0; sequence < in.sequences; ++sequence)
    for (int64_t h = 0; h < in.heads; ++h) differentiate(args, in, first, sequence, h, dout, to);
  store(args.dx, to.x);
  store(args.ddt, to.dt);
  store(args.db, to.b);
  store(args.dc, to.c);
  store_sum(args.da_log, std::move(to.a_log));
  store_sum(args.ddt_bias, std::move(to.dt_bias));
  store_sum(args.dd, std::move(to.d));
}

void state_carry(const StateCarryArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? carry<double>(args) : carry<float>(args);
}

void state_scan_continued(const StateScanContinuedArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? scan_continued<double>(args) : scan_continued<float>(args);
}

}  // namespace megatron::kernels::reference
