// More than a million inputs of every kind that the program reads, with a few places changed. Each
// is accepted, or refused with a message. None crashes, takes longer than 10 s, or lets the process
// grow by more than 1 GiB.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "checkpoint/model_directory.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"
#include "data/indexed_dataset.h"
#include "data/json_lines.h"
#include "golden/server/support.h"
#include "inference/constraint/grammar.h"
#include "jinja/template.h"
#include "models/model.h"
#include "slow/server/mutations.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(MEGATRON_GOLDEN) + "/";

class MutatedInputs : public ::testing::Test {
 protected:
  MutatedInputs() {
    const std::string memory = fs::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
    std::string pattern = memory + "/mutated-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    log::set_level(log::Level::error);
  }
  ~MutatedInputs() override { fs::remove_all(folder_); }

  // Overwrites a file in place, without the fsync of the program's own files.
  void write(const std::string& name, const std::string& bytes) const {
    std::FILE* file = std::fopen((folder_ + "/" + name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    std::fwrite(bytes.data(), 1, bytes.size(), file);
    std::fclose(file);
  }

  std::string folder_;
};

void touch(std::span<const std::byte> bytes) {
  volatile unsigned sum = 0;
  for (size_t i = 0; i < bytes.size(); i += 4096) sum = sum + static_cast<unsigned>(bytes[i]);
}

std::vector<std::string> configs() {
  std::vector<std::string> texts;
  for (const auto& entry : fs::directory_iterator(kGolden + "hf"))
    if (fs::exists(entry.path() / "config.json"))
      texts.push_back(read_file((entry.path() / "config.json").string()));
  std::ranges::sort(texts);
  return texts;
}

TEST_F(MutatedInputs, Configs) {
  read_all("config.json", 250'000, configs(), [](const std::string& text) {
    const models::Model model = models::model_from_config_json(Json::parse(text));
    EXPECT_GT(model->parameter_count(), 0);
  });
}

// One tokenizer of each model, and components of all kinds.
std::vector<std::string> tokenizers_of_json() {
  const std::string vocabulary =
      R"({"<s>": 0, "</s>": 1, "<unk>": 2, "a": 3, "b": 4, "ab": 5, "c": 6, "##b": 7, "▁a": 8, "Ġ": 9})";
  const std::string added =
      R"("added_tokens": [{"id": 0, "content": "<s>", "special": true, "lstrip": false, "rstrip": true,
          "normalized": false, "single_word": false}, {"id": 12, "content": "new", "special": false,
          "lstrip": true, "rstrip": false, "normalized": true, "single_word": true}], )";
  const auto file = [&](const std::string& rest) { return "{" + added + rest + "}"; };
  return {
      file(
          R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Replace",
          "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "▁"}]},
          "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex":
          "'s|\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel",
          "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]}, "post_processor": {"type":
          "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A",
          "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}, "decoder": {"type": "ByteLevel"},
          "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
          "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": false, "ignore_merges": false, "vocab": )" +
          vocabulary + R"(, "merges": ["a b"]})"),
      file(
          R"("normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
          "strip_accents": null, "lowercase": true}, "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor":
          {"type": "BertProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0]}, "decoder": {"type": "WordPiece",
          "prefix": "##", "cleanup": true}, "model": {"type": "WordPiece", "unk_token": "<unk>",
          "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": )" +
          vocabulary + "}"),
      file(
          R"("normalizer": {"type": "Strip", "strip_left": true, "strip_right": false}, "pre_tokenizer": {"type":
          "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}, "decoder": {"type": "Sequence",
          "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
          {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, "model": {"type": "Unigram",
          "unk_id": 2, "byte_fallback": false, "vocab": [["<s>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["a", -1.5],
          ["b", -2.5], ["ab", -3.0], ["▁", -1.0]]})"),
      file(
          R"("pre_tokenizer": {"type": "Punctuation", "behavior": "MergedWithNext"}, "model": {"type": "WordLevel",
          "unk_token": "<unk>", "vocab": )" +
          vocabulary + "}")};
}

void use(const tokenizers::Tokenizer& tokenizer) {
  const std::vector<int32_t> ids = tokenizer.encode("<s>ab a new  cab's 12 \xc3\xa9 ab", true);
  EXPECT_LE(tokenizer.decode(ids).size(), size_t{64} << 20);
}

TEST_F(MutatedInputs, TokenizerFiles) {
  read_all("tokenizer.json", 100'000, tokenizers_of_json(), [&](const std::string& text) {
    write("tokenizer.json", text);
    use(tokenizers::Tokenizer::load(folder_ + "/tokenizer.json"));
  });
}

