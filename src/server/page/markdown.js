"use strict";
// Markdown as DOM nodes: headings, lists, block quotes, tables, code, emphasis and links. Whatever
// the source says, only elements of these kinds and text are made: HTML in it is text, and nothing
// is loaded.

const kDeepest = 20;  // lists and quotes in one another, and markup within a line
const kItem = /^([ \t]*)([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const kFence = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*$/;
const kHeading = /^ {0,3}(#{1,6})([ \t]+|$)/;
const kRule = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const kQuote = /^ {0,3}> ?/;
// Behind the text of a link: (address "title"), the address maybe in <>.
const kAddress = new RegExp(
  /\(\s*(?:<([^<>\n]*)>|([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*))/.source +
  /(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.source, "y");
const kClosed = /^([^(]*?)\)+$/;  // with brackets at the end that do not begin in it
const kLongestLink = 300;        // characters of its text
const kTableRule = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

function add(parent, tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// The address of a link, or null for one that is not to the web.
function webAddress(text) {
  try {
    const url = new URL(text);
    return /^https?:$/.test(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// Columns of the space that a line begins with.
const indentOf = (text) => /^[ \t]*/.exec(text)[0].replaceAll("\t", "    ").length;

// A text whose lines are {at, to}: stretches of its source, without what lists and quotes around
// them put in front.
class Markdown {
  // write(parent, from, to): appends a stretch of the source as text.
  constructor(source, write) {
    this.source = source;
    this.write = write;
  }

  // Appends the blocks from an offset on. The answer tells where the last that begins on a whole line
  // is, and how many nodes the parent has before it: they stay the same however the source goes on.
  render(parent, begin) {
    const lines = [];
    for (let at = begin; at < this.source.length; at = lines.at(-1).to + 1) {
      const end = this.source.indexOf("\n", at);
      lines.push({at, to: end < 0 ? this.source.length : end});
    }
    this.unfinished = this.source.endsWith("\n") ? null : lines.at(-1);
    return this.blocks(parent, lines, 0, {at: begin, nodes: parent.childNodes.length});
  }

  text(line) { return this.source.slice(line.at, line.to); }
  isBlank(line) { return !line || !this.text(line).trim(); }

  // Without the space at its begin, up to so many columns.
  without(line, columns) {
    let at = line.at;
    for (let left = columns; left > 0 && at < line.to && /[ \t]/.test(this.source[at]); ++at)
      left -= this.source[at] === "\t" ? 4 : 1;
    return {at, to: line.to};
  }

  blocks(parent, lines, depth, last) {
    for (let i = 0; i < lines.length;) {
      if (this.isBlank(lines[i])) {
        ++i;
        continue;
      }
      if (lines[i] !== this.unfinished) last = {at: lines[i].at, nodes: parent.childNodes.length};
      const text = this.text(lines[i]), deep = depth >= kDeepest;
      if (kFence.test(text)) i = this.code(parent, lines, i);
      else if (kHeading.test(text)) i = this.heading(parent, lines, i);
      else if (kRule.test(text)) i = (add(parent, "hr"), i + 1);
      else if (kQuote.test(text) && !deep) i = this.quote(parent, lines, i, depth);
      else if (kItem.test(text) && !deep) i = this.list(parent, lines, i, depth);
      else if (this.isTable(lines, i)) i = this.table(parent, lines, i);
      else i = this.paragraph(parent, lines, i);
    }
    return last;
  }

  // Ends a paragraph. A number that is not the first is a part of its text.
  interrupts(lines, i) {
    const text = this.text(lines[i]), item = kItem.exec(text);
    return kFence.test(text) || kHeading.test(text) || kRule.test(text) || kQuote.test(text) ||
      (item && item[0].length < text.length && (!/\d/.test(item[2]) || /^0*1\D/.test(item[2]))) ||
      this.isTable(lines, i);
  }

  code(parent, lines, i) {
    const [, fence, language] = kFence.exec(this.text(lines[i]));
    const indent = indentOf(this.text(lines[i])), pre = add(parent, "pre");
    const end = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}[ \\t]*$`);
    if (language) pre.dataset.language = language;
    const code = add(pre, "code");
    for (++i; i < lines.length; ++i) {
      if (end.test(this.text(lines[i]))) return i + 1;
      const {at, to} = this.without(lines[i], indent);
      this.write(code, at, Math.min(to + 1, this.source.length));
    }
    return i;
  }

  heading(parent, lines, i) {
    const line = lines[i], [all, marks] = kHeading.exec(this.text(line));
    const text = this.text(line).slice(all.length).replace(/(?:^|[ \t]+)#*[ \t]*$/, "");
    const heading = add(parent, "h" + Math.min(marks.length + 1, 6));  // the page has a first one
    this.inline(heading, [{at: line.at + all.length, to: line.at + all.length + text.length}]);
    return i + 1;
  }

  quote(parent, lines, i, depth) {
    const inner = [];
    for (; i < lines.length; ++i) {
      const mark = kQuote.exec(this.text(lines[i]));
      if (!mark) break;
      inner.push({at: lines[i].at + mark[0].length, to: lines[i].to});
    }
    this.blocks(add(parent, "blockquote"), inner, depth + 1);
    return i;
  }

  list(parent, lines, i, depth) {
    const [, , first] = kItem.exec(this.text(lines[i]));
    const list = add(parent, /\d/.test(first) ? "ol" : "ul");
    if (/\d/.test(first)) list.start = parseInt(first, 10);
    while (i < lines.length) {
      const text = this.text(lines[i]), item = kItem.exec(text);
      if (!item || item[2].at(-1) !== first.at(-1) || kRule.test(text)) break;
      const inner = [{at: lines[i].at + item[0].length, to: lines[i].to}];
      i = this.itemLines(lines, i + 1, indentOf(item[1]), item[2].length, inner);
      this.blocks(add(list, "li"), inner, depth + 1);
    }
    return i;
  }

  // Adds the lines of an item behind its first one: those that are indented by two columns or more,
  // and what goes on with a paragraph. Returns the first that is not among them.
  itemLines(lines, i, indent, mark, inner) {
    for (; i < lines.length; ++i) {
      const own = indentOf(this.text(lines[i])), inside = own >= indent + 2;
      const goesOn = !this.isBlank(lines[i - 1]) && !this.interrupts(lines, i);
      if (!this.isBlank(lines[i]) && !inside && (!goesOn || kItem.test(this.text(lines[i])))) break;
      inner.push(this.without(lines[i], Math.min(own, indent + mark + 1)));
    }
    return i;
  }

  // Stretches between the bars of a row.
  cells(line) {
    const text = this.text(line), bars = [...text.matchAll(/\\.|\|/gs)].filter((m) => m[0] === "|");
    const cuts = [-1, ...bars.map((m) => m.index), text.length];
    const cells = cuts.slice(1).map((to, i) => ({at: line.at + cuts[i] + 1, to: line.at + to}));
    if (cells.length > 1 && this.isBlank(cells.at(-1))) cells.pop();
    if (cells.length > 1 && this.isBlank(cells[0])) cells.shift();
    return cells;
  }

  isTable(lines, i) {
    if (i + 1 >= lines.length || !this.text(lines[i]).includes("|")) return false;
    return kTableRule.test(this.text(lines[i + 1])) &&
      this.cells(lines[i]).length === this.cells(lines[i + 1]).length;
  }

  table(parent, lines, i) {
    const table = add(add(parent, "div", "scroll"), "table");
    const sides = this.cells(lines[i + 1]).map((cell) => {
      const [, left, right] = /^(:?)-*(:?)$/.exec(this.text(cell).trim());
      return right ? (left ? "center" : "right") : "";
    });
    const row = (part, tag, line) => {
      const cells = this.cells(line), tr = add(part, "tr");
      sides.forEach((side, c) => {
        const cell = add(tr, tag);
        cell.style.textAlign = side;
        if (cells[c]) this.inline(cell, [cells[c]]);
      });
    };
    row(add(table, "thead"), "th", lines[i]);
    const body = add(table, "tbody");
    for (i += 2; i < lines.length && this.text(lines[i]).includes("|"); ++i)
      row(body, "td", lines[i]);
    return i;
  }

  paragraph(parent, lines, i) {
    const begin = i;
    for (++i; i < lines.length && !this.isBlank(lines[i]) && !this.interrupts(lines, i);) ++i;
    this.inline(add(parent, "p"), lines.slice(begin, i));
    return i;
  }

  // Text and markup of lines, without the space around them.
  inline(parent, lines) {
    lines = lines.map((line) => this.without(line, Infinity));
    const last = lines.at(-1);
    while (last.to > last.at && /\s/.test(this.source[last.to - 1])) --last.to;
    const text = lines.map((line) => this.text(line)).join("\n");
    const write = (to, from, end) => {
      let begin = 0;  // of a line in the text; the line break behind it is the source's
      for (const line of lines) {
        const next = begin + line.to - line.at + 1, a = Math.max(from, begin);
        if (a < Math.min(end, next))
          this.write(to, line.at + a - begin, line.at + Math.min(end, next) - begin);
        begin = next;
      }
    };
    new Line(text, write).parse(parent, 0, text.length, 0);
    parent.dir = "auto";  // before, the browser would look for a letter with each node
  }
}

// The markup within a paragraph, a heading or a cell: each kind is a function that finds what
// begins at an offset, {to, make}, or nothing.
class Line {
  constructor(text, write) {
    this.text = text;
    this.write = write;
    this.none = new Set();  // ends of markup that are not there: they are not looked for again
    this.links = 0;         // links that are being made
  }

  parse(parent, at, end, depth) {
    let plain = at;  // text from here on is not written yet
    while (at < end) {
      const found = depth < kDeepest ? this.markup(at, end, depth) : null;
      if (!found) {
        at += this.run(at, end);
        continue;
      }
      this.write(parent, plain, at);
      found.make(parent);
      at = plain = found.to;
    }
    this.write(parent, plain, end);
  }

  // Length of a run of the character at an offset, if that is one of markup; else 1.
  run(at, end) {
    let to = at + 1;
    if ("`*_~".includes(this.text[at])) while (to < end && this.text[to] === this.text[at]) ++to;
    return to - at;
  }

  match(pattern, at, end) {
    pattern.lastIndex = at;
    const match = pattern.exec(this.text);
    return match && at + match[0].length <= end ? match : null;
  }

  markup(at, end, depth) {
    switch (this.text[at]) {
      case "\\": return this.escaped(at, end);
      case "`": return this.code(at, end);
      case "*": case "_": case "~": return this.emphasis(at, end, depth);
      case "[": return this.link(at, at, end, depth);
      case "!": return this.text[at + 1] === "[" ? this.link(at, at + 1, end, depth) : null;
      case "<": case "h": return this.address(at, end);
      default: return null;
    }
  }

  escaped(at, end) {
    if (at + 1 >= end || !/[\n!-/:-@[-`{-~]/.test(this.text[at + 1])) return null;
    return {to: at + 2, make: (parent) => this.write(parent, at + 1, at + 2)};
  }

  // The end of code that begins with a run of n backticks before an offset; 0: there is none.
  endOfCode(at, end, n) {
    const key = `code ${n} ${end}`;
    if (this.none.has(key)) return 0;
    for (; at < end; at += this.run(at, end))
      if (this.text[at] === "`" && this.run(at, end) === n) return at + n;
    this.none.add(key);
    return 0;
  }

  code(at, end) {
    const n = this.run(at, end), to = this.endOfCode(at + n, end, n);
    if (!to) return null;
    let begin = at + n, last = to - n;
    if (/^ .*[^ ].* $/s.test(this.text.slice(begin, last))) ++begin, --last;
    return {to, make: (parent) => this.write(add(parent, "code"), begin, last)};
  }

  // Behind an escaped character or code, which have no markup in them; else the same offset.
  behindLiteral(at, end) {
    if (this.text[at] === "\\") return at + 2;
    if (this.text[at] !== "`") return at;
    const n = this.run(at, end);
    return this.endOfCode(at + n, end, n) || at + n;
  }

  emphasis(at, end, depth) {
    const mark = this.text[at], n = this.run(at, end);
    if (mark === "~" ? n !== 2 : mark === "_" && /[\p{L}\p{N}]/u.test(this.text[at - 1] ?? ""))
      return null;
    if (at + n >= end || /\s/.test(this.text[at + n])) return null;
    for (const size of n > 2 ? [2, 1] : [n]) {
      const close = this.endOfEmphasis(mark, size, at + n, end);
      if (!close) continue;
      const tag = mark === "~" ? "del" : size === 2 ? "strong" : "em";
      const make = (parent) => this.parse(add(parent, tag), at + size, close, depth + 1);
      return {to: close + size, make};
    }
    return null;
  }

  endOfEmphasis(mark, size, at, end) {
    const key = `${mark} ${size} ${end}`;
    if (this.none.has(key)) return 0;
    while (at < end) {
      const behind = this.behindLiteral(at, end), n = this.run(at, end);
      const fits = size === 2 ? n >= 2 : n !== 2;
      if (behind === at && this.text[at] === mark && fits && !/\s/.test(this.text[at - 1]) &&
          (mark !== "_" || !/[\p{L}\p{N}]/u.test(this.text[at + n] ?? "")))
        return at + n - size;
      at = behind > at ? behind : at + n;
    }
    this.none.add(key);
    return 0;
  }

  // [text](address "title"), or an image, to which it is a link. open: of the bracket.
  link(at, open, end, depth) {
    const close = this.links ? 0 : this.endOfBracket(open, Math.min(end, open + kLongestLink));
    const address = close && this.match(kAddress, close + 1, end);
    const url = address && webAddress(address[1] ?? address[2]);
    if (!url) return null;
    const make = (parent) => {
      ++this.links;
      this.parse(this.anchor(parent, url), open + 1, close, depth + 1);
      --this.links;
    };
    return {to: close + 1 + address[0].length, make};
  }

  endOfBracket(open, end) {
    let deep = 0;
    for (let at = open; at < end;) {
      const behind = this.behindLiteral(at, end);
      if (behind === at && this.text[at] === "[") ++deep;
      if (behind === at && this.text[at] === "]" && --deep === 0) return at;
      at = behind > at ? behind : at + 1;
    }
    return 0;
  }

  // An address in the text, with or without <> around it.
  address(at, end) {
    if (this.links) return null;
    const angled = this.match(/<(https?:[^\s<>]*)>/y, at, end);
    if (!angled && /[\p{L}\p{N}]/u.test(this.text[at - 1] ?? "")) return null;
    const bare = angled ? angled[1] : this.match(/https?:\/\/[^\s<>]+/y, at, end)?.[0];
    const shown = angled ? bare : bare?.replace(/[.,;:!?'"*_~`\]]+$/, "").replace(kClosed, "$1");
    const url = shown && webAddress(shown), from = angled ? at + 1 : at;
    if (!url) return null;
    const make = (parent) => this.write(this.anchor(parent, url), from, from + shown.length);
    return {to: angled ? at + angled[0].length : at + shown.length, make};
  }

  anchor(parent, url) {
    const anchor = add(parent, "a");
    anchor.href = anchor.title = url;
    anchor.target = "_blank";
    anchor.rel = "noopener noreferrer";
    return anchor;
  }
}
