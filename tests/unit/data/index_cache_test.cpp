#include "data/index_cache.h"

#include <random>
#include <thread>

#include "base/thread_pool.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "data/source_facts.h"
#include "support.h"

namespace megatron::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSmall = "gpt_dataset/data/small40";
constexpr const char* kSuffixes[] = {"json", "document_index.npy", "sample_index.npy",
                                     "shuffle_index.npy"};

GptDatasetConfig small_config() {
  GptDatasetConfig config;
  config.sequence_length = 32;
  config.split = "60,20,20";
  return config;
}

GptDataset open_set(const std::string& prefix, const GptDatasetConfig& config,
                    std::optional<int64_t> samples = 100, Split split = Split::train) {
  return GptDataset(std::make_shared<const IndexedDataset>(prefix), config, split, samples);
}

void expect_same(const GptDataset& a, const GptDataset& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(as_text(a.indices().document.bytes()), as_text(b.indices().document.bytes()));
  EXPECT_EQ(as_text(a.indices().sample.bytes()), as_text(b.indices().sample.bytes()));
  EXPECT_EQ(as_text(a.indices().shuffle.bytes()), as_text(b.indices().shuffle.bytes()));
  Sample x, y;
  for (int64_t k = 0; k < a.size(); ++k) {
    a.read(k, x);
    b.read(k, y);
    ASSERT_EQ(x.tokens, y.tokens);
  }
}

// The three files equal those of the vectors byte for byte.
TEST(IndexCache, WritesMegatronsFiles) {
  const TemporaryDirectory folder;
  for (const char* name : {"small40_seed1234", "skew400_ten_epochs", "ones64"}) {
    const std::string vectors = golden(std::string("gpt_dataset/cases/") + name);
    const Json c = Json::read(vectors + "/case.json");
    GptDatasetConfig config;
    config.sequence_length = c["S"].as_integer();
    config.seed = c["seed"].as_integer();
    config.split = c["split"].as_string();
    config.cache_path = folder / "cache";
    const Json& samples = c["sizes"].as_array()[0];
    const auto set =
        open_set(golden("gpt_dataset/data/" + c["data"].as_string()), config,
                 samples.is_null() ? std::nullopt : std::optional(samples.as_integer()));
    for (size_t i = 1; i < std::size(kSuffixes); ++i) {
      EXPECT_EQ(read_file(set.cache_file(kSuffixes[i])),
                read_file(vectors + "/train/" + kSuffixes[i]));
    }
  }
}

TEST(IndexCache, LiesBesideTheDataAndSaysWhatItIs) {
  const TemporaryDirectory folder;
  copy_set(kSmall, folder / "set");
  const auto first = open_set(folder / "set", small_config());
  EXPECT_FALSE(first.from_cache());
  EXPECT_EQ(fs::path(first.cache_file("json")).parent_path(), folder / "index_cache");
  const Json description = Json::read(first.cache_file("json"));
  EXPECT_EQ(description["source"].as_string(), folder / "set");
  EXPECT_EQ(description["split"].as_string(), "train");
  EXPECT_EQ(description["samples"].as_integer(), first.size());
  const auto second = open_set(folder / "set", small_config());
  EXPECT_TRUE(second.from_cache());
  expect_same(first, second);
}

