#include "kernels/cpu/kernels.h"
#include "kernels/cpu/state_scan/scan.h"

namespace megatron::kernels::cpu {
namespace {

// What a task adds up over its heads in one chunk, transposed: gradients of C and B [N][kScanChunk]
// but for what comes from G, and of G^T.
template <class N>
struct GroupSums {
  GroupSums(const ScanSizes& s, std::byte* begin) {
    Pieces pieces(begin);
    dc = pieces.take<N>(s.states * kScanChunk);
    db = pieces.take<N>(s.states * kScanChunk);
    dg = pieces.take<N>(kScanChunk * kScanChunk);
    count = pieces.bytes() / static_cast<int64_t>(sizeof(N));
  }
  int64_t count;  // of all elements, with those between
  N *dc, *db, *dg;
};

// Memory of one thread: for the heads of a task the gradients of their states, and their states
// before each chunk as first factors; and the chunk of one head in the forms that the products
// need.
template <class N>
struct GradientWork {
  GradientWork(const ScanSizes& s, bool initial, std::byte* begin) {
    Pieces pieces(begin);
    const int64_t tokens = kScanChunk, across = 2 * s.words(s.width) * kPanel,
                  rows = s.states * s.words(s.columns);
    states = pieces.take<N>(s.block_heads * s.state_size());
    history = pieces.take<Word<N>>(s.block_heads *
                                   std::max<int64_t>(0, s.chunks() - (initial ? 0 : 1)) * rows);
    state_rows = pieces.take<Word<N>>(rows);
    pairs = pieces.take<Word<N>>(is_paired(s.kind) ? s.columns / kPanel * s.state_panel() : 0);
    x_rows = pieces.take<Word<N>>(tokens * s.words(s.width));
    x_across = pieces.take<Word<N>>(across);
    dy_across = pieces.take<Word<N>>(across);
    panels = pieces.take<Word<N>>(s.chunk_panels());
    masked = pieces.take<Word<N>>(tokens * s.words(tokens));
    dm = pieces.take<N>(tokens * tokens);
    inside = pieces.take<N>(tokens * s.columns);
    after = pieces.take<N>(tokens * s.columns);
    columns = pieces.take<N>(s.states * tokens);
    bytes = pieces.bytes();
  }
  int64_t bytes;
  N* states;
  Word<N>*history, *state_rows, *pairs, *x_rows, *x_across, *dy_across, *panels, *masked;
  N *dm, *inside, *after, *columns;
};

// Sums over the tokens of one head of one sequence.
struct NumberSums {
  double a_log, dt_bias, d;
};

template <class N>
class ScanGradient {
 public:
  ScanGradient(const StateScanBackwardArgs& args, const ScanScratch& scratch)
      : args_(args), s_(args), scratch_(scratch), has_initial_(args.initial.defined()) {}

  void run(Stream& stream) const {
    const int64_t chunks = s_.chunks(), all = s_.sequences * s_.groups * chunks;
    stream.pool().parallel_for(all, [&](int64_t index, int thread) {
      const int64_t of = index / chunks, chunk = index % chunks;
      pack_group_backward(s_, rows(args_.b, of, chunk), rows(args_.c, of, chunk),
                          s_.tokens_of(chunk), GroupWork<N>(s_, work(thread)), group(of, chunk));
    });
    stream.pool().parallel_for(s_.tasks(), [&](int64_t index, int thread) {
      const ScanTask task(s_, index);
      const GradientWork<N> of_thread(s_, has_initial_, work(thread));
      keep_states(task, of_thread);
      for (int64_t i = 0; i < task.count; ++i)
        sums()[task.sequence * s_.heads + task.first + i] = {};
      bool passes = args_.dfinal.defined();  // a gradient of the state after the chunk
      if (passes) load_states(args_.dfinal, task, of_thread);
      for (int64_t chunk = chunks - 1; chunk >= 0; --chunk)
        passes = differentiate(task, chunk, passes, of_thread);
    });
    stream.pool().parallel_for(all, [&](int64_t index, int thread) {
      finish_group(index / chunks, index % chunks, work(thread));
    });
  }

