#include "inference/constraint/schema.h"

#include <algorithm>
#include <utility>

#include "inference/constraint/schema_compiler.h"

namespace megatron::inference {
namespace {

// Compiles the rules that `add` adds. If they are too large and no schema is strict, compiles again
// with large bounds noted instead of enforced.
template <class Add>
std::vector<std::string> compile(Network& network, bool strict, Add&& add) {
  constexpr int64_t kUsuallyHeld = 1000;
  for (int64_t most_held = kMaximumCount;; most_held = kUsuallyHeld) {
    Network made;
    SchemaCompiler compiler(made, most_held);
    try {
      add(compiler, made.rules()[0]);
      compiler.finish();
      network = std::move(made);
      return compiler.notes();
    } catch (const GrammarLimit&) {
      if (strict || most_held == kUsuallyHeld) throw;
    }
  }
}

}  // namespace

std::vector<std::string> add_schema(Network& network, const Json& schema, bool strict) {
  const SchemaDocument document{&schema, "", strict};
  return compile(network, strict, [&](SchemaCompiler& compiler, const Network::Rule& whole) {
    compiler.add_document(whole.start, whole.final, document);
  });
}

std::vector<std::string> add_tool_calls(Network& network, std::span<const ToolSchema> tools) {
  std::vector<SchemaDocument> documents;
  for (const ToolSchema& tool : tools)
    documents.push_back({&tool.parameters, tool.name, tool.strict});
  const bool strict = std::ranges::any_of(tools, &ToolSchema::strict);
  return compile(network, strict, [&](SchemaCompiler& compiler, const Network::Rule& whole) {
    compiler.add_calls(whole.start, whole.final, documents);
  });
}

}  // namespace megatron::inference
