// Undo and redo with files: what a plan means for people.

import type { FilePlan, PlannedFile, UndoResult } from './protocol';
import { clip, counted, oneLine } from './text';

export type Direction = 'undo' | 'redo';

/** A file of a plan as a line. */
export interface PlanRow {
  file: PlannedFile;
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

function rowOf(file: PlannedFile): PlanRow {
  const label = oneLine(file.path);
  if (file.status !== 'putBack') {
    const reason = STATUSES[file.status] ?? `stays: ${oneLine(file.status)}`;
    return {
      file,
      changes: false,
      label,
      description: file.reason ? `${reason} (${oneLine(file.reason)})` : reason,
    };
  }
  const losses = (file.loses ?? []).map((loss) => LOSSES[loss] ?? oneLine(loss));
  const loses = losses.length ? `; loses ${losses.join(', ')}` : '';
  return { file, changes: true, label, description: `${ACTIONS[file.action ?? ''] ?? 'is put back'}${loses}` };
}
