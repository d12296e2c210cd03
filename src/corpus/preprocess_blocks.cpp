#include "corpus/preprocess_blocks.h"

#include <cstring>

#include "base/error.h"
#include "base/text_parts.h"
#include "base/utf8.h"

namespace megatron::corpus {
namespace {

template <class T>
void copy_as(const std::vector<int32_t>& ids, std::vector<std::byte>& out) {
  out.resize(ids.size() * sizeof(T));
  auto* to = out.data();
  for (const int32_t id : ids) {
    const T value = static_cast<T>(id);
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  }
}

}  // namespace

BlockTokenizer::BlockTokenizer(const DocumentRules& rules, const Vocabulary& vocabulary)
    : rules_(rules),
      vocabulary_(vocabulary),
      parser_(rules.json_keys),
      splitter_(rules.language, rules.keep_newlines),
      ids_(rules.json_keys.size() * static_cast<size_t>(rules.partitions)) {}

TokenizedBlock BlockTokenizer::tokenize(const data::TextBlock& block) {
  TokenizedBlock out;
  out.text_bytes = block.text_bytes;
  for (Ids& ids : ids_) {
    ids.tokens.clear();
    ids.lengths.clear();
    ids.sequences.clear();
  }
  block.json_lines ? add_lines(block, out) : add_pieces(block, out);
  out.documents.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) {
    encode(ids_[i], out.documents[i]);
    out.token_count += static_cast<int64_t>(ids_[i].tokens.size());
  }
  return out;
}

void BlockTokenizer::add_lines(const data::TextBlock& block, TokenizedBlock& out) {
  std::string_view rest = block.lines.text();
  int64_t index = 0;
  for (; !rest.empty(); ++index) {
    const std::string_view line = take_until(rest, '\n');
    if (data::is_blank(line)) continue;
    if (!add_record(block.first_record + index, block, block.lines.first_line() + index, line, out))
      return;
  }
}

void BlockTokenizer::add_pieces(const data::TextBlock& block, TokenizedBlock& out) {
  int64_t index = 0;
  for (const data::TextBlock::Piece& piece : block.pieces) {
    if (!add_record(block.first_record + index++, block, piece.line, piece.text, out)) return;
  }
}

// Returns false if the block ends here.
bool BlockTokenizer::add_record(int64_t record, const data::TextBlock& block, int64_t line,
                                std::string_view text, TokenizedBlock& out) {
  const auto partition = static_cast<size_t>(record % rules_.partitions);
  const auto stride = static_cast<size_t>(rules_.partitions);
  for (size_t i = partition; i < ids_.size(); i += stride) ids_[i].mark();
  try {
    size_t at = partition;
    if (block.json_lines) {
      for (const auto& texts : parser_.parse(text)) {
        add_document(texts, ids_[at]);
        at += stride;
      }
    } else {
      MG_CHECK(is_utf8(text),
               "the text from this line on is not UTF-8; convert it (iconv -t UTF-8) or leave the "
               "file out");
      for (; at < ids_.size(); at += stride) add_document({&text, 1}, ids_[at]);
    }
    ++out.document_count;
    return true;
  } catch (const Error& error) {
    for (size_t i = partition; i < ids_.size(); i += stride) ids_[i].go_back();
    ++out.bad_count;
    if (out.bad.size() < TokenizedBlock::kNamed) {
      out.bad.push_back(line > 0 ? fmt::format("{}:{}: {}", block.path, line, error.what())
                                 : fmt::format("{}: {}", block.path, error.what()));
    }
    return rules_.skip_bad;
  }
}

void BlockTokenizer::add_document(std::span<const std::string_view> texts, Ids& ids) {
  const size_t first = ids.lengths.size();
  for (const std::string_view text : texts) {
    if (!rules_.split_sentences) {
      add_text(text, ids);
      continue;
    }
    sentences_.clear();
    splitter_.split(text, sentences_);
    for (const std::string_view sentence : sentences_) add_text(sentence, ids);
  }
  const size_t count = ids.lengths.size() - first;
  if (rules_.append_eod && count > 0) {
    ids.tokens.push_back(static_cast<int32_t>(vocabulary_.eod));
    ++ids.lengths.back();
  }
  ids.sequences.push_back(static_cast<int32_t>(count));
}

void BlockTokenizer::add_text(std::string_view text, Ids& ids) {
  const size_t before = ids.tokens.size();
  vocabulary_.tokenizer->encode(text, rules_.include_special_tokens, ids.tokens);
  const size_t count = ids.tokens.size() - before;
  if (count > 0) ids.lengths.push_back(static_cast<int32_t>(count));
}

void BlockTokenizer::encode(Ids& ids, TokenizedDocuments& out) const {
  if (rules_.token_type == DType::u16) {
    int32_t all = 0;
    for (const int32_t id : ids.tokens) all |= id;
    MG_CHECK((all & ~int32_t{0xffff}) == 0,
             "the tokenizer produces ids above 65535, but its vocabulary size is {}: its files do "
             "not belong together",
             vocabulary_.size);
    copy_as<uint16_t>(ids.tokens, out.tokens);
  } else {
    copy_as<int32_t>(ids.tokens, out.tokens);
  }
  out.lengths = ids.lengths;
  out.sequences = ids.sequences;
}

}  // namespace megatron::corpus
