// Markdown as a tree: the blocks and marks that answers of models have. Knows no page, and nothing of it is HTML.
//
// A text grows while an answer arrives, so `MarkdownSource` splits only its end again.

export type Inline =
  | { type: 'text'; text: string }
  | { type: 'code'; text: string }
  | { type: 'break' }
  | { type: 'strong' | 'em' | 'del'; children: Inline[] }
  | { type: 'link'; href: string; children: Inline[] };

export type Block =
  | { type: 'paragraph'; children: Inline[] }
  | { type: 'heading'; level: number; children: Inline[] }
  | { type: 'code'; language: string; text: string }
  | { type: 'list'; start?: number; items: Block[][]; tight: boolean }
  | { type: 'quote'; children: Block[] }
  | { type: 'table'; align: ('left' | 'right' | 'center' | '')[]; rows: Inline[][][] }
  | { type: 'rule' };

/** Longer texts of one block are shown as they are: marks in them are not worth the time. */
const MAX_INLINE = 20_000;
/** Quotes and lists in each other, beyond which a text is shown as it is. */
const MAX_DEPTH = 12;

// No pattern tries the same characters of a line again and again: one of 200,000 spaces would stop the page.
const FENCE = /^ {0,3}(`{3,}|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]([^\n]*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const BULLET = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)([^\n]*))?$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_LINE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*(?:\|[ \t]*)?$/;

/** A growing text, split into the sources of its blocks. */
export class MarkdownSource {
  /** The sources of the blocks, in order. */
  blocks: string[] = [];
  private text = '';
  /** The offsets at which the blocks begin in the text. */
  private starts: number[] = [];

  /** Appends a piece; returns the number of blocks at the beginning that stayed as they were. */
  append(piece: string): number {
    this.text += piece;
    // A line that grows can change its kind and join the block before it, so the last two blocks are split again.
    const kept = Math.max(0, this.blocks.length - 2);
    const from = this.starts[kept] ?? 0;
    this.blocks.length = kept;
    this.starts.length = kept;
    for (const { start, source } of splitBlocks(this.text.slice(from))) {
      this.starts.push(from + start);
      this.blocks.push(source);
    }
    return kept;
  }
}

/** Splits a text into the sources of its top-level blocks. */
export function splitBlocks(text: string): { start: number; source: string }[] {
  const lines = text.split('\n');
  const blocks: { start: number; source: string }[] = [];
  let offset = 0;
  let index = 0;
  while (index < lines.length) {
    const count = isBlank(lines[index]) ? 0 : blockLength(lines, index);
    const source = lines.slice(index, index + Math.max(count, 1)).join('\n');
    if (count) blocks.push({ start: offset, source });
    offset += source.length + 1;
    index += Math.max(count, 1);
  }
  return blocks;
}

/** Parses a text, or the source of one block. */
export function parseBlocks(text: string, depth = 0): Block[] {
  if (depth > MAX_DEPTH) return [{ type: 'paragraph', children: [{ type: 'text', text }] }];
  return splitBlocks(text).map(({ source }) => parseBlock(source, depth));
}

/** Returns the number of lines of the block that begins at a line that is not blank. */
function blockLength(lines: string[], index: number): number {
  const first = lines[index];
  const fence = FENCE.exec(first);
  if (fence) return fenceLength(lines, index, fence[1]);
  if (HEADING.test(first) || RULE.test(first)) return 1;
  if (BULLET.test(first)) return listLength(lines, index);
  const isQuote = QUOTE.test(first);
  let end = index + 1;
  while (end < lines.length && !isBlank(lines[end])) {
    if (isQuote ? !QUOTE.test(lines[end]) : beginsBlock(lines[end])) break;
    end += 1;
  }
  return end - index;
}

function fenceLength(lines: string[], index: number, fence: string): number {
  const closing = new RegExp(`^ {0,3}${fence[0] === '`' ? '`' : '~'}{${fence.length},}[ \\t]*$`);
  for (let end = index + 1; end < lines.length; end += 1) {
    if (closing.test(lines[end])) return end - index + 1;
  }
  return lines.length - index;
}

/** A list goes on over blank lines as long as items of its kind or indented lines follow. */
function listLength(lines: string[], index: number): number {
  const kind = bulletKind(lines[index]);
  let end = index + 1;
  let fence = '';
  for (let next = end; next < lines.length; next += 1) {
    const line = lines[next];
    const isIndented = /^(?: {2,}|\t)/.test(line);
    if (fence) {
      if (line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], '') === '') fence = '';
    } else if (isBlank(line)) {
      continue;
    } else if (isIndented || bulletKind(line) === kind) {
      fence = FENCE.exec(line.trimStart())?.[1] ?? '';
    } else if (isBlank(lines[next - 1]) || beginsBlock(line)) {
      break;
    }
    end = next + 1;
  }
  return end - index;
}

/** Returns what distinguishes the items of one list from those of another. */
function bulletKind(line: string): string {
  const bullet = RULE.test(line) ? null : BULLET.exec(line);
  return bullet ? bullet[2].at(-1)! : '';
}

function beginsBlock(line: string): boolean {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const bullet = BULLET.exec(line);
  return Boolean(bullet?.[4]) && (!/\d/.test(bullet![2]) || bullet![2].startsWith('1'));
}

function isBlank(line: string): boolean {
  return line.trim() === '';
}

function parseBlock(source: string, depth: number): Block {
  const lines = source.split('\n');
  const fence = FENCE.exec(lines[0]);
  if (fence) return codeBlock(lines, fence);
  const heading = HEADING.exec(lines[0]);
  if (heading) {
    const children = parseInline(headingText(heading[2] ?? ''));
    return { type: 'heading', level: heading[1].length, children };
  }
  if (RULE.test(lines[0])) return { type: 'rule' };
  if (BULLET.test(lines[0])) return list(lines, depth);
  if (QUOTE.test(lines[0])) {
    return { type: 'quote', children: parseBlocks(lines.map((line) => line.replace(QUOTE, '')).join('\n'), depth + 1) };
  }
  if (lines.length > 1 && lines[0].includes('|') && TABLE_LINE.test(lines[1])) return table(lines);
  return { type: 'paragraph', children: parseInline(lines.map((line) => line.trimStart()).join('\n')) };
}

/** Returns the text of a heading without the marks that may close it. */
function headingText(line: string): string {
  const text = line.trim();
  let end = text.length;
  while (text[end - 1] === '#') end -= 1;
  return end === 0 || /[ \t]/.test(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
}

function codeBlock(lines: string[], fence: RegExpExecArray): Block {
  const isClosed = lines.length > 1 && lines.at(-1)!.trim().startsWith(fence[1]);
  const indent = /^ */.exec(lines[0])![0].length;
  const body = lines.slice(1, isClosed ? -1 : undefined).map((line) => line.replace(new RegExp(`^ {0,${indent}}`), ''));
  return { type: 'code', language: fence[2].trim().split(/\s/)[0] ?? '', text: body.join('\n') };
}

function list(lines: string[], depth: number): Block {
  const kind = bulletKind(lines[0]);
  const items: string[][] = [];
  let indent = 0;
  let isTight = true;
  for (const [index, line] of lines.entries()) {
    const bullet =
      bulletKind(line) === kind && /^ */.exec(line)![0].length < Math.max(indent, 1) ? BULLET.exec(line) : null;
    if (bullet) {
      indent = bullet[1].length + bullet[2].length + Math.min(bullet[3]?.length ?? 1, 4);
      items.push([bullet[4] ?? '']);
      if (index > 0 && isBlank(lines[index - 1])) isTight = false;
    } else {
      const spaces = Math.min(/^ */.exec(line)![0].length, indent);
      items.at(-1)!.push(line.startsWith('\t') ? line.slice(1) : line.slice(spaces));
    }
  }
  const number = Number.parseInt(lines[0].trim(), 10);
  const children = items.map((item) => parseBlocks(item.join('\n'), depth + 1));
  return { type: 'list', ...(Number.isNaN(number) ? {} : { start: number }), items: children, tight: isTight };
}

function table(lines: string[]): Block {
  const align = cells(lines[1]).map((cell) => {
    const [left, right] = [cell.startsWith(':'), cell.endsWith(':')];
    return left && right ? 'center' : right ? 'right' : left ? 'left' : '';
  });
  const rows = [lines[0], ...lines.slice(2)].map((line) => cells(line).slice(0, align.length).map(parseInline));
  return { type: 'table', align, rows };
}

function cells(line: string): string[] {
  const inner = line
    .trim()
    .replace(/^\|/, '')
    .replace(/(?<!\\)\|$/, '');
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
}

/** Parses marks within a block. */
export function parseInline(text: string): Inline[] {
  if (text.length > MAX_INLINE) return [{ type: 'text', text }];
  return new InlineParser(text).parse(0, text.length, 0);
}

class InlineParser {
  /** Marks that have no end in the rest of the text, so that they are not searched again. */
  private readonly unmatched = new Set<string>();

  constructor(private readonly text: string) {}

  parse(start: number, end: number, depth: number): Inline[] {
    const nodes: Inline[] = [];
    let plain = '';
    const push = (node: Inline) => {
      if (plain) nodes.push({ type: 'text', text: plain });
      plain = '';
      nodes.push(node);
    };
    for (let at = start; at < end;) {
      const found = depth < MAX_DEPTH ? this.mark(at, end, depth) : undefined;
      if (found) {
        push(found.node);
        at = found.next;
      } else if (this.text[at] === '\\' && at + 1 < end && /[!-/:-@[-`{-~]/.test(this.text[at + 1])) {
        plain += this.text[at + 1];
        at += 2;
      } else {
        plain += this.text[at];
        at += 1;
      }
    }
    if (plain) nodes.push({ type: 'text', text: plain });
    return nodes;
  }

  private mark(at: number, end: number, depth: number): { node: Inline; next: number } | undefined {
    switch (this.text[at]) {
      case '\n':
        return this.lineEnd(at);
      case '`':
        return this.code(at, end);
      case '*':
      case '_':
        return this.emphasis(at, end, depth, '**', 'strong') ?? this.emphasis(at, end, depth, '*', 'em');
      case '~':
        return this.emphasis(at, end, depth, '~~', 'del');
      case '[':
        return this.link(at, end, depth);
      case '!':
        return this.text[at + 1] === '[' ? this.link(at + 1, end, depth) : undefined;
      case '<':
        return this.angle(at, end);
      case 'h':
        return this.address(at, end);
      default:
        return undefined;
    }
  }

  /** Two spaces or a backslash before the end of a line break it, as in most answers every end does. */
  private lineEnd(at: number): { node: Inline; next: number } {
    return { node: { type: 'break' }, next: at + 1 };
  }

  private code(at: number, end: number): { node: Inline; next: number } | undefined {
    const run = /^`+/.exec(this.text.slice(at, end))![0];
    if (this.unmatched.has(run)) return undefined;
    for (let close = this.text.indexOf(run, at + run.length); close >= 0 && close < end;) {
      const length = /^`+/.exec(this.text.slice(close, end))![0].length;
      if (length === run.length) {
        const inner = this.text.slice(at + run.length, close).replace(/\n/g, ' ');
        const isPadded = inner.startsWith(' ') && inner.endsWith(' ') && /[^ ]/.test(inner);
        return { node: { type: 'code', text: isPadded ? inner.slice(1, -1) : inner }, next: close + run.length };
      }
      close = this.text.indexOf(run, close + length);
    }
    this.unmatched.add(run);
    return undefined;
  }

  private emphasis(
    at: number,
    end: number,
    depth: number,
    mark: string,
    type: 'strong' | 'em' | 'del',
  ): { node: Inline; next: number } | undefined {
    const run = this.text[at].repeat(mark.length);
    if (!this.text.startsWith(run, at) || this.unmatched.has(`${run}${end}`)) return undefined;
    const from = at + run.length;
    if (from >= end || /\s/.test(this.text[from])) return undefined;
    if (run[0] === '_' && /\w/.test(this.text[at - 1] ?? ' ')) return undefined;
    for (let close = this.text.indexOf(run, from + 1); close >= 0 && close + run.length <= end;) {
      const next = close + run.length;
      const isInWord = run[0] === '_' && /\w/.test(this.text[next] ?? ' ');
      const isLonger = run.length === 1 && (this.text[next] === run || this.text[close - 1] === run);
      if (!/\s/.test(this.text[close - 1]) && !isInWord && !isLonger) {
        return { node: { type, children: this.parse(from, close, depth + 1) }, next };
      }
      close = this.text.indexOf(run, isLonger ? close + 2 : close + 1);
    }
    this.unmatched.add(`${run}${end}`);
    return undefined;
  }

  /** A link, or a picture, which is shown as a link: the page loads nothing. */
  private link(at: number, end: number, depth: number): { node: Inline; next: number } | undefined {
    const found =
      /^\[((?:[^[\]\\\n]|\\.)*)\]\(\s{0,8}<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s{1,8}["'(][^\n]*?["')])?\s{0,8}\)/.exec(
        this.text.slice(at, Math.min(end, at + 4_000)),
      );
    if (!found) return undefined;
    const href = safeHref(found[2]);
    const children = this.parse(at + 1, at + 1 + found[1].length, depth + 1);
    const next = at + found[0].length;
    return { node: href ? { type: 'link', href, children } : { type: 'em', children }, next };
  }

  private angle(at: number, end: number): { node: Inline; next: number } | undefined {
    const found = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/.exec(this.text.slice(at, Math.min(end, at + 2_000)));
    const href = found && safeHref(found[1]);
    if (!found || !href) return undefined;
    return { node: { type: 'link', href, children: [{ type: 'text', text: found[1] }] }, next: at + found[0].length };
  }

  private address(at: number, end: number): { node: Inline; next: number } | undefined {
    if (/\w/.test(this.text[at - 1] ?? ' ')) return undefined;
    const found = /^https?:\/\/[^\s<>`"')\]]+[^\s<>`"')\].,;:!?*_]/.exec(
      this.text.slice(at, Math.min(end, at + 2_000)),
    );
    const href = found && safeHref(found[0]);
    if (!found || !href) return undefined;
    return { node: { type: 'link', href, children: [{ type: 'text', text: found[0] }] }, next: at + found[0].length };
  }
}

/** Returns an address that a link may lead to: pages and mail, and nothing that runs. */
export function safeHref(href: string): string | undefined {
  return /^(?:https?:\/\/|mailto:)[^\s\u0000-\u001f]+$/i.test(href) ? href : undefined;
}