TEST_F(MutatedInputs, TokenizerConfigs) {
  write("tokenizer.json", tokenizers_of_json()[0]);
  const std::vector<std::string> seeds = {
      R"({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": {"content": "</s>",
         "lstrip": false, "special": true}, "pad_token": null, "added_tokens_decoder": {"0": {"content": "<s>",
         "special": true, "lstrip": false, "rstrip": false, "normalized": false, "single_word": false}, "20":
         {"content": "<x>", "special": false}}, "additional_special_tokens": ["<y>", {"content": "<z>"}],
         "model_max_length": 1000000000000000019884624838656, "add_prefix_space": false,
         "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"})",
      R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "add_eos_token": false, "legacy": false,
         "chat_template": [{"name": "default", "template": "{{ bos_token }}"}, {"name": "tool_use", "template": "x"}]})"};
  read_all("tokenizer_config.json", 60'000, seeds, [&](const std::string& text) {
    write("tokenizer_config.json", text);
    use(tokenizers::Tokenizer::load(folder_));
  });
}

TEST_F(MutatedInputs, SentencePieceFiles) {
  const std::vector<std::string> seeds = {
      read_file(kGolden + "tokenizers/sentencepiece/bpe_llama/tokenizer.model")};
  read_all("SentencePiece", 20'000, seeds, [&](const std::string& bytes) {
    write("tokenizer.model", bytes);
    use(tokenizers::Tokenizer::load(folder_ + "/tokenizer.model"));
  });
}

std::string safetensors(const std::string& header, size_t bytes) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header +
         std::string(bytes, '\x3f');
}

TEST_F(MutatedInputs, Safetensors) {
  const std::vector<std::string> seeds = {
      safetensors(R"({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})", 24),
      safetensors(R"({"__metadata__": {"format": "pt"}, "a.weight": {"dtype": "BF16", "shape": [4],
         "data_offsets": [0, 8]}, "b": {"dtype": "U8", "shape": [], "data_offsets": [8, 9]}, "c": {"dtype": "I64",
         "shape": [0, 5], "data_offsets": [9, 9]}})",
                  9)};
  read_all("safetensors", 150'000, seeds, [&](const std::string& bytes) {
    write("model.safetensors", bytes);
    const checkpoint::SafetensorsFile file(folder_ + "/model.safetensors");
    for (const checkpoint::TensorInfo& info : file.tensors()) touch(file.bytes(info));
  });
}

TEST_F(MutatedInputs, SafetensorsIndices) {
  write("config.json", configs()[0]);
  write("a.safetensors",
        safetensors(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4));
  write("b.safetensors",
        safetensors(R"({"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4));
  const std::vector<std::string> seeds = {
      R"({"metadata": {"total_size": 8}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})"};
  read_all("index.json", 40'000, seeds, [&](const std::string& text) {
    write("model.safetensors.index.json", text);
    const checkpoint::ModelDirectory directory(folder_);
    for (const std::string& name : directory.tensor_names()) touch(directory.bytes(name));
  });
}

TEST_F(MutatedInputs, TorchFiles) {
  std::vector<std::string> seeds;
  for (const char* kind : {"gpt2_legacy", "gpt2_zip"})
    seeds.push_back(read_file(kGolden + "torch/" + kind + "/pytorch_model.bin"));
  read_all("pytorch_model.bin", 60'000, seeds, [&](const std::string& bytes) {
    write("pytorch_model.bin", bytes);
    const checkpoint::TorchFile file(folder_ + "/pytorch_model.bin");
    for (const checkpoint::TensorInfo& info : file.tensors()) touch(file.bytes(info));
  });
}

TEST_F(MutatedInputs, IndexFiles) {
  const std::vector<std::string> seeds = {read_file(kGolden + "indexed/i8_docs.idx")};
  write("d.bin", read_file(kGolden + "indexed/i8_docs.bin"));
  read_all(".idx", 150'000, seeds, [&](const std::string& bytes) {
    write("d.idx", bytes);
    const data::IndexedDataset dataset(folder_ + "/d");
    std::array<int64_t, 16> tokens{};
    for (int64_t i = 0; i < std::min<int64_t>(dataset.sequence_count(), 3); ++i)
      dataset.read(i, 0,
                   std::span(tokens).first(static_cast<size_t>(
                       std::min(dataset.length(i), static_cast<int64_t>(tokens.size())))));
  });
}

TEST_F(MutatedInputs, JsonLines) {
  const std::vector<std::string> seeds = {
      R"({"text": "one line", "id": 7, "meta": {"url": "http://x", "scores": [1, 2.5e3, null, true]}})",
      R"({"other": "\ud83d\ude00 \u00e9", "text": ["two", "sentences"], "n": 18446744073709551615})"};
  data::JsonLineParser parser({"text"});
  read_all("JSON lines", 150'000, seeds, [&](const std::string& line) {
    std::string padded = line.substr(0, line.find('\n'));
    const size_t size = padded.size();
    padded.append(data::LineBlock::kPadding, '\0');
    for (const auto& texts : parser.parse({padded.data(), size}))
      for (const std::string_view text : texts) EXPECT_LE(text.size(), size);
  });
}