TEST(IndexCache, GoesByContentNotByName) {
  const TemporaryDirectory folder;
  fs::create_directory(folder / "a");
  copy_set(kSmall, folder / "a/set");
  auto config = small_config();
  config.cache_path = folder / "cache";
  const auto first = open_set(folder / "a/set", config);
  EXPECT_FALSE(first.from_cache());
  // Another path to the files, another name, another folder, and a copy.
  fs::create_directory_symlink(folder / "a", folder / "link");
  EXPECT_TRUE(open_set(folder / "link/../a/./set", config).from_cache());
  EXPECT_TRUE(open_set(folder / "link/set", config).from_cache());
  copy_set(kSmall, folder / "copy");
  EXPECT_TRUE(open_set(folder / "copy", config).from_cache());
  for (const char* suffix : {".bin", ".idx"})
    fs::rename(folder / "a/set" + suffix, folder / "renamed" + suffix);
  const auto moved = open_set(folder / "renamed", config);
  EXPECT_TRUE(moved.from_cache());
  expect_same(first, moved);
  // Settings that do not affect the index, and sample counts that need no additional epochs.
  auto same = config;
  same.eod = 3;
  same.pad = 5;
  same.vocabulary_size = 100000;
  same.reset_position_ids = same.reset_attention_mask = same.eod_mask_loss = true;
  EXPECT_TRUE(open_set(folder / "renamed", same).from_cache());
  EXPECT_TRUE(open_set(folder / "renamed", config, 99).from_cache());
  EXPECT_FALSE(open_set(folder / "renamed", config, 300).from_cache());
  EXPECT_FALSE(open_set(folder / "renamed", config, 10, Split::valid).from_cache());
  // Settings that affect the index.
  const auto miss = [&](auto change) {
    auto other = config;
    change(other);
    EXPECT_FALSE(open_set(folder / "renamed", other).from_cache());
    EXPECT_TRUE(open_set(folder / "renamed", other).from_cache());
  };
  miss([](GptDatasetConfig& c) { c.seed = 5; });
  miss([](GptDatasetConfig& c) { c.sequence_length = 31; });
  miss([](GptDatasetConfig& c) { c.split = "70,20,10"; });
  miss([](GptDatasetConfig& c) { c.add_extra_token = false; });
  auto whole = config;  // for validation alone; the two do not replace each other
  whole.drop_last_partial_validation_sequence = false;
  EXPECT_FALSE(open_set(folder / "renamed", whole, 10, Split::valid).from_cache());
  EXPECT_TRUE(open_set(folder / "renamed", config, 10, Split::valid).from_cache());
  EXPECT_TRUE(open_set(folder / "renamed", whole, 10, Split::valid).from_cache());
}

TEST(IndexCache, MissesOtherContentUnderTheSameName) {
  const TemporaryDirectory folder;
  copy_set(kSmall, folder / "set");
  EXPECT_FALSE(open_set(folder / "set", small_config()).from_cache());
  EXPECT_TRUE(open_set(folder / "set", small_config()).from_cache());
  // Moves 40 tokens from one sequence to the next: the size and the sums stay the same.
  std::string idx = read_file(folder / "set.idx");
  --idx[34];
  ++idx[38];
  // The second begins earlier.
  idx[34 + 4 * static_cast<size_t>(IndexedDataset(folder / "set").sequence_count()) + 8] -= 2;
  write_file(folder / "set.idx", idx);
  const auto changed = open_set(folder / "set", small_config());
  EXPECT_FALSE(changed.from_cache());
}

std::string captured(FunctionRef<void()> f) {
  ::testing::internal::CaptureStderr();
  f();
  return ::testing::internal::GetCapturedStderr();
}

TEST(IndexCache, RebuildsWhatIsDamagedLoudly) {
  const TemporaryDirectory folder;
  copy_set(kSmall, folder / "set");
  const auto first = open_set(folder / "set", small_config());
  const auto expect_rebuilt = [&](const std::string& what) {
    SCOPED_TRACE(what);
    std::optional<bool> hit;
    const std::string output = captured([&] {
      const auto set = open_set(folder / "set", small_config());
      hit = set.from_cache();
      expect_same(first, set);
    });
    EXPECT_FALSE(*hit);
    EXPECT_NE(output.find("rebuilding"), std::string::npos) << output;
    EXPECT_NE(output.find(folder / "index_cache"), std::string::npos) << output;
    EXPECT_TRUE(open_set(folder / "set", small_config()).from_cache());
  };
  for (const char* suffix : kSuffixes) {
    const std::string file = first.cache_file(suffix), whole = read_file(file);
    write_file(file, whole.substr(0, whole.size() / 2));
    expect_rebuilt("truncated");
    write_file(file, "");
    expect_rebuilt("empty");
    std::string flipped = whole;
    flipped[flipped.size() - 10] ^= 1;
    write_file(file, flipped);
    expect_rebuilt("one bit");
    if (std::string_view(suffix) == "json") {
      write_file(file, "{}");
      expect_rebuilt("without keys");
      write_file(file, "[]");
      expect_rebuilt("no object");
      continue;
    }
    fs::remove(file);
    expect_rebuilt("missing");
    const std::string other = std::string_view(suffix) == "document_index.npy"
                                  ? first.cache_file("sample_index.npy")
                                  : first.cache_file("document_index.npy");
    write_file(file, read_file(other));
    expect_rebuilt("another shape");
  }
  // Indices of another order and of another shape are stored under this index's name.
  auto config = small_config();
  for (const bool shape : {false, true}) {
    shape ? void(config.sequence_length = 16) : void(config.seed = 5);
    const auto other = open_set(folder / "set", config);
    Json description = Json::read(other.cache_file("json"));
    if (shape) description.set("made_from", Json::read(first.cache_file("json"))["made_from"]);
    for (const char* suffix : kSuffixes)
      write_file(first.cache_file(suffix), read_file(other.cache_file(suffix)));
    write_file(first.cache_file("json"), description.dump());
    expect_rebuilt(shape ? "another's shape" : "another's order");
  }
  // Without a description nothing was ever completed here, so there is no warning.
  fs::remove(first.cache_file("json"));
  EXPECT_FALSE(open_set(folder / "set", small_config()).from_cache());
}

