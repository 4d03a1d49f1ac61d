// Goals, facts, remembered texts, recalled messages, models and the context as lines for people.

import { fnv1a } from './address';
import type { ContextEntry, ContextStatus, Fact, Goal, ModelInfo, RecallHit } from './protocol';
import { ago, clip, grouped, oneLine, sized } from './text';

export interface Line {
  label: string;
  description: string;
  detail?: string;
}

export function goalLine(goal: Goal): Line {
  const done = goal.checkpoints.filter((checkpoint) => checkpoint.status === 'completed').length;
  const steps = goal.checkpoints.length ? `, ${done} of ${goal.checkpoints.length} steps done` : '';
  const next = goal.nextSteps.map(oneLine).join(' · ');
  return {
    label: clip(oneLine(goal.description), 120),
    description: `${goal.status}, ${goal.priority}${steps}`,
    ...(next ? { detail: clip(`next: ${next}`, 200) } : {}),
  };
}

export function factLine(fact: Fact, now: number): Line {
  const shown = fact.shown ? ', in the notes of the context' : '';
  return { label: clip(oneLine(fact.text), 160), description: `${ago(fact.at, now)}${shown}` };
}

export function entryLine(entry: ContextEntry): Line {
  return { label: clip(oneLine(entry.content), 160), description: `${oneLine(entry.scope)}, ${oneLine(entry.key)}` };
}

export function hitLine(hit: RecallHit, now: number): Line {
  const branch = hit.otherBranch ? ', on another branch' : '';
  return {
    label: clip(oneLine(hit.excerpt), 180),
    description: `${hit.role}, ${ago(hit.at, now)}${branch}`,
    detail: clip(oneLine(hit.title), 100),
  };
}

export function modelLine(model: ModelInfo): Line {
  const facts = [
    model.parameterSize && oneLine(model.parameterSize),
    model.trainedContext && `window ${grouped(model.trainedContext)}`,
    model.sizeBytes && sized(model.sizeBytes),
    model.loaded && 'loaded',
  ];
  return { label: oneLine(model.model), description: facts.filter(Boolean).join(', ') };
}

/** The words and the characters of a text in its key. */
const KEY_WORDS = 5;
const KEY_CHARACTERS = 40;

/**
 * Returns the key of a remembered text: its first words, and a checksum that tells texts with the same beginning apart.
 * The same as that of `ollmctl remember`, so that a repeated text is one entry.
 */
export function entryKey(text: string): string {
  const words = (text.toLowerCase().match(/[\p{Alphabetic}\p{N}]+/gu) ?? []).slice(0, KEY_WORDS).join('-');
  const name = [...words].slice(0, KEY_CHARACTERS).join('').replace(/-$/, '');
  return `remember-${name}-${fnv1a(Buffer.from(text))}`;
}

const BAR_CELLS = 32;

/** Returns the context of a session as a Markdown document. */
export function contextText(title: string, status: ContextStatus): string {
  const rows = status.parts.filter((part) => part.tokens > 0).map((part) => partRow(part, status.contextSize));
  const { reliability } = status;
  const lines = [
    `# The context of “${oneLine(title)}”`,
    '',
    `- model: ${oneLine(status.model ?? 'the default model')}`,
    `- prompt: ${grouped(status.contextTokens)} of ${grouped(status.promptLimit)} tokens (${status.usedPercent.toFixed(1)} %), ${status.countKind}`,
    `- window: ${grouped(status.contextSize)} tokens`,
    `- compaction: at ${grouped(status.triggerTokens)} tokens of conversation; now ${grouped(status.conversationTokens)}`,
    `- strategy: ${oneLine(status.strategy)}, ${status.compressionCount} compactions, ${status.checkpointCount} checkpoints`,
    ...(reliability
      ? [`- memory: ${reliability.score} % (${oneLine(reliability.level)}). ${oneLine(reliability.reason ?? '')}`]
      : []),
    '',
    '| part        |    tokens |   share | of the window',
    '|-------------|----------:|--------:|---',
    ...rows,
    '',
  ];
  return lines.join('\n');
}

/** Returns a row whose columns are aligned as text too. */
function partRow(part: { name: string; tokens: number }, contextSize: number): string {
  const share = part.tokens / contextSize;
  const cells = Math.min(BAR_CELLS, Math.ceil(share * BAR_CELLS));
  const percent = `${(share * 100).toFixed(1)} %`;
  return `| ${part.name.padEnd(11)} | ${grouped(part.tokens).padStart(9)} | ${percent.padStart(7)} | ${'█'.repeat(cells)}`;
}
