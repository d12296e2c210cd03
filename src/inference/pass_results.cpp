#include "inference/pass_results.h"

#include "comm/values.h"
#include "inference/byte_stream.h"

namespace megatron::inference {
namespace {

std::string packed(const PassResults& results) {
  ByteWriter bytes;
  bytes.put(results.losses);
  bytes.put(results.prompt_alternatives.size());
  for (const PromptAlternatives& alternatives : results.prompt_alternatives) {
    bytes.put(alternatives.likely);
    bytes.put(alternatives.rank);
  }
  bytes.put(results.drawn.size());
  for (const DrawnToken& drawn : results.drawn) {
    bytes.put(drawn.token.draw);
    bytes.put(drawn.token.alternatives);
    bytes.put(drawn.finish);
    bytes.put(drawn.error);
    bytes.put(drawn.by_grammar);
  }
  return bytes.take();
}

PassResults unpacked(const std::string& packed) {
  ByteReader bytes(packed);
  PassResults results;
  bytes.get(results.losses);
  results.prompt_alternatives.resize(bytes.get<size_t>());
  for (PromptAlternatives& alternatives : results.prompt_alternatives) {
    bytes.get(alternatives.likely);
    bytes.get(alternatives.rank);
  }
  results.drawn.resize(bytes.get<size_t>());
  for (DrawnToken& drawn : results.drawn) {
    bytes.get(drawn.token.draw);
    bytes.get(drawn.token.alternatives);
    bytes.get(drawn.finish);
    bytes.get(drawn.error);
    bytes.get(drawn.by_grammar);
  }
  MG_ASSERT(bytes.at_end());
  return results;
}

}  // namespace

void share(PassResults& results, const EngineRanks& ranks, Stream& stream) {
  std::string bytes;
  if (ranks.draws()) bytes = packed(results);
  comm::broadcast(*ranks.all, stream, bytes, ranks.drawing, "engine.results");
  if (!ranks.draws()) results = unpacked(bytes);
}

}  // namespace megatron::inference
