#include "bench/bench.h"

#include "cli/command.h"

namespace megatron::cli {
namespace {

template <int (*measure)(const bench::ReadFlags&)>
int measured(const Arguments& arguments) {
  return measure([&](const std::string& usage, const std::string& description, Fields& fields) {
    return parse(usage, description, fields, {}, arguments);
  });
}

constexpr Subcommand kBenches[] = {
    {"step", "a training step against the machine's peak", bench_step},
    {"gemm", "matrix products: the peak itself", measured<bench::measure_gemm>},
    {"tokenize", "text to token ids, in memory", measured<bench::measure_tokenize>},
    {"preprocess", "JSON lines to token files, by one worker and by two",
     measured<bench::measure_preprocess>},
    {"index", "sample indices: built cold, stored, opened again", measured<bench::measure_index>},
    {"kernels", "each kernel against the limit that binds it", measured<bench::measure_kernels>},
    {"parallel", "each axis of parallelism on two ranks against one",
     measured<bench::measure_parallel>},
    {"generate", "text: tokens a second against the bandwidth of memory",
     measured<bench::measure_generate>},
};

}  // namespace

int bench(const Arguments& arguments) {
  return dispatch("megatron bench", "Measures speed on this machine.", kBenches, arguments);
}

}  // namespace megatron::cli