 private:
  std::byte* work(int thread) const { return scratch_.work->data() + thread * scratch_.work_bytes; }
  NumberSums* sums() const { return reinterpret_cast<NumberSums*>(scratch_.sums->data()); }
  GroupChunk<N> group(int64_t group, int64_t chunk) const {
    const int64_t place = group * s_.chunks() + chunk;
    return GroupChunk<N>(s_, true, scratch_.groups->data() + place * scratch_.group_bytes);
  }
  GroupSums<N> partial(int64_t task, int64_t chunk) const {
    const int64_t place = task * s_.chunks() + chunk;
    return GroupSums<N>(s_, scratch_.partials->data() + place * scratch_.partial_bytes);
  }
  // Rows of a chunk of b, c or their gradients; of: sequence * groups + group.
  MatrixRows rows(const Tensor& t, int64_t of, int64_t chunk) const {
    return scan_rows(t, of / s_.groups, chunk * kScanChunk, of % s_.groups);
  }
  // True if a state is handed to the chunk.
  bool has_state(int64_t chunk) const { return chunk > 0 || has_initial_; }
  // The state of a task's head before a chunk that has one.
  Word<N>* kept(const GradientWork<N>& work, int64_t head, int64_t chunk) const {
    const int64_t first = has_initial_ ? 0 : 1;
    return work.history +
           (head * (s_.chunks() - first) + chunk - first) * s_.states * s_.words(s_.columns);
  }
  // The states of the heads that a task computes, in a tensor [B,H,P,N] of all heads.
  void load_states(const Tensor& from, const ScanTask& task, const GradientWork<N>& work) const {
    for (int64_t i = 0; i < task.count; ++i)
      load_state(
          s_, from.data<N>() + (task.sequence * s_.heads + task.first + i) * s_.width * s_.states,
          work.states + i * s_.state_size());
  }

  void set_head(const ScanTask& task, int64_t chunk, int64_t head, const ChunkDocuments& documents,
                N* dt, ScanDecays<N>& decays) const {
    load_dt(args_.dt, task.sequence, chunk * kScanChunk, documents.count, head, dt);
    scan_steps(limits_of<N>(args_.numbers, head), dt, documents.count, decays.steps);
    set_decays(rate_of<N>(args_.numbers, head), documents, decays);
  }

  // Computes the states before each chunk again.
  void keep_states(const ScanTask& task, const GradientWork<N>& work) const {
    ScanDecays<N> decays;
    N dt[kScanChunk];
    if (has_initial_) {
      load_states(args_.initial, task, work);
      for (int64_t i = 0; i < task.count; ++i)
        state_to_words(s_.kind, work.states + i * s_.state_size(), s_.states, s_.columns,
                       kept(work, i, 0));
    }
    for (int64_t chunk = 0; chunk + 1 < s_.chunks(); ++chunk) {
      const ChunkDocuments documents = documents_of(s_, args_.starts, task.sequence, chunk);
      const GroupChunk<N> shared = group(task.group_index, chunk);
      for (int64_t i = 0; i < task.count; ++i) {
        N* const state = work.states + i * s_.state_size();
        set_head(task, chunk, task.first + i, documents, dt, decays);
        const MatrixRows x = scan_rows(args_.x, task.sequence, chunk * kScanChunk, task.first + i);
        advance_state<N>(s_, {decays, documents, shared, x, state, has_state(chunk)}, work.panels);
        state_to_words(s_.kind, state, s_.states, s_.columns, kept(work, i, chunk + 1));
      }
    }
  }

  // Returns whether the state before the chunk has a gradient.
  bool differentiate(const ScanTask& task, int64_t chunk, bool passes,
                     const GradientWork<N>& work) const {
    const ChunkDocuments documents = documents_of(s_, args_.starts, task.sequence, chunk);
    const GroupSums<N> to = partial(task.index, chunk);
    std::fill_n(to.dc, to.count, N{0});
    for (int64_t i = 0; i < task.count; ++i)
      differentiate_head(task, chunk, i, documents, passes, to, work);
    return has_state(chunk) && documents.inherits > 0;
  }

