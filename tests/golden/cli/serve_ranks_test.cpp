// `megatron serve` with a model divided among ranks.
#include <gtest/gtest.h>
#include <httplib.h>

#include <functional>
#include <memory>

#include "base/json.h"
#include "free_port.h"
#include "golden/cli/served_run.h"

namespace megatron::testing {
namespace {

const Words kStages = {"--pipeline-model-parallel-size", "2"};
const Words kTensor = {"--tensor-model-parallel-size", "2"};

// Length of a text that takes longer to generate than a signal takes to arrive.
constexpr int64_t kLongText = 3000;
const std::string kLongRequest =
    R"({"prompt": "A", "max_tokens": 3000, "seed": 1, "ignore_eos": true, "stream": true})";

Words serve(const Words& flags) {
  return with(words("serve --load run --port 0 --threads 1 --api-key-file keys"), flags);
}

class ServeRanks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    place_ = new Workplace;
    const std::string shape = "--num-layers 2 --seq-length 64 --max-position-embeddings 4096";
    make_served_run(*place_, shape, "run", 1);
    make_served_run(*place_, shape, "run2", 2);
    write_file(*place_ / "keys", "secret-key\n");
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }
  static Workplace* place_;
};
Workplace* ServeRanks::place_ = nullptr;

// Sends requests to the server's address.
class Client {
 public:
  Client(const Workplace& place, const Background& server)
      : client_("127.0.0.1", served_port(place, server)) {
    client_.set_bearer_token_auth("secret-key");
    client_.set_read_timeout(60, 0);
  }
  httplib::Result post(const std::string& path, const std::string& body) {
    return client_.Post(path, body, "application/json");
  }
  // Returns the part of a successful answer that is the same each time.
  std::string part(const std::string& path, const std::string& body, const std::string& name) {
    const httplib::Result result = post(path, body);
    if (!result || result->status != 200) throw Error(result ? result->body : "no answer");
    return Json::parse(result->body)[name].dump();
  }
  std::string greedy() {
    return part("/v1/completions",
                R"({"prompt": ["Hello there", "A man"], "max_tokens": 30, "temperature": 0})",
                "choices");
  }
  // Sampled texts with log-probabilities, also of prompts.
  std::string sampled() {
    return part("/v1/completions",
                R"({"prompt": ["Hello there", "A man"], "max_tokens": 30, "n": 2, "seed": 7,
                    "logprobs": 2, "echo": true, "prompt_logprobs": 3})",
                "choices");
  }
  std::string embeddings() {
    return part("/v1/embeddings", R"({"input": ["Hello there", "A"]})", "data");
  }
  int reload(const std::string& load) {
    return post("/admin/reload", R"({"load": ")" + load + "\"}")->status;
  }
  // Returns the events of the long text; calls on_first when the first has arrived.
  std::string stream_long(const std::function<void()>& on_first) {
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.set_header("Authorization", "Bearer secret-key");
    request.set_header("Content-Type", "application/json");
    request.body = kLongRequest;
    std::string events;
    request.content_receiver = [&](const char* data, size_t size, size_t, size_t) {
      if (events.empty()) on_first();
      events.append(data, size);
      return true;
    };
    client_.send(request);
    return events;
  }

 private:
  httplib::Client client_;
};

struct Answers {
  std::string greedy, sampled, embeddings, greedy2;
};

// Returns the answers of `run`, then of `run2` after a reload, and stops the server.
Answers answers_of(const Workplace& place, const Words& command) {
  Background server = place.start(command);
  Answers a;
  try {
    Client client(place, server);
    a.greedy = client.greedy();
    a.sampled = client.sampled();
    a.embeddings = client.embeddings();
    EXPECT_EQ(client.reload("run2"), 200);
    a.greedy2 = client.greedy();
    EXPECT_EQ(client.reload("nowhere"), 400);
    EXPECT_EQ(client.reload("run"), 200);
    EXPECT_EQ(client.sampled(), a.sampled);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
  server.kill(SIGTERM);
  const Outcome ended = server.wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.err.find(" error "), std::string::npos) << ended.err;
  return a;
}

