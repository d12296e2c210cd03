#include "inference/pass_results.h"

#include "comm/values.h"
#include "inference/byte_stream.h"

namespace megatron::inference {
namespace {

template <class Bytes, class Results>
void visit(Bytes& bytes, Results& results) {
  bytes.fields(results.losses);
  bytes.each(results.prompt_alternatives,
             [&](auto& alternatives) { bytes.fields(alternatives.likely, alternatives.rank); });
  bytes.each(results.drawn, [&](auto& drawn) {
    bytes.fields(drawn.token.draw, drawn.token.alternatives, drawn.finish, drawn.error,
                 drawn.by_grammar);
  });
  bytes.fields(results.expert_choices);
  for (auto* lists : {&results.scores, &results.embeddings})
    bytes.each(*lists, [&](auto& values) { bytes.fields(values); });
  bytes.each(results.embedding_errors, [&](auto& error) { bytes.fields(error); });
}

}  // namespace

void share(PassResults& results, const EngineRanks& ranks, Stream& stream) {
  ByteWriter written;
  if (ranks.draws()) visit(written, std::as_const(results));
  std::string bytes = written.take();
  comm::broadcast(*ranks.all, stream, bytes, ranks.drawing, "engine.results");
  if (ranks.draws()) return;
  ByteReader read(bytes);
  results = {};
  visit(read, results);
  MG_ASSERT(read.at_end());
}

}  // namespace megatron::inference