  void differentiate_head(const ScanTask& task, int64_t chunk, int64_t i,
                          const ChunkDocuments& documents, bool passes, const GroupSums<N>& to,
                          const GradientWork<N>& work) const {
    const int64_t head = task.first + i, first = chunk * kScanChunk, count = documents.count;
    const auto here = [&](const Tensor& t) { return scan_rows(t, task.sequence, first, head); };
    const MatrixRows x = here(args_.x), dy = here(args_.dout);
    const GroupChunk<N> shared = group(task.group_index, chunk);
    N* const dstate = work.states + i * s_.state_size();
    const bool inherits = has_state(chunk) && documents.inherits > 0;
    ScanDecays<N> decays;
    TokenSums tokens;
    set_head(task, chunk, head, documents, tokens.dt, decays);

    differentiate_mask(x, dy, documents, decays, shared, to, work, tokens);
    double whole = 0;  // the product of the states before and after the chunk, with its decay
    if (passes) {
      add_after(shared, x, count, dstate, decays, to, work);
      if (inherits && decays.whole != 0)
        whole = static_cast<double>(decays.whole) *
                static_cast<double>(
                    state_product(s_.kind, dstate, s_.states, s_.columns, kept(work, i, chunk)));
    }
    if (inherits) add_before(shared, kept(work, i, chunk), decays, to, work, tokens);
    NumberSums& sum = sums()[task.sequence * s_.heads + head];
    sum.d += input_gradients({.rows = count,
                              .width = s_.width,
                              .inside = work.inside,
                              .after = passes ? work.after : nullptr,
                              .stride = s_.columns,
                              .weights = decays.weights,
                              .d = args_.numbers.d.data<N>()[head],
                              .x = x,
                              .dy = dy,
                              .dx = here(args_.dx),
                              .sums = tokens.after});
    finish_steps(task.sequence, chunk, head, documents, inherits, whole, decays, tokens, sum);
    if (inherits) pass_on(shared, dy, documents, passes, decays, dstate, work);
  }

  // By token of one head.
  struct TokenSums {
    N dt[kScanChunk];
    N rows[kScanChunk];  // of M (mask_gradient)
    double logs[kScanChunk];
    N before[kScanChunk] = {};  // dy S c, without the decay from the chunk's start
    N after[kScanChunk];        // x dS' b, without the decay to its end
  };

  // Gradients through M, and of x through it: inside = M^T dy.
  void differentiate_mask(const MatrixRows& x, const MatrixRows& dy,
                          const ChunkDocuments& documents, const ScanDecays<N>& decays,
                          const GroupChunk<N>& shared, const GroupSums<N>& to,
                          const GradientWork<N>& work, TokenSums& tokens) const {
    const int64_t count = documents.count, width = s_.words(s_.width), row = s_.words(kScanChunk);
    rows_to_words(s_.kind, x, count, s_.width, work.x_rows);
    pack_across(s_, dy, count, s_.width, work.dy_across);
    for_halves(0, count, [&](int64_t begin, int64_t end, int64_t half) {
      tile_product(s_.kind, Tile<N>{.m = end - begin,
                                    .n = kScanChunk - half,
                                    .k = width,
                                    .a = work.x_rows + begin * width,
                                    .a_row = width,
                                    .a_step = 1,
                                    .b = work.dy_across + half * width,
                                    .panel = width * kPanel,
                                    .c = work.dm + begin * kScanChunk + half,
                                    .ldc = kScanChunk,
                                    .accumulate = false});
    });
    mask_gradient({.count = count,
                   .kind = s_.kind,
                   .decays = decays,
                   .end = documents.end,
                   .g = shared.g,
                   .dm = work.dm,
                   .m = work.masked,
                   .dg = to.dg,
                   .row_sums = tokens.rows,
                   .log_sums = tokens.logs});
    rows_to_panels(s_.kind, dy, count, round_up(count, int64_t{2}), s_.width, s_.chunk_panel(),
                   work.panels);
    for_halves(0, count, [&](int64_t begin, int64_t end, int64_t half) {
      const int64_t skipped = s_.words(half);
      tile_product(s_.kind, Tile<N>{.m = end - begin,
                                    .n = s_.columns,
                                    .k = s_.words(count) - skipped,
                                    .a = work.masked + begin * row + skipped,
                                    .a_row = row,
                                    .a_step = 1,
                                    .b = work.panels + skipped * kPanel,
                                    .panel = s_.chunk_panel(),
                                    .c = work.inside + begin * s_.columns,
                                    .ldc = s_.columns,
                                    .accumulate = false});
    });
  }

