// Splits text into sentences by the rules below. It is not Punkt, which Megatron-LM uses through
// NLTK and which learned its abbreviations from a corpus: most boundaries are the same, some are
// not.
//
// A sentence ends
// - after . ! ? or an ellipsis (... or U+2026), several of them, and the closing quotes and
// brackets that follow, if white space or the end of the text comes next;
// - after the CJK marks U+3002 U+FF01 U+FF1F U+FF61 and closing quotes and brackets, whatever comes
// next;
//   - at a blank line (headings and paragraphs).
// It does not end
// - if the next word begins with a lower-case letter ("Really?" he said.);
// - after an abbreviation that is always followed by something (Dr., e.g., vs., Fig. ...), or by a
// number (No. 5, p. 7, Jan. 3);
// - after a single capital (J. S. Bach), a number that begins the sentence (1. First), and an
// abbreviation with inner points (U.S., a.m., Ph.D.), unless the next word is one that usually
// begins a sentence (The, It, However ...); etc., Inc. and the like end it before a capital;
//   - inside numbers, names and addresses (3.14, example.org), where no white space follows.
#pragma once

#include <string_view>
#include <vector>

namespace megatron::data {

class SentenceSplitter {
 public:
  // Throws Error for a language other than english. keep_newlines: the white space after a sentence
  // is kept with it, so that the concatenated sentences are the text; otherwise white space around
  // sentences is omitted.
  explicit SentenceSplitter(std::string_view language = "english", bool keep_newlines = false);

  // Appends the sentences of a UTF-8 text, as views of it; none for a text of white space only.
  void split(std::string_view text, std::vector<std::string_view>& sentences) const;

 private:
  bool keep_newlines_;
};

}  // namespace megatron::data
