// `megatron preprocess`, `merge` and `inspect` as processes: killed, without room on the disk, with
// input in many forms.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <zlib.h>

#include <chrono>
#include <thread>

#include "golden/cli/process.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

std::string vector_file(const std::string& name) {
  return std::string(MEGATRON_GOLDEN) + "/indexed/" + name;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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

// Starts the program in the place and does not wait.
pid_t start(const Workplace& place, std::vector<std::string> arguments) {
  const pid_t child = fork();
  if (child != 0) return child;
  const int nothing = open("/dev/null", O_RDWR);
  for (int i = 0; i < 3; ++i) dup2(nothing, i);
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
    // Only whole files have that name.
    EXPECT_TRUE(read_file(place / "out_text_document.idx") ==
                read_file(place / "whole_text_document.idx"));
    EXPECT_TRUE(read_file(place / "out_text_document.bin") ==
                read_file(place / "whole_text_document.bin"));
  }
  EXPECT_GT(killed, 3);
  ASSERT_EQ(place.run(preprocess("in.jsonl", "out", {"--overwrite"})).code, 0);
  EXPECT_TRUE(read_file(place / "out_text_document.bin") ==
              read_file(place / "whole_text_document.bin"));
  // The run removed what the killed ones left.
  EXPECT_EQ(place.listing().size(), 5u);
}

TEST(PreprocessCommand, AFullDiskLeavesNothing) {
  const Workplace place;
  write_file(place / "in.jsonl", repeated_corpus(120));
  fs::create_directory(place / "out");
  for (const rlim_t limit : {rlim_t{1} << 20, rlim_t{3} << 20}) {  // of .bin: 5.5 MB
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{limit, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const auto old = signal(SIGXFSZ, SIG_IGN);  // then writing fails, as on a full disk
    const Outcome r = place.run(preprocess("in.jsonl", "out/a"));
    signal(SIGXFSZ, old);
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(has(r.err, "a_text_document.bin")) << r.err;
    EXPECT_TRUE(has(r.err, "File too large")) << r.err;
    EXPECT_TRUE(fs::is_empty(place / "out"));
  }
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
  EXPECT_TRUE(has(skips.err, "2 bad lines were left out")) << skips.err;
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
  // Its own output is no input of a second merge.
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
  EXPECT_TRUE(has(error({"preprocess/tokenizer_bpe2k"}), "no pair"));
}

TEST(InspectCommand, TellsLengthsAndText) {
  const Workplace place;
  const Outcome r = place.run({"inspect", vector_file("preprocess/bpe2k_eod_text_document"),
                               "--tokenizer-model", vector_file("preprocess/tokenizer_bpe2k"),
                               "--documents", "2", "--characters", "20"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "200 documents, 198 sequences, 22933 tokens of type u16")) << r.out;
  EXPECT_TRUE(has(r.out, "least 0, median ")) << r.out;
  EXPECT_TRUE(has(r.out, "mean 114.7")) << r.out;
  EXPECT_TRUE(has(r.out, "64-127")) << r.out;
  EXPECT_TRUE(has(r.out, "###")) << r.out;
  EXPECT_TRUE(has(r.out, "--- document 0: 1 sequence, 65 tokens")) << r.out;
  EXPECT_TRUE(has(r.out, "--- document 1")) << r.out;
  EXPECT_FALSE(has(r.out, "--- document 2")) << r.out;
  const Outcome none = place.run({"inspect", vector_file("zero_sequences_zero_documents")});
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_TRUE(has(none.out, "0 documents")) << none.out;
}

}  // namespace
}  // namespace megatron::testing