  // Gradients through the state after the chunk: of x, after = B dS'^T, and of B.
  void add_after(const GroupChunk<N>& shared, const MatrixRows& x, int64_t count, const N* dstate,
                 const ScanDecays<N>& decays, const GroupSums<N>& to,
                 const GradientWork<N>& work) const {
    tile_product(s_.kind, Tile<N>{.m = count,
                                  .n = s_.columns,
                                  .k = s_.words(s_.states),
                                  .a = shared.c_rows,
                                  .a_row = s_.words(s_.states),
                                  .a_step = 1,
                                  .b = state_factor(s_, dstate, work.pairs),
                                  .panel = s_.state_panel(),
                                  .c = work.after,
                                  .ldc = s_.columns,
                                  .accumulate = false});
    state_to_words(s_.kind, dstate, s_.states, s_.columns, work.state_rows);
    pack_across(s_, x, count, s_.width, work.x_across);
    multiply_state(work.state_rows, work.x_across, work.columns);
    add_columns({.rows = s_.states,
                 .kind = s_.kind,
                 .factors = decays.weights,
                 .values = work.columns,
                 .with = nullptr,
                 .sums = to.db,
                 .dots = nullptr});
  }
  // Through the state before it: of C.
  void add_before(const GroupChunk<N>& shared, const Word<N>* state, const ScanDecays<N>& decays,
                  const GroupSums<N>& to, const GradientWork<N>& work, TokenSums& tokens) const {
    multiply_state(state, work.dy_across, work.columns);
    add_columns({.rows = s_.states,
                 .kind = s_.kind,
                 .factors = decays.from_start,
                 .values = work.columns,
                 .with = shared.across,
                 .sums = to.dc,
                 .dots = tokens.before});
  }
  // to [N][kScanChunk] = the state's words times tokens across.
  void multiply_state(const Word<N>* state, const Word<N>* across, N* to) const {
    tile_product(s_.kind, Tile<N>{.m = s_.states,
                                  .n = kScanChunk,
                                  .k = s_.words(s_.width),
                                  .a = state,
                                  .a_row = s_.words(s_.columns),
                                  .a_step = 1,
                                  .b = across,
                                  .panel = s_.words(s_.width) * kPanel,
                                  .c = to,
                                  .ldc = kScanChunk,
                                  .accumulate = false});
  }

  // Gradients of the steps. A decay acts on all later tokens of the document, but for that of its
  // first token.
  void finish_steps(int64_t sequence, int64_t chunk, int64_t head, const ChunkDocuments& documents,
                    bool inherits, double whole, const ScanDecays<N>& d, const TokenSums& tokens,
                    NumberSums& sum) const {
    const double rate = rate_of<N>(args_.numbers, head);
    const int64_t count = documents.count;
    double later = whole;
    for (int64_t t = 0; t < count; ++t)
      later += static_cast<double>(d.weights[t]) * static_cast<double>(tokens.after[t]);
    N dsteps[kScanChunk], ddt[kScanChunk];
    for (int64_t t = count - 1; t >= 0; --t) {
      const bool is_last = documents.end[t] == t + 1 && t + 1 < count,
                 is_first = documents.begin[t] == t && (t > 0 || !inherits);
      if (is_last) later = 0;
      later += tokens.logs[t] +
               static_cast<double>(d.from_start[t]) * static_cast<double>(tokens.before[t]) -
               static_cast<double>(d.weights[t]) * static_cast<double>(tokens.after[t]);
      const double slope = is_first ? 0 : rate * later;
      sum.a_log -= slope * static_cast<double>(d.steps[t]);
      dsteps[t] = static_cast<N>(
          static_cast<double>(tokens.rows[t]) +
          static_cast<double>(d.to_end[t]) * static_cast<double>(tokens.after[t]) - slope);
    }
    scan_step_gradients(limits_of<N>(args_.numbers, head), tokens.dt, dsteps, count, ddt);
    for (int64_t t = 0; t < count; ++t) sum.dt_bias += static_cast<double>(ddt[t]);
    store_dt(args_.ddt, sequence, chunk * kScanChunk, count, head, ddt);
  }

