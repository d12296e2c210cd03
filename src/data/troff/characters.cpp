#include "data/troff/characters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

namespace megatron::data::troff {
namespace {

using Entry = std::pair<std::string_view, std::string_view>;

// groff_char(7).
constexpr auto kGlyphs = std::to_array<Entry>({
    {"!=", "≠"},        {"%0", "‰"},       {"'A", "Á"},  {"'C", "Ć"},  {"'E", "É"},
    {"'I", "Í"},        {"'O", "Ó"},       {"'U", "Ú"},  {"'Y", "Ý"},  {"'a", "á"},
    {"'c", "ć"},        {"'e", "é"},       {"'i", "í"},  {"'o", "ó"},  {"'u", "ú"},
    {"'y", "ý"},        {"*A", "Α"},       {"*B", "Β"},  {"*C", "Ξ"},  {"*D", "Δ"},
    {"*E", "Ε"},        {"*F", "Φ"},       {"*G", "Γ"},  {"*H", "Θ"},  {"*I", "Ι"},
    {"*K", "Κ"},        {"*L", "Λ"},       {"*M", "Μ"},  {"*N", "Ν"},  {"*O", "Ο"},
    {"*P", "Π"},        {"*Q", "Ψ"},       {"*R", "Ρ"},  {"*S", "Σ"},  {"*T", "Τ"},
    {"*U", "Υ"},        {"*W", "Ω"},       {"*X", "Χ"},  {"*Y", "Η"},  {"*Z", "Ζ"},
    {"*a", "α"},        {"*b", "β"},       {"*c", "ξ"},  {"*d", "δ"},  {"*e", "ε"},
    {"*f", "φ"},        {"*g", "γ"},       {"*h", "θ"},  {"*i", "ι"},  {"*k", "κ"},
    {"*l", "λ"},        {"*m", "μ"},       {"*n", "ν"},  {"*o", "ο"},  {"*p", "π"},
    {"*q", "ψ"},        {"*r", "ρ"},       {"*s", "σ"},  {"*t", "τ"},  {"*u", "υ"},
    {"*w", "ω"},        {"*x", "χ"},       {"*y", "η"},  {"*z", "ζ"},  {"+-", "±"},
    {",C", "Ç"},        {",c", "ç"},       {"->", "→"},  {"-D", "Ð"},  {"-d", "đ"},
    {"/L", "Ł"},        {"/O", "Ø"},       {"/_", "∠"},  {"/l", "ł"},  {"/o", "ø"},
    {"12", "½"},        {"14", "¼"},       {"34", "¾"},  {":A", "Ä"},  {":E", "Ë"},
    {":I", "Ï"},        {":O", "Ö"},       {":U", "Ü"},  {":a", "ä"},  {":e", "ë"},
    {":i", "ï"},        {":o", "ö"},       {":u", "ü"},  {":y", "ÿ"},  {"<-", "←"},
    {"<=", "≤"},        {"<>", "↔"},       {"==", "≡"},  {"=>", "⇒"},  {"=~", "≅"},
    {">=", "≥"},        {"AE", "Æ"},       {"AN", "∧"},  {"Ah", "ℵ"},  {"Aq", "'"},
    {"Bq", "„"},        {"Cs", "¤"},       {"Do", "$"},  {"Eu", "€"},  {"Fc", "»"},
    {"Fo", "«"},        {"IJ", "Ĳ"},       {"Im", "ℑ"},  {"OE", "Œ"},  {"OR", "∨"},
    {"Of", "ª"},        {"Om", "º"},       {"Po", "£"},  {"Re", "ℜ"},  {"S1", "¹"},
    {"S2", "²"},        {"S3", "³"},       {"Sd", "ð"},  {"TP", "Þ"},  {"Tp", "þ"},
    {"Ye", "¥"},        {"^A", "Â"},       {"^E", "Ê"},  {"^I", "Î"},  {"^O", "Ô"},
    {"^U", "Û"},        {"^a", "â"},       {"^e", "ê"},  {"^i", "î"},  {"^o", "ô"},
    {"^u", "û"},        {"`A", "À"},       {"`E", "È"},  {"`I", "Ì"},  {"`O", "Ò"},
    {"`U", "Ù"},        {"`a", "à"},       {"`e", "è"},  {"`i", "ì"},  {"`o", "ò"},
    {"`u", "ù"},        {"a\"", "˝"},      {"a-", "¯"},  {"a.", "˙"},  {"a^", "^"},
    {"aa", "´"},        {"ab", "˘"},       {"ac", "¸"},  {"ad", "¨"},  {"ae", "æ"},
    {"ah", "ˇ"},        {"ao", "˚"},       {"ap", "∼"},  {"aq", "'"},  {"at", "@"},
    {"a~", "~"},        {"ba", "|"},       {"bb", "¦"},  {"bq", "‚"},  {"br", "│"},
    {"bu", "•"},        {"bv", "│"},       {"ca", "∩"},  {"ci", "○"},  {"co", "©"},
    {"coproduct", "∐"}, {"cq", "’"},       {"ct", "¢"},  {"cu", "∪"},  {"dA", "⇓"},
    {"da", "↓"},        {"dd", "‡"},       {"de", "°"},  {"dg", "†"},  {"di", "÷"},
    {"dq", "\""},       {"em", "—"},       {"en", "–"},  {"eq", "="},  {"es", "∅"},
    {"eu", "€"},        {"fc", "›"},       {"ff", "ff"}, {"fi", "fi"}, {"fl", "fl"},
    {"fm", "′"},        {"fo", "‹"},       {"ga", "`"},  {"gr", "∇"},  {"h~", "~"},
    {"ha", "^"},        {"hA", "⇔"},       {"hy", "-"},  {"ib", "⊆"},  {"if", "∞"},
    {"ij", "ĳ"},        {"integral", "∫"}, {"is", "∫"},  {"la", "⟨"},  {"lA", "⇐"},
    {"lB", "["},        {"lC", "{"},       {"lh", "☜"},  {"lq", "“"},  {"lz", "◊"},
    {"mc", "µ"},        {"md", "⋅"},       {"mi", "−"},  {"mo", "∈"},  {"mu", "×"},
    {"nb", "⊄"},        {"nm", "∉"},       {"no", "¬"},  {"oA", "Å"},  {"oa", "å"},
    {"oe", "œ"},        {"oq", "‘"},       {"or", "|"},  {"pc", "·"},  {"pd", "∂"},
    {"pl", "+"},        {"product", "∏"},  {"ps", "¶"},  {"pt", "∝"},  {"rA", "⇒"},
    {"rB", "]"},        {"rC", "}"},       {"ra", "⟩"},  {"rg", "®"},  {"rh", "☞"},
    {"rn", "‾"},        {"rq", "”"},       {"rs", "\\"}, {"ru", "_"},  {"sb", "⊂"},
    {"sc", "§"},        {"sh", "#"},       {"sl", "/"},  {"sp", "⊃"},  {"sq", "□"},
    {"sqrt", "√"},      {"sr", "√"},       {"ss", "ß"},  {"st", "∋"},  {"sum", "∑"},
    {"t+-", "±"},       {"tdi", "÷"},      {"te", "∃"},  {"tf", "∴"},  {"ti", "~"},
    {"tm", "™"},        {"tmu", "×"},      {"ts", "ς"},  {"uA", "⇑"},  {"ua", "↑"},
    {"ul", "_"},        {"vA", "⇕"},       {"va", "↕"},  {"~=", "≈"},  {"~A", "Ã"},
    {"~N", "Ñ"},        {"~O", "Õ"},       {"~a", "ã"},  {"~n", "ñ"},  {"~o", "õ"},
    {"~~", "≈"},
});

std::string encode(uint32_t code) {
  if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  std::string text;
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  if (code < 0x800) {
    text += static_cast<char>(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      text += static_cast<char>(0xe0 | code >> 12);
    } else {
      text += static_cast<char>(0xf0 | code >> 18);
      text += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    }
    text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
  }
  return text + static_cast<char>(0x80 | (code & 0x3f));
}

std::string coded(std::string_view digits, int base) {
  uint32_t code = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
  return result.ec == std::errc() && result.ptr == digits.data() + digits.size() && code >= 0x20
             ? encode(code)
             : "";
}

}  // namespace

std::string glyph(std::string_view name) {
  const auto found = std::find_if(kGlyphs.begin(), kGlyphs.end(),
                                  [&](const Entry& entry) { return entry.first == name; });
  if (found != kGlyphs.end()) return std::string(found->second);
  if (name.size() >= 5 && name.front() == 'u') return coded(name.substr(1, name.find('_') - 1), 16);
  if (name.starts_with("char")) return coded(name.substr(4), 10);
  return name.size() == 1 ? std::string(name) : std::string();
}

int display_width(std::string_view text) {
  int width = 0;
  for (const char c : text) {
    if (c != kJoin && c != kZero && (static_cast<unsigned char>(c) & 0xc0) != 0x80) ++width;
  }
  return width;
}

std::string without_markers(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (c == kHardSpace) plain += ' ';
    else if (c != kJoin && c != kZero) plain += c;
  }
  return plain;
}

}  // namespace megatron::data::troff
