#include "kernels/cpu/kernels.h"
#include "kernels/cpu/state_scan/scan.h"

namespace megatron::kernels::cpu {
namespace {

template <class N>
class Scan {
 public:
  Scan(const StateScanArgs& args, const ScanScratch& scratch)
      : args_(args), s_(args), scratch_(scratch) {}

  void run(Stream& stream) const {
    const int64_t chunks = s_.chunks();
    stream.pool().parallel_for(s_.sequences * s_.groups * chunks, [&](int64_t index, int thread) {
      const int64_t of = index / chunks, first = index % chunks * kScanChunk;
      const auto rows = [&](const Tensor& t) {
        return scan_rows(t, of / s_.groups, first, of % s_.groups);
      };
      pack_group(s_, rows(args_.b), rows(args_.c), 0, s_.tokens_of(index % chunks),
                 GroupWork<N>(s_, work(thread)), group(of, index % chunks));
    });
    stream.pool().parallel_for(s_.tasks(), [&](int64_t task, int thread) {
      scan(ScanTask(s_, task), HeadWork<N>(s_, work(thread)));
    });
  }

 private:
  std::byte* work(int thread) const { return scratch_.work->data() + thread * scratch_.work_bytes; }
  GroupChunk<N> group(int64_t group, int64_t chunk) const {
    const int64_t place = group * s_.chunks() + chunk;
    return GroupChunk<N>(s_, false, scratch_.groups->data() + place * scratch_.group_bytes);
  }

  void scan(const ScanTask& task, const HeadWork<N>& work) const {
    for (int64_t chunk = 0; chunk < s_.chunks(); ++chunk) {
      const ChunkDocuments documents = documents_of(s_, args_.starts, task.sequence, chunk);
      const GroupChunk<N> shared = group(task.group_index, chunk);
      for (int64_t i = 0; i < task.count; ++i)
        scan_head(task, chunk, task.first + i, documents, shared, work.states + i * s_.state_size(),
                  work);
    }
  }

  void scan_head(const ScanTask& task, int64_t chunk, int64_t head, const ChunkDocuments& documents,
                 const GroupChunk<N>& shared, N* state, const HeadWork<N>& work) const {
    const int64_t first = chunk * kScanChunk, count = documents.count;
    ScanDecays<N> decays;
    N dt[kScanChunk];
    load_dt(args_.dt, task.sequence, first, count, head, dt);
    scan_steps(limits_of<N>(args_.numbers, head), dt, count, decays.steps);
    set_decays(rate_of<N>(args_.numbers, head), documents, decays);
    const HeadChunk<N> here{.decays = decays,
                            .documents = documents,
                            .group = shared,
                            .x = scan_rows(args_.x, task.sequence, first, head),
                            .state = state,
                            .has_state = chunk > 0 || args_.initial.defined()};
    if (chunk == 0 && args_.initial.defined())
      load_state(s_,
                 args_.initial.data<N>() + (task.sequence * s_.heads + head) * s_.width * s_.states,
                 state);
    scan_chunk(s_, here, 0, count, args_.numbers.d.data<N>()[head],
               scan_rows(args_.out, task.sequence, first, head), work);
    if (chunk + 1 < s_.chunks()) advance_state(s_, here, work.panels);
  }

  const StateScanArgs& args_;
  const ScanSizes s_;
  const ScanScratch& scratch_;
};

}  // namespace

ScanScratch state_scan_scratch(const StateScanArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return {};
  const ScanSizes s(args);
  return scan_scratch(s, s.chunks(), stream);
}

void state_scan(const StateScanArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  const ScanScratch scratch = state_scan_scratch(args, stream);
  args.x.dtype() == DType::f64 ? Scan<double>(args, scratch).run(stream)
                               : Scan<float>(args, scratch).run(stream);
}

}  // namespace megatron::kernels::cpu
