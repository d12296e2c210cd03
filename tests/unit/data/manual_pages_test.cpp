#include "data/manual_pages.h"

#include <random>

#include "support.h"

namespace megatron::data {
namespace {

// The text below one heading, which every snippet needs for its margin.
std::string body(const std::string& source) {
  const std::string text = strip_manual_page(".TH t 1\n.SH NAME\n" + source);
  EXPECT_TRUE(text.starts_with("NAME\n")) << text;
  return text.substr(5);
}

struct Snippet {
  const char* source;
  const char* text;
};

class ManualPage : public ::testing::TestWithParam<Snippet> {};

TEST_P(ManualPage, BecomesPlainText) {
  EXPECT_EQ(body(GetParam().source), GetParam().text) << GetParam().source;
}

INSTANTIATE_TEST_SUITE_P(
    Paragraphs, ManualPage,
    ::testing::Values(
        Snippet{"one\ntwo\n.PP\nthree", "       one two\n\n       three\n"},
        Snippet{".\\\" a comment\n.\\\" Copyright\ntext \\\" rest", "       text\n"},
        Snippet{"a\n.SH \"NEXT SECTION\"\nb\n.SS Sub\nc",
                "       a\n\nNEXT SECTION\n       b\n\n   Sub\n       c\n"},
        Snippet{".SH\nBELOW\nx", "\nBELOW\n       x\n"},
        Snippet{"a\n.br\nb\n.sp\nc", "       a\n       b\n\n       c\n"},
        Snippet{".nf\nint  a;\n\tb;\n.fi\nc\nd", "       int  a;\n               b;\n       c d\n"},
        Snippet{".EX\nx  y\n.EE", "       x  y\n"},
        Snippet{"a\n.in +4n\n.nf\nb\n.fi\n.in\nc", "       a\n           b\n       c\n"},
        Snippet{"a\n.RS 4\nb\n.RE\nc", "       a\n           b\n       c\n"},
        Snippet{".TP\n.B \\-a\nfirst\n.TP\n.BI \\-\\-long= value\nsecond",
                "       -a     first\n\n       --long=value\n              second\n"},
        Snippet{".PD 0\n.TP 4\na\nx\n.TP\nb\ny", "       a   x\n       b   y\n"},
        Snippet{".IP \\(bu 3\nitem\n.IP \\(bu\nmore", "       •  item\n\n       •  more\n"},
        Snippet{".HP 4\nhang", "       hang\n"},
        Snippet{"text\n  indented", "       text\n         indented\n"},
        Snippet{"long \\\nline", "       long line\n"}));

INSTANTIATE_TEST_SUITE_P(
    Inline, ManualPage,
    ::testing::Values(
        Snippet{".BR open (2),\n.I path\n.RB [ \\-x ]", "       open(2), path [-x]\n"},
        Snippet{".BI \"int f(int \" a \");\"", "       int f(int a);\n"},
        Snippet{"\\fBbold\\fP \\fIit\\fR \\f(CWcode\\fP \\s-1small\\s0",
                "       bold it code small\n"},
        Snippet{"a\\-b \\(aqq\\(aq \\(lqw\\(rq \\e \\&.x 5\\ m\\~n \\(co \\[u00E9] \\(em",
                "       a-b 'q' “w” \\ .x 5 m n © é —\n"},
        Snippet{"\\*(lqstring\\*(rq \\*R", "       “string” ®\n"},
        Snippet{"glued\\c\n.B here", "       gluedhere\n"},
        Snippet{".UR http://x.y\nsite\n.UE .", "       site <http://x.y>.\n"},
        Snippet{"x\\h'2n'y\\v'1'z\\o'ab'", "       x  yza\n"}));

INSTANTIATE_TEST_SUITE_P(
    Language, ManualPage,
    ::testing::Values(
        Snippet{".ds name value\n.as name s\n\\*[name]", "       values\n"},
        Snippet{".de XX\n.B \\\\$1\nand \\\\$2\n..\n.XX one \"two three\"",
                "       one and two three\n"},
        Snippet{".if n yes\n.if t no\n.ie t no\n.el else", "       yes else\n"},
        Snippet{".ie t \\{\\\nno\n.\\}\n.el \\{\\\nyes\n.\\}\nafter", "       yes after\n"},
        Snippet{
            ".nr a 3\n.nr a +1\n.if \\na=4 four\n.if \\na>4 five\n.if 'a'b' no\n.if !'a'b' differ",
            "       four differ\n"},
        Snippet{".ig\nhidden\n..\nshown", "       shown\n"},
        Snippet{".unknown request\n.ft B\n.so other.1\ntext", "       text\n"},
        Snippet{".EQ\na over b\n.EN\ntext", "       text\n"}));

INSTANTIATE_TEST_SUITE_P(
    Tables, ManualPage,
    ::testing::Values(
        Snippet{".TS\nl l.\nName\tValue\nab\t1\n.TE", "       Name   Value\n       ab     1\n"},
        Snippet{".TS\ntab(:) allbox;\nlb r.\na:10\nbb:2\n_\n.TE",
                "       a    10\n       bb    2\n       -------\n"},
        Snippet{".TS\nl l.\nkey\tT{\nsome\n.B filled\ntext\nT}\n.TE",
                "       key   some filled text\n"},
        Snippet{".TS\nc s\nl l.\nA wide title\nx\ty\n.TE", "       A wide title\n       x   y\n"}));

std::string mdoc(const std::string& source) {
  return strip_manual_page(".Dd May 1, 2020\n.Dt T 1\n.Os\n.Sh NAME\n.Nm tool\n.Nd does\n.Sh X\n" +
                           source);
}

TEST(ManualPages, MdocMarkup) {
  const std::string head = "NAME\n       tool - does\n\nX\n";
  const auto expect = [&](const std::string& source, const std::string& text) {
    EXPECT_EQ(mdoc(source), head + text) << source;
  };
  expect(".Nm\n.Op Fl v\n.Op Fl o Ar file .\n.Ar", "       tool [-v] [-o file]. file ...\n");
  expect("See\n.Xr ls 1 ,\n.Pa /etc/x .", "       See ls(1), /etc/x.\n");
  expect(".Fn open \"const char *p\" \"int f\" .\n.Fo close\n.Fa fd\n.Fa x\n.Fc",
         "       open(const char *p, int f). close(fd, x)\n");
  expect(".Oo\n.Fl a Ns Ar b\n.Oc\n.Dq quoted ,\n.Pq in", "       [-ab] “quoted”, (in)\n");
  expect(".Bl -tag -width 4n\n.It Fl a\nfirst\n.It Fl longer\nsecond\n.El\nafter",
         "       -a    first\n\n       -longer\n             second\n       after\n");
  expect(".Bl -bullet -compact\n.It\none\n.It\ntwo\n.El", "       •  one\n       •  two\n");
  expect(".Bd -literal -offset indent\na  b\n.Ed\nc", "             a  b\n       c\n");
  expect(".Bl -tag -width 2n\n.It Fl D Xo\n.Sm off\n.Ar host : port\n.Sm on\n.Xc\ntext\n.El",
         "       -D host:port\n           text\n");
  expect(".Ux and\n.Bx 4.4 .\n.St -p1003.1-2008",
         "       UNIX and 4.4BSD. IEEE Std 1003.1-2008 (“POSIX.1”)\n");
}

TEST(ManualPages, FillTo78Columns) {
  std::string source;
  for (int i = 0; i < 60; ++i) source += "word\n";
  const std::string text = body(source);
  const std::string first = text.substr(0, text.find('\n'));
  EXPECT_EQ(first.size(), 76u);  // 7 + 14 words of 4 and 13 spaces
}

TEST(ManualPages, StubsAreEmpty) {
  EXPECT_EQ(strip_manual_page(".so man2/open.2\n"), "");
  EXPECT_EQ(strip_manual_page(".\\\" comment\n.so man2/open.2\n"), "");
  EXPECT_EQ(strip_manual_page(""), "");
}

TEST(ManualPages, HostilePagesEnd) {
  for (const char* source : {".de a\n.a\n.a\n..\n.a",
                             ".ds a \\*a\\*a\n\\*a",
                             ".de a\nx\n.b\n.b\n..\n.de b\n.a\n.a\n..\n.a",
                             ".while 1 \\{\nx\n.\\}",
                             ".TS\nl l",
                             ".TS\n;\n;\n.TE",
                             ".if",
                             ".ie",
                             ".el x",
                             ".nr",
                             ".de",
                             ".in -999999999n\nx",
                             ".RS 99999999999999\n.RS 5\nx",
                             "\\",
                             "\\*",
                             "\\(",
                             "\\[",
                             "\\f",
                             "\\h'999999999'x",
                             "\\N'1114112'",
                             ".tr",
                             ".ti 99999999",
                             ".Dd\n.Bl -tag -width 999999999999\n.It x\ny",
                             ".Dd\n.It",
                             ".Dd\n.Fn",
                             ".Dd\n.Bd -offset",
                             ".TS\nT{.\nT{\na\n"}) {
    strip_manual_page(source);
  }
  const std::string alphabet[] = {
      ".",     "\\",   "'",    "\"",        "\n.",      "\n",   " ",   "{",        "}",
      "[",     "]",    "(",    "*",         "n",        "if ",  "ie ", "el ",      "de x\n",
      "..\n",  "TS\n", "TE\n", "l l.\n",    "T{\n",     "T}",   "\t",  "TP\n",     "IP ",
      "RS ",   "RE\n", "SH ",  "Bl -tag\n", "It ",      "Dd\n", "Oo ", "Xo ",      "Xc ",
      "ds x ", "\\*x", ".x ",  "$1",        "nr x 5\n", "\\nx", "c\n", "Sm off\n", "é"};
  std::mt19937 random(11);
  for (int round = 0; round < 1500; ++round) {
    std::string source = round % 2 == 0 ? ".Dd\n" : "";
    for (int i = 0; i < 60; ++i) source += alphabet[random() % std::size(alphabet)];
    strip_manual_page(source);
  }
}

}  // namespace
}  // namespace megatron::data