  // The gradient of the state before the chunk, from that after it if there is one.
  void pass_on(const GroupChunk<N>& shared, const MatrixRows& dy, const ChunkDocuments& documents,
               bool passes, const ScanDecays<N>& decays, N* dstate,
               const GradientWork<N>& work) const {
    const int64_t count = documents.count;
    weighted_panels(s_.kind, dy, decays.from_start, count, round_up(count, int64_t{2}), s_.width,
                    s_.chunk_panel(), work.panels);
    add_to_state<N>(s_, shared.c_turned, work.panels, count, passes && documents.inherits == count,
                    decays.whole, dstate);
  }

  // Adds up the sums of a group's tasks, and what G passes on to B and C.
  void finish_group(int64_t of, int64_t chunk, std::byte* memory) const {
    const int64_t count = s_.tokens_of(chunk);
    const GroupSums<N> to = partial(of * s_.blocks, chunk);
    for (int64_t block = 1; block < s_.blocks; ++block) {
      const N* const other = partial(of * s_.blocks + block, chunk).dc;
      for (int64_t i = 0; i < to.count; ++i) to.dc[i] += other[i];
    }
    const GroupChunk<N> shared = group(of, chunk);
    const FinishWork work(s_, memory);
    const MatrixRows dg = rounded(to.dg, work);
    rows_to_panels(s_.kind, dg, count, round_up(count, int64_t{2}), kScanChunk, s_.chunk_panel(),
                   work.panels);
    add_turned(shared.b_turned, work.panels, count, to.dc);
    pack_across(s_, dg, kScanChunk, kScanChunk, work.panels);
    add_turned(shared.c_turned, work.panels, count, to.db);
    store_turned(to.dc, count, rows(args_.dc, of, chunk), work.turned);
    store_turned(to.db, count, rows(args_.db, of, chunk), work.turned);
  }

  struct FinishWork {
    FinishWork(const ScanSizes& s, std::byte* begin) {
      Pieces pieces(begin);
      rounded = pieces.take<N>(kScanChunk * kScanChunk);
      panels = pieces.take<Word<N>>(2 * s.chunk_panel());
      turned = pieces.take<N>(kScanChunk * kPanel);
      bytes = pieces.bytes();
    }
    int64_t bytes;
    N *rounded, *turned;
    Word<N>* panels;
  };

  static MatrixRows rows_of(const N* values, int64_t stride) {
    return {reinterpret_cast<const std::byte*>(values), stride, DTypeOf<N>::value};
  }
  // dg as rows of the type of a factor.
  MatrixRows rounded(const N* dg, const FinishWork& work) const {
    if constexpr (std::is_same_v<N, float>) {
      if (is_paired(s_.kind)) {
        auto* const to = reinterpret_cast<std::byte*>(work.rounded);
        round_rows(s_.kind, dg, kScanChunk * kScanChunk, to);
        return {to, kScanChunk, DType::bf16};
      }
    }
    return rows_of(dg, kScanChunk);
  }
  void add_turned(const typename GroupChunk<N>::Turned& turned, const Word<N>* panels,
                  int64_t count, N* to) const {
    tile_product(s_.kind, Tile<N>{.m = s_.states,
                                  .n = kScanChunk,
                                  .k = s_.words(count),
                                  .a = turned.at,
                                  .a_row = turned.row,
                                  .a_step = turned.step,
                                  .b = panels,
                                  .panel = s_.chunk_panel(),
                                  .c = to,
                                  .ldc = kScanChunk,
                                  .accumulate = true});
  }
  // Rows of tokens from values [N][kScanChunk].
  void store_turned(const N* values, int64_t count, MatrixRows to, N* turned) const {
    for (int64_t n = 0; n < s_.states; n += kPanel) {
      const int64_t columns = std::min(kPanel, s_.states - n);
      transpose_to_panel(WordKind::f32, rows_of(values + n * kScanChunk, kScanChunk), columns,
                         kScanChunk, nullptr, reinterpret_cast<Word<N>*>(turned));
      auto* const at = const_cast<std::byte*>(to.base) + n * size_of(to.type);
      if constexpr (std::is_same_v<N, float>) {
        store_sums({.rows = count,
                    .columns = columns,
                    .sums = turned,
                    .sums_stride = kPanel,
                    .bias = nullptr,
                    .bias_type = DType::f32,
                    .accumulate = false,
                    .out = at,
                    .out_stride = to.stride,
                    .out_type = to.type});
      } else {
        for (int64_t t = 0; t < count; ++t)
          std::copy_n(turned + t * kPanel, columns, reinterpret_cast<N*>(at) + t * to.stride);
      }
    }
  }

