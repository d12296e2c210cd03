// What a flag does, as a run shows it: each supported flag has a row, and the test of all rows
// flips it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace megatron::testing {

// Command lines of `megatron train`, words apart by spaces. Behind the command that all rows share
// (tiny_run() in flag_effects.cpp) stand `base` and then `flip`; of a flag given twice the last
// counts, and "!name" takes a flag of the shared command away. {w} is a folder of the run's own,
// {data} one with what prepare() makes, {vectors} that of the golden vectors. "!disk": checkpoints
// cannot be written.
struct FlagRow {
  std::string flag;        // without dashes
  std::string observable;  // of Observed: what changes
  std::string flip;        // with the flag
  std::string base;        // of both runs
  // With the flag's default: nothing changes. Empty: the default that its field lists, if it has
  // one.
  std::string same;
  // A run before each of them, in the same folder.
  std::string before;
  // For a flag that depends on a mode (Field::idle): flags used instead of `base` to switch the
  // mode off, so that the flag has no effect.
  std::string idle;
};

std::vector<FlagRow> model_flags();
std::vector<FlagRow> step_flags();        // batch, precision, optimizer, machine
std::vector<FlagRow> parallel_flags();    // ranks, and what is kept for backward
std::vector<FlagRow> data_flags();        // and evaluation
std::vector<FlagRow> checkpoint_flags();  // and logs

// What a run shows, by the name of the observable, as text that is alike where nothing changed:
//   shape       the model's sizes and number of parameters
//   loss        loss and gradient norm of each step, bit for bit
//   batch       iteration, batch and samples consumed of each step
//   schedule    learning rate and weight decay of each step
//   memory      high-water marks of the arenas
//   validation  set, loss and tokens of each evaluation
//   log         the records of log.jsonl, but for times and the command line
//   tensorboard sizes of the event files
//   console     what is printed, but for figures of speed
//   files       names of the files that lie in {w}
//   index       sizes of the files in {w}/cache
//   writers     which threads write checkpoints: the rank's, or others
//   threads     how many threads the run starts
//   maps        whether a .bin file is mapped during the run
//   trace       number of events in the traces of --profile
//   resumed     steps done before the run, and the weights it begins with
//   tokenizer   ids of a text, and the ids of its special tokens
//   end         why the run ended; the run without the flag may fail, the one with it may not
//   error       with which error the run with the flag ends: what such a flag is for
//   plan        operations and memory that are planned, by Megatron-LM's formulas, too
//   gpu         nothing without a GPU; tests/cuda/cli/flags_test.cpp sees what changes with one
//   note        the line that says that nothing changes, on every machine that there is
struct Observed {
  std::map<std::string, std::string> values;
  std::string error;  // of a run that was refused or failed
  std::string idle;   // what the row's Field::idle says of its settings
};

// Runs rows; makes what they read once.
class FlagBench {
 public:
  FlagBench();
  ~FlagBench();
  FlagBench(const FlagBench&) = delete;
  FlagBench& operator=(const FlagBench&) = delete;

  Observed run(const FlagRow& row, const std::string& more);
  // run() without the flag, once for all rows that ask for the same.
  const Observed& without(const FlagRow& row);
  // Default of the row's flag as words, or "" where it has none.
  std::string usual(const FlagRow& row) const;
  bool has_mode(const FlagRow& row) const;  // Field::idle

 private:
  std::vector<std::string> words(const FlagRow& row, const std::string& more,
                                 const std::string& folder) const;
  void prepare();

  std::string folder_;
  int runs_ = 0;
  std::map<std::string, Observed> without_;
};

}  // namespace megatron::testing