// Opening does not check every byte of a large array: a wrong entry is an error when it is used,
// never a crash.
TEST(IndexCache, RefusesWrongEntriesWhenTheyAreUsed) {
  const TemporaryDirectory folder;
  copy_set(kSmall, folder / "set");
  const auto first = open_set(folder / "set", small_config());
  for (size_t i = 1; i < std::size(kSuffixes); ++i) {
    const std::string file = first.cache_file(kSuffixes[i]), whole = read_file(file);
    const std::string description = read_file(first.cache_file("json"));
    std::string wild = whole;
    std::fill(wild.begin() + 128, wild.end(), '\x77');
    write_file(file, wild);
    Json json = Json::parse(description);
    const std::string name =
        std::string(kSuffixes[i]).substr(0, std::string(kSuffixes[i]).size() - 4);
    Json entry = json[name];
    entry.set("digest", digest(std::as_bytes(std::span(wild)).subspan(128)));
    json.set(name, entry);
    write_file(first.cache_file("json"), json.dump());
    const auto damaged = open_set(folder / "set", small_config());
    EXPECT_TRUE(damaged.from_cache());
    Sample sample;
    EXPECT_NE(error_of([&] { damaged.read(0, sample); }).find("damaged"), std::string::npos);
    write_file(file, whole);
    write_file(first.cache_file("json"), description);
  }
}

TEST(IndexCache, SurvivesDamagedFiles) {
  const TemporaryDirectory folder;
  copy_set(kSmall, folder / "set");
  const auto first = open_set(folder / "set", small_config());
  std::mt19937 random(11);
  int hits = 0, rebuilt = 0;
  captured([&] {
    for (int round = 0; round < 300; ++round) {
      const std::string file = first.cache_file(kSuffixes[random() % 4]), whole = read_file(file);
      std::string bytes = whole;
      if (random() % 3 == 0) {
        bytes.resize(random() % bytes.size());
      } else {
        for (unsigned flips = 1 + random() % 3; flips > 0; --flips)
          bytes[random() % bytes.size()] ^= static_cast<char>(1u << random() % 8);
      }
      write_file(file, bytes);
      const auto set = open_set(folder / "set", small_config());
      set.from_cache() ? ++hits : ++rebuilt;
      EXPECT_EQ(as_text(set.indices().sample.bytes()), as_text(first.indices().sample.bytes()));
      write_file(file, whole);
    }
  });
  EXPECT_GT(rebuilt, 200);
  EXPECT_LT(hits, 100);  // unread words of the description
}

TEST(IndexCache, SurvivesDamagedArrays) {
  const TemporaryDirectory folder;
  IntegerArray array(IntegerType::i32, {40, 2});
  {
    AtomicFile file(folder / "a.npy");
    array.write(file);
    file.commit();
  }
  const std::string whole = read_file(folder / "a.npy");
  std::mt19937 random(5);
  int opened = 0, refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = whole;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips)
      bytes[random() % 128] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    write_file(folder / "b.npy", bytes);
    try {
      const auto found = IntegerArray::map(folder / "b.npy");
      EXPECT_LE(found.bytes().size(), bytes.size());
      for (int64_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], 0);
      ++opened;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
  EXPECT_GT(opened, 50);
}

