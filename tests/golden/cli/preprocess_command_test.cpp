// `megatron preprocess`, `merge` and `inspect` as processes: killed, with a full disk, and with
// input in many forms.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <zlib.h>

#include <chrono>
#include <thread>

#include "golden/cli/process.h"
#include "text.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

std::string vector_file(const std::string& name) {
  return std::string(MEGATRON_GOLDEN) + "/indexed/" + name;
}

std::vector<std::string> preprocess(const std::string& input, const std::string& prefix,
                                    const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"preprocess",
                                        "--input",
                                        input,
                                        "--output-prefix",
                                        prefix,
                                        "--tokenizer-model",
                                        vector_file("preprocess/tokenizer_bpe2k"),
                                        "--append-eod"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string repeated_corpus(int times) {
  const std::string once = read_file(vector_file("preprocess/corpus.jsonl"));
  std::string text;
  for (int i = 0; i < times; ++i) text += once;
  return text;
}

// Starts the program in the place without waiting. output: file for its printed output.
pid_t start(const Workplace& place, std::vector<std::string> arguments,
            const std::string& output = "/dev/null") {
  const pid_t child = fork();
  if (child != 0) return child;
  const int nothing = open("/dev/null", O_RDONLY);
  const int said = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(nothing, STDIN_FILENO);
  for (const int to : {STDOUT_FILENO, STDERR_FILENO}) dup2(said, to);
  if (chdir(place.path().c_str()) != 0) _exit(126);
  std::vector<char*> argv = {const_cast<char*>(MEGATRON_BINARY)};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(MEGATRON_BINARY, argv.data());
  _exit(127);
}

TEST(PreprocessCommand, KilledTenTimesLeavesNoFinishedIndex) {
  const Workplace place;
  write_file(place / "in.jsonl", repeated_corpus(60));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(place.run(preprocess("in.jsonl", "whole")).code, 0);
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
  int killed = 0;
  for (int i = 0; i < 10; ++i) {
    const pid_t child = start(place, preprocess("in.jsonl", "out", {"--overwrite"}));
    std::this_thread::sleep_for(whole * (0.05 + 0.1 * i));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    killed += WIFSIGNALED(status);
    if (!fs::exists(place / "out_text_document.idx")) continue;
    // Only complete files have the final name.
    EXPECT_TRUE(read_file(place / "out_text_document.idx") ==
                read_file(place / "whole_text_document.idx"));
    EXPECT_TRUE(read_file(place / "out_text_document.bin") ==
                read_file(place / "whole_text_document.bin"));
  }
  EXPECT_GT(killed, 3);
  ASSERT_EQ(place.run(preprocess("in.jsonl", "out", {"--overwrite"})).code, 0);
  EXPECT_TRUE(read_file(place / "out_text_document.bin") ==
              read_file(place / "whole_text_document.bin"));
  // The run removed the files that the killed runs left.
  EXPECT_EQ(place.listing().size(), 5u);
}

TEST(PreprocessCommand, AFullDiskLeavesNothing) {
  const Workplace place;
  write_file(place / "in.jsonl", repeated_corpus(120));
  fs::create_directory(place / "out");
  for (const rlim_t limit : {rlim_t{1} << 20, rlim_t{3} << 20}) {  // the .bin needs 5.5 MB
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{limit, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const Outcome r = place.run(preprocess("in.jsonl", "out/a"));
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(has(r.err, "a_text_document.bin")) << r.err;
    EXPECT_TRUE(has(r.err, "File too large: raise the file size limit")) << r.err;
    EXPECT_TRUE(fs::is_empty(place / "out"));
  }
}

TEST(IndexCommand, BuildsNothingWhenItCannotBuildAll) {
  const Workplace place;
  ASSERT_EQ(
      place
          .run({"preprocess", "--input", vector_file("preprocess/corpus.jsonl"), "--output-prefix",
                "a", "--tokenizer-model", vector_file("preprocess/tokenizer_bpe2k")})
          .code,
      0);
  const Outcome empty = place.run(
      {"index", "--data-path", "a_text_document", "--seq-length", "16", "--split", "9999,9999,1"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_TRUE(has(empty.err, "the test split gets none of")) << empty.err;
  EXPECT_FALSE(fs::exists(place / "index_cache"));
  write_file(place / "file", "");
  const Outcome unwritten = place.run({"index", "--data-path", "a_text_document", "--seq-length",
                                       "16", "--split", "1", "--data-cache-path", "file/cache"});
  EXPECT_EQ(unwritten.code, 2);
  EXPECT_TRUE(has(unwritten.err, "--data-cache-path")) << unwritten.err;
  EXPECT_FALSE(has(unwritten.out, "file/cache")) << unwritten.out;
}

// The mapped file was truncated and cannot be read: the program ends with a message.
TEST(TrainCommand, TellsThatTokenFilesWereCutShort) {
  const Workplace place;
  std::string ids;
  for (int i = 0; i < 200000; ++i) ids += std::to_string(i % 97) + " ";
  write_file(place / "in.txt", ids);
  ASSERT_EQ(place
                .run({"preprocess", "--input", "in.txt", "--output-prefix", "a", "--tokenizer-type",
                      "NullTokenizer", "--vocab-size", "100"})
                .code,
            0);
  const pid_t child = start(place,
                            {"train",
                             "--data-path",
                             "a_text_document",
                             "--split",
                             "1",
                             "--vocab-size",
                             "100",
                             "--num-layers",
                             "1",
                             "--hidden-size",
                             "16",
                             "--seq-length",
                             "16",
                             "--train-iters",
                             "10000000",
                             "--lr",
                             "0",
                             "--micro-batch-size",
                             "1",
                             "--num-attention-heads",
                             "1",
                             "--threads",
                             "1",
                             "--data-cache-path",
                             "cache"},
                            place / "output");
  const auto output = [&] {
    return fs::exists(place / "output") ? read_file(place / "output") : std::string();
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!has(output(), "iteration ") && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  fs::resize_file(place / "a_text_document.bin", 0);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << output();
  EXPECT_EQ(WEXITSTATUS(status), 2) << output();
  EXPECT_TRUE(has(output(), "was truncated while in use")) << output();
}

TEST(PreprocessCommand, TakesPatternsAndPackedFiles) {
  const Workplace place;
  const std::string corpus = read_file(vector_file("preprocess/corpus.jsonl"));
  const size_t middle = corpus.find('\n', corpus.size() / 2) + 1;
  write_file(place / "part2.jsonl", corpus.substr(middle));
  gzFile file = gzopen((place / "part1.jsonl.gz").c_str(), "wb");
  gzwrite(file, corpus.data(), static_cast<unsigned>(middle));
  gzclose(file);
  const Outcome r = place.run(preprocess("part*", "out", {"--log-interval", "10"}));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "200 documents"));
  EXPECT_TRUE(read_file(place / "out_text_document.bin") ==
              read_file(vector_file("preprocess/bpe2k_eod_text_document.bin")));
  const Outcome again = place.run(preprocess("part*", "out"));
  EXPECT_EQ(again.code, 2);
  EXPECT_TRUE(has(again.err, "--overwrite"));
}

TEST(PreprocessCommand, SaysWhichLinesItLeftOut) {
  const Workplace place;
  write_file(place / "in.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"\n{}\n{\"text\": \"c\"}\n");
  const Outcome fails = place.run(preprocess("in.jsonl", "out"));
  EXPECT_EQ(fails.code, 2);
  EXPECT_TRUE(has(fails.err, "in.jsonl:2: bad JSON")) << fails.err;
  const Outcome skips = place.run(preprocess("in.jsonl", "out", {"--on-bad-line", "skip"}));
  EXPECT_EQ(skips.code, 0);
  EXPECT_TRUE(has(skips.err, "in.jsonl:3: the key 'text' is missing")) << skips.err;
  EXPECT_TRUE(has(skips.err, "skipped 2 bad lines")) << skips.err;
  EXPECT_TRUE(has(skips.out, "2 documents"));
}

TEST(MergeCommand, EqualsMegatron) {
  const Workplace place;
  const auto merge = [&](const std::string& name, const std::vector<std::string>& parts,
                         const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"merge", "--output-prefix", "out", "--overwrite",
                                          "--input"};
    for (const std::string& part : parts) arguments.push_back(vector_file(part));
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome r = place.run(arguments);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_TRUE(read_file(place / "out.bin") == read_file(vector_file(name + ".bin"))) << name;
    EXPECT_TRUE(read_file(place / "out.idx") == read_file(vector_file(name + ".idx"))) << name;
  };
  merge("u16_merged", {"u16_docs", "u16_items"}, {});
  merge("u16_merged3", {"u16_first_doc_empty", "u16_docs.bin", "u16_first_doc_empty"}, {});
  merge("i32_multimodal_merged", {"i32_multimodal", "i32_multimodal_b"}, {"--multimodal"});
}

TEST(MergeCommand, TakesADirectoryInTheOrderOfItsFileNames) {
  const Workplace place;
  fs::create_directory(place / "in");
  for (const auto& [from, to] : std::initializer_list<std::pair<const char*, const char*>>{
           {"u16_docs", "a-1"}, {"u16_items", "a"}}) {
    for (const char* suffix : {".bin", ".idx"})
      fs::copy(vector_file(std::string(from) + suffix), place / ("in/" + std::string(to) + suffix));
  }
  write_file(place / "in/notes.txt", "not a pair");
  ASSERT_EQ(place.run({"merge", "--input", "in", "--output-prefix", "in/out"}).code, 0);
  EXPECT_TRUE(read_file(place / "in/out.idx") == read_file(vector_file("u16_merged.idx")));
  // A second merge does not read its own earlier output.
  ASSERT_EQ(place.run({"merge", "--input", "in", "--output-prefix", "in/out", "--overwrite"}).code,
            0);
  EXPECT_TRUE(read_file(place / "in/out.bin") == read_file(vector_file("u16_merged.bin")));
}

TEST(MergeCommand, RefusesWhatDoesNotFit) {
  const Workplace place;
  const auto error = [&](std::vector<std::string> parts, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"merge", "--output-prefix", "out", "--input"};
    for (const std::string& part : parts) arguments.push_back(vector_file(part));
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome r = place.run(arguments);
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(place.listing().empty());
    return r.err;
  };
  const std::string types = error({"u16_docs", "i32_docs"});
  EXPECT_TRUE(has(types, "i32_docs") && has(types, "i32 tokens") && has(types, "u16")) << types;
  EXPECT_TRUE(has(error({"i32_multimodal", "i32_multimodal_b"}), "--multimodal"));
  EXPECT_TRUE(has(error({"i32_docs"}, {"--multimodal"}), "--multimodal"));
  EXPECT_TRUE(has(error({"nothing"}), "nothing.bin does not exist"));
  EXPECT_TRUE(has(error({"preprocess/tokenizer_bpe2k"}), "no .bin/.idx pair"));
}

TEST(InspectCommand, TellsLengthsAndText) {
  const Workplace place;
  const Outcome r = place.run({"inspect", vector_file("preprocess/bpe2k_eod_text_document"),
                               "--tokenizer-model", vector_file("preprocess/tokenizer_bpe2k"),
                               "--documents", "2", "--characters", "20"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "200 documents, 198 sequences, 22933 tokens of type u16")) << r.out;
  EXPECT_TRUE(has(r.out, "min 0, median ")) << r.out;
  EXPECT_TRUE(has(r.out, "mean 114.7")) << r.out;
  EXPECT_TRUE(has(r.out, "64-127")) << r.out;
  EXPECT_TRUE(has(r.out, "###")) << r.out;
  EXPECT_TRUE(has(r.out, "--- document 0: 1 sequence, 65 tokens")) << r.out;
  EXPECT_TRUE(has(r.out, "--- document 1")) << r.out;
  EXPECT_FALSE(has(r.out, "--- document 2")) << r.out;
  const Outcome none = place.run({"inspect", vector_file("zero_sequences_zero_documents")});
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_TRUE(has(none.out, "0 documents")) << none.out;
  const Outcome other = place.run({"inspect", vector_file("preprocess/bpe2k_eod_text_document"),
                                   "--tokenizer-type", "NullTokenizer", "--vocab-size", "100"});
  EXPECT_TRUE(has(other.err, "but the tokenizer has 100 tokens")) << other.err;
  EXPECT_FALSE(has(r.err, "token id")) << r.err;
}

}  // namespace
}  // namespace megatron::testing