TEST_F(MutatedInputs, Templates) {
  const std::vector<std::string> seeds = {
      "{% for m in messages %}{% if m.role == 'user' and loop.first %}{{ '[INST] ' + m.content | "
      "trim ~ ' [/INST]' }}"
      "{% else %}{{ raise_exception('no ' ~ m.role) }}{% endif %}{% endfor %}",
      "{%- macro f(a, b=2) -%}{{ a * b }}{%- endmacro -%}{% set ns = namespace(n=0) %}{% for i "
      "in range(9) if i % 2 %}"
      "{% set ns.n = ns.n + i ** 2 %}{{ f(i) }}{% endfor %}{{ ns.n | tojson(indent=2) }}{{ "
      "x[1:-1:2] | join(',') }}",
      "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | "
      "length }}"
      "{{ '%5.2f|%-8s' | format(3.14159, 'a') }}{{ x.items() | list if x is mapping else x | sort "
      "| reverse | list }}"
      "{% set t %}{{ 'b' | upper }}{% endset %}{{ t | replace('B', 'c' * 10) | indent(4) }}"};
  const jinja::Variables variables = {
      {"messages", jinja::Value::from(Json::parse(R"([{"role": "user", "content": " hi "}])"))},
      {"x", jinja::Value::from(Json::parse("[3, 1, 2, 5]"))}};
  read_all("Jinja", 60'000, seeds, [&](const std::string& source) {
    jinja::Template::parse(source, "test").render(variables);
  });
}

TEST_F(MutatedInputs, Schemas) {
  const std::vector<std::string> seeds = {
      R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"type": "array", "items":
         {"type": "integer", "minimum": -5, "maximum": 1000}, "minItems": 1, "maxItems": 4}}, "required": ["a", "b"],
         "additionalProperties": false})",
      R"({"$defs": {"t": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]},
         "k": {"enum": ["x", 1, null]}}, "required": ["next", "k"], "additionalProperties": false}}, "$ref": "#/$defs/t"})",
      R"({"type": "object", "properties": {"s": {"type": "string", "pattern": "^[a-z]{2,5}-\\d+$"}, "d": {"type":
         "string", "format": "date"}, "n": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01}}, "required":
         ["s", "d", "n"], "additionalProperties": false})"};
  read_all("schemas", 90'000, seeds, [](const std::string& text) {
    EXPECT_NE(inference::Grammar::from_json_schema(Json::parse(text)), nullptr);
  });
}

TEST_F(MutatedInputs, Patterns) {
  const std::vector<std::string> seeds = {R"(^([a-z0-9_.+-]+)@[a-z]{2,63}\.(com|org)$)",
                                          R"((\d{3}-)?\d{3}-\d{4}|[^\s"]{1,20})",
                                          R"(\p{Lu}\p{Ll}*( \p{Lu}[\w']*){0,5})"};
  read_all("patterns", 60'000, seeds, [](const std::string& text) {
    EXPECT_NE(inference::Grammar::from_regex(text), nullptr);
  });
}

// Returns a server's answer to bytes on a new connection, up to the end of the status line, or ""
// if it only closes the connection. After `patience` milliseconds without an answer the client
// closes its sending side, as if the request were cut short.
std::string answer_to(int port, const std::string& bytes, int patience) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("the server does not take connections any more");
  [[maybe_unused]] const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  pollfd answered{.fd = socket, .events = POLLIN, .revents = 0};
  if (::poll(&answered, 1, patience) == 0) ::shutdown(socket, SHUT_WR);
  std::array<char, 64> answer{};
  const ssize_t got = ::recv(socket, answer.data(), answer.size(), 0);
  ::close(socket);
  return {answer.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
}

TEST_F(MutatedInputs, Requests) {
  const ServedModel served;
  const auto post = [](const std::string& path, const std::string& body) {
    return fmt::format(
        "POST {} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: "
        "{}\r\nConnection: close\r\n\r\n{}",
        path, body.size(), body);
  };
  const std::vector<std::string> seeds = {
      "GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer x\r\n\r\n",
      "GET /health HTTP/1.0\r\n\r\n",
      post("/v1/completions",
           R"({"prompt": "a", "max_tokens": 2, "logprobs": 1, "stop": ["x"], "n": 1})"),
      post("/v1/chat/completions",
           R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "stream": true})"),
      post("/tokenize", R"({"prompt": "text", "add_special_tokens": true})"),
      "POST /detokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
      "12\r\n{\"tokens\": [65, 66\r\n2\r\n]}\r\n0\r\n\r\n"};
  size_t sent = 0;
  read_all("HTTP", 60'000, seeds, [&](const std::string& bytes) {
    const bool whole = sent++ < seeds.size();
    const std::string answer = answer_to(served.server->port(), bytes, whole ? 10'000 : 10);
    if (answer.find(" 500 ") < 16) throw std::runtime_error("500 for a request");
    if (answer.find(" 200 ") > 16) throw Error("not answered, or refused");
  });
  EXPECT_NE(answer_to(served.server->port(), seeds[1], 10'000).find(" 200 "), std::string::npos);
}

}  // namespace
}  // namespace megatron::testing
