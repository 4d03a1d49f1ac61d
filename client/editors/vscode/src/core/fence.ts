// A piece of a file as a part of a message: its path and lines, fenced so that nothing in it ends the fence.

import { clean } from './text';

export interface Excerpt {
  /** Relative to the project, if the file is in it. */
  path: string;
  language: string;
  text: string;
  /** The lines, from 1; absent for a whole file. */
  lines?: { first: number; last: number };
}

/** The most characters of an excerpt in one message; a larger message would not fit into any window. */
export const EXCERPT_LIMIT = 400_000;

/** Returns the path and lines of an excerpt for people: `src/a.ts, lines 3 to 9`. */
export function place({ path, lines }: Excerpt): string {
  const name = clean(path).replace(/\n/g, ' ');
  if (!lines) return name;
  return lines.first === lines.last ? `${name}, line ${lines.first}` : `${name}, lines ${lines.first} to ${lines.last}`;
}

/** Returns the message with a question and an excerpt. */
export function fenced(excerpt: Excerpt, question = ''): string {
  const text = excerpt.text.replace(/\r\n/g, '\n').replace(/\n$/, '');
  const fence = fenceFor(text);
  const language = /^[\w+#.-]+$/.test(excerpt.language) ? excerpt.language : '';
  const head = question.trim() ? `${question.trim()}\n\n` : '';
  return `${head}${place(excerpt)}:\n\n${fence}${language}\n${text}\n${fence}\n`;
}

/** Returns a fence that is longer than every run of backticks in the text, and has at least three. */
export function fenceFor(text: string): string {
  const longest = Math.max(0, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  return '`'.repeat(Math.max(3, longest + 1));
}

/** Returns the lines that a selection covers; one that ends at the start of a line does not cover that line. */
export function selectedLines(
  start: { line: number },
  end: { line: number; character: number },
): { first: number; last: number } {
  const last = end.character === 0 && end.line > start.line ? end.line - 1 : end.line;
  return { first: start.line + 1, last: last + 1 };
}