 public:
  static int64_t work_bytes(const ScanSizes& s, bool initial) {
    return std::max({GradientWork<N>(s, initial, nullptr).bytes, GroupWork<N>(s, nullptr).bytes,
                     FinishWork(s, nullptr).bytes});
  }
  static int64_t partial_bytes(const ScanSizes& s) {
    return GroupSums<N>(s, nullptr).count * static_cast<int64_t>(sizeof(N));
  }

 private:
  const StateScanBackwardArgs& args_;
  const ScanSizes s_;
  const ScanScratch& scratch_;
  const bool has_initial_;
};

template <class N>
ScanScratch gradient_scratch_of(const ScanSizes& s, bool initial, Stream& stream) {
  ScanScratch scratch{.group_bytes = GroupChunk<N>(s, true, nullptr).bytes,
                      .work_bytes = ScanGradient<N>::work_bytes(s, initial),
                      .partial_bytes = ScanGradient<N>::partial_bytes(s)};
  Arena& arena = stream.scratch();
  scratch.groups = arena.allocate(s.sequences * s.groups * s.chunks() * scratch.group_bytes,
                                  "scan of states: b, c");
  scratch.partials = arena.allocate(s.tasks() * s.chunks() * scratch.partial_bytes,
                                    "scan of states: gradients of b, c");
  scratch.work = arena.allocate(scratch.work_bytes * stream.target().threads,
                                "scan of states: states and chunks");
  scratch.sums = arena.allocate(s.sequences * s.heads * static_cast<int64_t>(sizeof(NumberSums)),
                                "scan of states: sums");
  return scratch;
}

// to = beta * to + sum over the sequences of their sums, in order.
template <class N>
void add_sums(const NumberSums* sums, int64_t sequences, double NumberSums::* member,
              const Accumulate& to) {
  if (!to.out.defined()) return;
  N* const out = to.out.data<N>();
  const int64_t heads = to.out.size(0);
  for (int64_t h = 0; h < heads; ++h) {
    double sum = to.beta == 0 ? 0 : static_cast<double>(out[h]);
    for (int64_t b = 0; b < sequences; ++b) sum += sums[b * heads + h].*member;
    out[h] = static_cast<N>(sum);
  }
}

template <class N>
void scan_gradient(const StateScanBackwardArgs& args, Stream& stream) {
  const ScanScratch scratch = state_scan_backward_scratch(args, stream);
  const bool empty = args.x.elements() == 0;
  if (!empty) ScanGradient<N>(args, scratch).run(stream);
  const auto* sums = empty ? nullptr : reinterpret_cast<const NumberSums*>(scratch.sums->data());
  const int64_t sequences = empty ? 0 : args.x.size(0);
  add_sums<N>(sums, sequences, &NumberSums::a_log, args.da_log);
  add_sums<N>(sums, sequences, &NumberSums::dt_bias, args.ddt_bias);
  add_sums<N>(sums, sequences, &NumberSums::d, args.dd);
}

}  // namespace

ScanScratch state_scan_backward_scratch(const StateScanBackwardArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return {};
  const ScanSizes s(args);
  const bool initial = args.initial.defined();
  return s.type == DType::f64 ? gradient_scratch_of<double>(s, initial, stream)
                              : gradient_scratch_of<float>(s, initial, stream);
}

void state_scan_backward(const StateScanBackwardArgs& args, Stream& stream) {
  args.x.dtype() == DType::f64 ? scan_gradient<double>(args, stream)
                               : scan_gradient<float>(args, stream);
}

}  // namespace megatron::kernels::cpu