TEST(IndexCache, MayBeBuiltByManyAtOnce) {
  const TemporaryDirectory folder;
  copy_set(kSmall, folder / "set");
  auto config = small_config();
  config.cache = false;
  const auto alone = open_set(folder / "set", config);
  config.cache = true;
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<GptDataset>> sets(4);
  for (auto& set : sets) {
    threads.emplace_back([&] {
      set = std::make_unique<GptDataset>(std::make_shared<const IndexedDataset>(folder / "set"),
                                         config, Split::train, 100);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& set : sets) expect_same(alone, *set);
  EXPECT_TRUE(open_set(folder / "set", config).from_cache());
  for (const auto& entry : fs::directory_iterator(folder / "index_cache"))
    EXPECT_NE(entry.path().extension(), ".tmp");
}

TEST(IndexCache, WarnsWhereNothingCanBeWritten) {
  const TemporaryDirectory folder;
  auto config = small_config();
  write_file(folder / "file", "");
  config.cache_path = folder / "file/cache";
  const std::string output = captured([&] {
    const auto set = open_set(golden(kSmall), config, 10);
    EXPECT_FALSE(set.from_cache());
    Sample sample;
    set.read(0, sample);
    EXPECT_EQ(sample.tokens.size(), 32u);
  });
  EXPECT_NE(output.find("--data-cache-path"), std::string::npos) << output;
}

// Facts are cached while the files are unchanged, so that a large index is not hashed twice.
TEST(SourceFacts, AreRememberedUntilTheFilesChange) {
  const TemporaryDirectory folder;
  copy_set(kSmall, folder / "set");
  ThreadPool pool(1);
  std::string content;
  {
    const IndexedDataset set(folder / "set");
    SourceFacts facts(set, folder / "facts");
    EXPECT_FALSE(facts.text("checked content"));
    content = facts.content(pool);
    EXPECT_EQ(facts.tokens(0, set.sequence_count(), pool), set.token_count());
    facts.remember();
  }
  {
    const IndexedDataset set(folder / "set");
    const SourceFacts facts(set, folder / "facts");
    EXPECT_EQ(facts.text("checked content"), content);
    EXPECT_FALSE(SourceFacts(set, {}).text("checked content"));
  }
  copy_set("gpt_dataset/data/tiny5", folder / "set");
  const IndexedDataset set(folder / "set");
  SourceFacts facts(set, folder / "facts");
  EXPECT_FALSE(facts.text("checked content"));
  EXPECT_NE(facts.content(pool), content);
}

// A wrong number of tokens would silently change the samples.
TEST(SourceFacts, AreNotBelievedWhenTheyAreDamaged) {
  const TemporaryDirectory folder;
  copy_set(kSmall, folder / "set");
  ThreadPool pool(1);
  const IndexedDataset set(folder / "set");
  SourceFacts facts(set, folder / "facts");
  const int64_t tokens = facts.tokens(0, set.sequence_count(), pool);
  facts.remember();
  const std::string file = std::filesystem::directory_iterator(folder / "facts")->path().string();
  std::string text = read_file(file);
  text.replace(text.rfind(std::to_string(tokens)), 1, "9");
  write_file(file, text);
  const auto expect_refused = [&](const std::string& reason) {
    const std::string output = captured([&] {
      EXPECT_EQ(SourceFacts(set, folder / "facts").tokens(0, set.sequence_count(), pool), tokens);
    });
    EXPECT_NE(output.find(reason), std::string::npos) << output;
  };
  expect_refused("damaged");
  // Indices of another source.
  copy_set("gpt_dataset/data/tiny5", folder / "other");
  const IndexedDataset other(folder / "other");
  SourceFacts its(other, folder / "others");
  its.set(fmt::format("tokens of {} sequences from 0 on", set.sequence_count()), tokens + 1);
  its.remember();
  write_file(file, read_file(std::filesystem::directory_iterator(folder / "others")->path()));
  expect_refused("belongs to a different file");
}

}  // namespace
}  // namespace megatron::data
