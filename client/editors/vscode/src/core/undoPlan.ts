// Undo and redo with files: what a plan means for people, and which content each file will have.

import type { FilePlan, FileState, Operation, PlannedFile, SessionRecord, UndoResult } from './protocol';
import { clip, counted, oneLine } from './text';

export type Direction = 'undo' | 'redo';

/** A file of a plan as a line. */
export interface PlanRow {
  /** As the daemon names it; the label is for people. */
  path: string;
  /** The file is put back. */
  changes: boolean;
  label: string;
  description: string;
}

const ACTIONS: Record<string, string> = {
  replace: 'gets another content',
  create: 'comes back',
  remove: 'is removed',
  setMode: 'gets other permissions',
};
const STATUSES: Record<string, string> = {
  conflict: 'stays: it is not as the session left it',
  unknown: 'stays: its earlier content was not kept',
  unchanged: 'has the wanted content already',
  outside: 'stays: it is outside of the project',
  inGit: 'stays: it belongs to git',
  failed: 'stays: the system refused to read or change it',
};
const LOSSES: Record<string, string> = {
  hardLinks: 'its other names keep the present content',
  group: 'its group',
  specialBits: 'its set-ID bits',
  acl: 'its access control list',
  extendedAttributes: 'its extended attributes',
};

/** Returns the files of a plan, those that change first. */
export function planRows(plan: FilePlan): PlanRow[] {
  const rows = plan.files.map(rowOf);
  return [...rows.filter((row) => row.changes), ...rows.filter((row) => !row.changes)];
}

/** Returns what the plan does not say file by file: what cannot be put back, and where contents were kept. */
export function planWarnings(plan: FilePlan): string[] {
  const warnings: string[] = [];
  const unfinished = plan.unrecorded?.find((call) => call.unfinished);
  if (unfinished)
    warnings.push(
      `nobody knows what ${oneLine(unfinished.tool)} (record ${unfinished.seq}) wrote: its result is not recorded`,
    );
  if (plan.unlisted) warnings.push(`${counted(plan.unlisted, 'more file')} are not listed`);
  const silent = plan.unrecordedCalls ?? plan.unrecorded?.filter((call) => !call.unfinished).length ?? 0;
  if (silent) warnings.push(`${counted(silent, 'tool call')} did not say what they wrote; that stays`);
  for (const { path, file } of plan.kept ?? [])
    warnings.push(`the content of ${oneLine(path) || 'a file'} is kept in ${oneLine(file)}`);
  return warnings;
}

/** Returns whether files must not be put back: a tool may still be writing. */
export function isUnfinished(plan: FilePlan): boolean {
  return plan.unrecorded?.some((call) => call.unfinished) ?? false;
}

/** Returns the question before anything happens. */
export function planQuestion(
  direction: Direction,
  result: UndoResult,
): { text: string; detail: string; action: string } {
  const plan = result.files;
  const rows = plan ? planRows(plan) : [];
  const changing = plan?.counts.putBack ?? 0;
  const staying = rows.filter((row) => !row.changes).length;
  const what = clip(oneLine(result.operations[0]?.text ?? ''), 100);
  const verb = direction === 'undo' ? 'Undo' : 'Redo';
  const list = rows.slice(0, 12).map((row) => `${row.label} ${row.description}`);
  if (rows.length > 12) list.push(`and ${rows.length - 12} more`);
  const lines = [what, ...list, ...(plan ? planWarnings(plan) : [])].filter(Boolean);
  const text = changing
    ? `${verb} and put back ${counted(changing, 'file')}?${staying ? ` ${stays(staying)}.` : ''}`
    : `${verb}? No file changes.`;
  return { text, detail: lines.join('\n'), action: changing ? `${verb}, ${counted(changing, 'File')}` : verb };
}

/** Returns what was done, for people. */
export function doneText(direction: Direction, result: UndoResult): string {
  const done = direction === 'undo' ? 'Undone' : 'Redone';
  const what = result.operations.map((operation) => clip(oneLine(operation.text), 60)).join('; ');
  const plan = result.files;
  if (!plan?.applied) return `${done}: ${what}`;
  const left = (plan.counts.conflict ?? 0) + (plan.counts.unknown ?? 0) + (plan.counts.failed ?? 0);
  const rest = left ? `; ${counted(left, 'file')} stayed` : '';
  return `${done}: ${what} (${counted(plan.counts.putBack ?? 0, 'file')} put back${rest})`;
}

function stays(count: number): string {
  return count === 1 ? '1 file stays as it is' : `${counted(count, 'file')} stay as they are`;
}

/** The state that a file will have, if the records say so. */
export type Target = FileState | undefined;

/**
 * Returns the states that the files of a plan will have, by path.
 *
 * An undo puts back what was before the first call that leaves the path, a redo what was after the last that comes
 * onto it. A state that does not fit the action of the plan is left out rather than guessed.
 */
export function targets(
  direction: Direction,
  plan: FilePlan,
  operations: Operation[],
  records: SessionRecord[],
): Map<string, Target> {
  const isIn = (seq: number) => operations.some((operation) => seq >= operation.seq && seq <= operation.throughSeq);
  const states = new Map<string, FileState>();
  for (const record of records.filter((one) => isIn(one.seq))) {
    for (const write of record.toolCall?.writes ?? []) {
      if (direction === 'redo') states.set(write.path, write.after);
      else if (!states.has(write.path)) states.set(write.path, write.before);
    }
  }
  const known = plan.files.filter((file) => file.status === 'putBack' && fits(file, states.get(file.path)));
  return new Map(known.map((file) => [file.path, states.get(file.path)]));
}

/** Returns the name under which the daemon keeps a content, if the target has one. */
export function hashOf(target: Target): string | undefined {
  const hash = typeof target === 'object' ? target.hash : undefined;
  return hash && /^[0-9a-f]{64}$/.test(hash) ? hash : undefined;
}

function fits(file: PlannedFile, state: FileState | undefined): boolean {
  if (file.action === 'remove') return state === 'absent';
  if (file.action === 'replace' || file.action === 'create') return hashOf(state) !== undefined;
  return false;
}

function rowOf(file: PlannedFile): PlanRow {
  const { path } = file;
  const label = oneLine(path);
  if (file.status !== 'putBack') {
    const reason = STATUSES[file.status] ?? `stays: ${oneLine(file.status)}`;
    return {
      path,
      changes: false,
      label,
      description: file.reason ? `${reason} (${oneLine(file.reason)})` : reason,
    };
  }
  const losses = (file.loses ?? []).map((loss) => LOSSES[loss] ?? oneLine(loss));
  const loses = losses.length ? `; loses ${losses.join(', ')}` : '';
  return { path, changes: true, label, description: `${ACTIONS[file.action ?? ''] ?? 'is put back'}${loses}` };
}
