#include "kernels/cpu/kernels.h"
#include "kernels/cpu/state_scan/scan.h"

namespace megatron::kernels::cpu {
namespace {

template <class N>
class Carry {
 public:
  Carry(const StateCarryArgs& args, const ScanScratch& scratch)
      : args_(args), s_(args), scratch_(scratch) {}

  void run(Stream& stream) const {
    const int64_t chunks = s_.chunks();
    stream.pool().parallel_for(s_.sequences * s_.groups * chunks, [&](int64_t index, int thread) {
      const int64_t of = index / chunks, chunk = index % chunks;
      turn_group(s_, scan_rows(args_.b, of / s_.groups, chunk * kScanChunk, of % s_.groups),
                 s_.tokens_of(chunk), GroupWork<N>(s_, work(thread)), group(of, chunk));
    });
    stream.pool().parallel_for(s_.tasks(), [&](int64_t index, int thread) {
      const ScanTask task(s_, index);
      for (int64_t i = 0; i < task.count; ++i)
        add_up(task, task.first + i, HeadWork<N>(s_, work(thread)));
    });
  }

 private:
  std::byte* work(int thread) const { return scratch_.work->data() + thread * scratch_.work_bytes; }
  GroupChunk<N> group(int64_t group, int64_t chunk) const {
    const int64_t place = group * s_.chunks() + chunk;
    return GroupChunk<N>(s_, false, scratch_.groups->data() + place * scratch_.group_bytes);
  }

  // The sum over the tokens of a head, in chunks from that at which their weights are greatest.
  void add_up(const ScanTask& task, int64_t head, const HeadWork<N>& work) const {
    const int64_t at = task.sequence * s_.heads + head;
    N* const state = work.states;
    std::fill_n(state, s_.state_size(), N{0});
    double factor = 1;  // the decays of the chunks so far
    for (int64_t i = 0; i < s_.chunks() && factor != 0; ++i) {
      const int64_t chunk = args_.gradient ? i : s_.chunks() - 1 - i, first = chunk * kScanChunk;
      const ChunkDocuments documents = documents_of(s_, args_.starts, task.sequence, chunk);
      ScanDecays<N> decays;
      N dt[kScanChunk], weights[kScanChunk];
      load_dt(args_.dt, task.sequence, first, documents.count, head, dt);
      scan_steps(limits_of<N>(args_.numbers, head), dt, documents.count, decays.steps);
      set_decays(rate_of<N>(args_.numbers, head), documents, decays);
      const N* const of_chunk = args_.gradient ? decays.from_start : decays.weights;
      for (int64_t t = 0; t < kScanChunk; ++t)
        weights[t] = static_cast<N>(factor * static_cast<double>(of_chunk[t]));
      weighted_panels(s_.kind, scan_rows(args_.x, task.sequence, first, head), weights,
                      documents.count, round_up(documents.count, int64_t{2}), s_.width,
                      s_.chunk_panel(), work.panels);
      add_to_state<N>(s_, group(task.group_index, chunk).b_turned, work.panels, documents.count,
                      true, N{1}, state);
      factor *= static_cast<double>(decays.whole);
    }
    store_state<N>(s_, state, args_.state.data<N>() + at * s_.width * s_.states, work.inside);
    if (args_.decay.defined()) args_.decay.data<N>()[at] = static_cast<N>(factor);
  }

  const StateCarryArgs& args_;
  const ScanSizes s_;
  const ScanScratch& scratch_;
};

// Without tokens, states pass unchanged.
template <class N>
void carry_nothing(const StateCarryArgs& args) {
  std::fill_n(args.state.data<N>(), args.state.elements(), N{0});
  if (args.decay.defined()) std::fill_n(args.decay.data<N>(), args.decay.elements(), N{1});
}

}  // namespace

ScanScratch state_carry_scratch(const StateCarryArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return {};
  const ScanSizes s(args);
  return scan_scratch(s, s.chunks(), stream);
}

void state_carry(const StateCarryArgs& args, Stream& stream) {
  const bool f64 = args.x.dtype() == DType::f64;
  if (args.x.elements() == 0) return f64 ? carry_nothing<double>(args) : carry_nothing<float>(args);
  const ScanScratch scratch = state_carry_scratch(args, stream);
  f64 ? Carry<double>(args, scratch).run(stream) : Carry<float>(args, scratch).run(stream);
}

}  // namespace megatron::kernels::cpu