// Runs the ranks as threads, and as processes of a launcher.
TEST_F(ServeRanks, AnswerAsOneRankDoes) {
  const Answers one = answers_of(*place_, serve({}));
  EXPECT_NE(one.greedy, one.greedy2);
  std::vector<Words> of_stages = {serve(kStages)};
  if (!std::string_view(MEGATRON_MPI).empty())
    of_stages.push_back(with(words("launch -np 2 --no-prefix"), serve(kStages)));
  for (const Words& command : of_stages) {
    SCOPED_TRACE(command[0]);
    const Answers stages = answers_of(*place_, command);
    EXPECT_EQ(stages.greedy, one.greedy);
    EXPECT_EQ(stages.sampled, one.sampled);
    EXPECT_EQ(stages.embeddings, one.embeddings);
    EXPECT_EQ(stages.greedy2, one.greedy2);
  }
  for (const Words& flags : {kTensor, with(kTensor, kStages)}) {
    SCOPED_TRACE(flags.size());
    const Answers tensor = answers_of(*place_, serve(flags));
    EXPECT_EQ(tensor.greedy, one.greedy);
    EXPECT_EQ(tensor.greedy2, one.greedy2);
  }
}

// After SIGTERM the server finishes running texts, or stops them when the time limit is over.
TEST_F(ServeRanks, EndAfterTheLastText) {
  for (const bool waits : {true, false}) {
    Background server =
        place_->start(serve(with(kStages, {"--drain-timeout", waits ? "60" : "0"})));
    Client client(*place_, server);
    const std::string events = client.stream_long([&] { server.kill(SIGTERM); });
    const Outcome ended = server.wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(events.ends_with("data: [DONE]\n\n"), waits) << events.substr(events.size() - 200);
    EXPECT_EQ(events.find("\"error\"") == events.npos, waits);
    const std::string count = fmt::format("{} generated", kLongText);
    EXPECT_EQ(ended.err.find(count) != ended.err.npos, waits) << ended.err;
  }
}

// Two processes without a launcher that would end one when the other ends. The second has its own
// directory, without run2.
class TwoProcesses {
 public:
  explicit TwoProcesses(const Workplace& place) {
    for (const char* name : {"t", "run", "keys"})
      std::filesystem::copy(place / name, other_ / name, std::filesystem::copy_options::recursive);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
    first = started(place, "0");
    second = started(other_, "1");
    for (const char* name : {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK"}) unsetenv(name);
  }

 private:
  static std::unique_ptr<Background> started(const Workplace& place, const char* rank) {
    setenv("RANK", rank, 1);
    return std::unique_ptr<Background>(new Background(place.start(serve(kStages))));
  }
  const Workplace other_;

 public:
  std::unique_ptr<Background> first, second;
};

TEST_F(ServeRanks, GoOnWhereOneCannotReadOtherWeights) {
  const TwoProcesses two(*place_);
  Client client(*place_, *two.first);
  const std::string before = client.sampled();
  const httplib::Result refused = client.post("/admin/reload", R"({"load": "run2"})");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 400) << refused->body;
  for (const char* part : {"rank 1", "run2"})
    EXPECT_NE(refused->body.find(part), std::string::npos) << refused->body;
  EXPECT_EQ(client.sampled(), before);
  for (Background* process : {two.first.get(), two.second.get()}) process->kill(SIGTERM);
  for (Background* process : {two.first.get(), two.second.get()}) {
    const Outcome ended = process->wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
}

TEST_F(ServeRanks, EndWithTheOneThatIsKilled) {
  const TwoProcesses two(*place_);
  Client client(*place_, *two.first);
  const std::string events = client.stream_long([&] { two.second->kill(SIGKILL); });
  EXPECT_NE(events.find("\"error\""), std::string::npos) << events.substr(events.size() - 200);
  EXPECT_EQ(two.second->wait().code, 128 + SIGKILL);
  const Outcome ended = two.first->wait();
  EXPECT_EQ(ended.code, 2) << ended.err;
  for (const char* part : {"the server ends", "divided among 2 ranks", "rank 1 has exited"})
    EXPECT_NE(ended.err.find(part), std::string::npos) << part << " is not in\n" << ended.err;
}

TEST_F(ServeRanks, RefuseWhatMakesNoSense) {
  for (const auto& [flags, part] :
       {std::pair<Words, std::string>{with(kTensor, {"--replicas", "2", "--load", "nowhere"}),
                                      "--replicas is 2"},
        {words("--tensor-model-parallel-size 0"), "--tensor-model-parallel-size is 0"},
        {words("--pipeline-model-parallel-size 3"), "only 2 layers"},
        {words("--tensor-model-parallel-size 64 --pipeline-model-parallel-size 64"), "4096 ranks"},
        {words("--tensor-model-parallel-size 3"), "--tensor-model-parallel-size"}}) {
    const Outcome r = place_->run(serve(flags));
    EXPECT_EQ(r.code, 2) << flags[0] << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << part << " is not in\n" << r.err;
  }
}

}  // namespace
}  // namespace megatron::testing
