// Undo and redo. With files, the plan is shown as comparisons before anything happens.

import { randomUUID } from 'node:crypto';
import * as fs from 'node:fs';
import * as path from 'node:path';
import * as vscode from 'vscode';
import type { Connection } from '../core/connection';
import type { FilePlan, PlannedFile, Session, TextPart, UndoResult } from '../core/protocol';
import {
  Direction,
  PlanRow,
  doneText,
  isUnfinished,
  planQuestion,
  planRows,
  planWarnings,
} from '../core/undoPlan';
import { inert, oneLine } from '../core/text';
import { App, Choice, choice, command, confirm, currentSession, say } from './app';

const SCHEME = 'ollm-plan';
/** Files are put back one by one, and synced. */
const APPLY_MS = 600_000;
/** Larger contents are not compared: an editor would be slow. */
const MAX_BYTES = 5 * 1024 * 1024;

export function registerUndoCommands(app: App): vscode.Disposable[] {
  const contents = new PlannedContents();
  return [
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, contents),
    command('ollm.undo', () => step(app, 'undo')),
    command('ollm.redo', () => step(app, 'redo')),
    command('ollm.undoFiles', () => stepWithFiles(app, 'undo', contents)),
    command('ollm.redoFiles', () => stepWithFiles(app, 'redo', contents)),
  ];
}

/** The contents that files will have. */
class PlannedContents implements vscode.TextDocumentContentProvider {
  private texts = new Map<string, string>();

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.toString()) ?? '';
  }

  /** Returns the address of a content; the path gives it the language of the file. */
  add(planId: string, file: string, text: string): vscode.Uri {
    const uri = vscode.Uri.from({ scheme: SCHEME, path: `/${file}`, query: planId });
    this.texts.set(uri.toString(), text);
    return uri;
  }

  clear(): void {
    this.texts.clear();
  }
}

async function step(app: App, direction: Direction): Promise<void> {
  const { sessionId } = currentSession(app);
  const result = await app.connection.call<UndoResult>(`session.${direction}`, { sessionId, key: randomUUID() });
  say(doneText(direction, result));
}

async function stepWithFiles(app: App, direction: Direction, contents: PlannedContents): Promise<void> {
  const session = currentSession(app);
  const { sessionId } = session;
  const preview = await app.connection.call<UndoResult>(`session.${direction}`, { sessionId, files: 'preview' });
  const plan = preview.files;
  if (plan && isUnfinished(plan)) {
    // The name of a tool is text of a session, and a notification would make a link that runs a command of it.
    void vscode.window.showWarningMessage(`ollm: no file is put back: ${inert(planWarnings(plan)[0])}.`);
    return;
  }
  try {
    if (plan?.files.length && !(await review(app, session, direction, preview, plan, contents))) return;
    const question = planQuestion(direction, preview);
    const detail = [question.detail, ...unsaved(plan)].join('\n');
    if (!(await confirm(question.text, detail, question.action))) return;
    const operation = preview.operations[0]?.seq;
    const params = plan
      ? { sessionId, operation, files: 'apply', planId: plan.planId, key: randomUUID() }
      : { sessionId, operation, key: randomUUID() };
    const result = await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title: `ollm: ${direction} with files` },
      (progress) => apply(app, direction, params, (message) => progress.report({ message })),
    );
    say(doneText(direction, result));
  } finally {
    contents.clear();
  }
}

/** Names the files of the plan whose editors have changes that are not on the disk. */
function unsaved(plan: FilePlan | undefined): string[] {
  const paths = new Set(
    (plan?.files ?? [])
      .filter((file) => file.status === 'putBack')
      .map((file) => realPath(path.join(plan!.root ?? '', file.path))),
  );
  const dirty = vscode.workspace.textDocuments.filter(
    (document) => document.isDirty && paths.has(realPath(document.uri.fsPath)),
  );
  return dirty.map(
    (document) =>
      `${oneLine(path.basename(document.uri.fsPath))} has changes that are not saved; saving them later undoes this`,
  );
}

/** Resolves links, because the daemon names projects without them. A file that is gone keeps its path. */
function realPath(file: string): string {
  try {
    return fs.realpathSync(file);
  } catch {
    return file;
  }
}

async function apply(
  app: App,
  direction: Direction,
  params: { sessionId: string },
  report: (text: string) => void,
): Promise<UndoResult> {
  const end = app.connection.subscribe({ sessionId: params.sessionId, kinds: ['files-progress'] }, ({ data }) => {
    if (data) report(`${oneLine(String(data.step))}: ${data.done} of ${data.total}`);
  });
  try {
    return await app.connection.call<UndoResult>(`session.${direction}`, params, APPLY_MS);
  } finally {
    end();
  }
}

/** Shows the plan as a list whose files open as comparisons. Returns whether the person goes on. */
async function review(
  app: App,
  session: Session,
  direction: Direction,
  preview: UndoResult,
  plan: FilePlan,
  contents: PlannedContents,
): Promise<boolean> {
  const question = planQuestion(direction, preview);
  const go: Choice<PlanRow | undefined> = choice(undefined, {
    label: `${question.action}…`,
    description: 'asks once more',
  });
  const rows = planRows(plan).map((row) => choice<PlanRow | undefined>(row, row));
  const pick = vscode.window.createQuickPick<Choice<PlanRow | undefined>>();
  pick.title = question.text;
  pick.placeholder = 'Move to a file to compare it with what it will be';
  pick.ignoreFocusOut = true;
  pick.items = [go, ...rows];
  let serial = 0;
  const compare = async (row: PlanRow | undefined) => {
    const mine = ++serial;
    if (!row?.changes || !plan.root) return;
    const uris = await comparison(app, session.sessionId, plan, row.file, contents);
    if (!uris || mine !== serial) return;
    const title = `${row.label}: now ↔ after ${direction}`;
    await vscode.commands.executeCommand('vscode.diff', uris.now, uris.then, title, {
      preview: true,
      preserveFocus: true,
    });
  };
  return new Promise((resolve) => {
    pick.onDidChangeActive(([active]) => void compare(active?.value));
    pick.onDidAccept(() => {
      const [chosen] = pick.selectedItems;
      if (chosen?.value) return void compare(chosen.value);
      resolve(true);
      pick.hide();
    });
    pick.onDidHide(() => {
      resolve(false);
      pick.dispose();
    });
    pick.show();
  });
}

/** Returns the two sides of a comparison, or undefined if there is nothing to compare or the future content is not known. */
async function comparison(
  app: App,
  sessionId: string,
  plan: FilePlan,
  file: PlannedFile,
  contents: PlannedContents,
): Promise<{ now: vscode.Uri; then: vscode.Uri } | undefined> {
  const text =
    file.action === 'remove' ? '' : file.hash && (await keptContent(app.connection, sessionId, file.hash));
  if (text === undefined || !plan.root) return undefined;
  const isNew = file.action === 'create';
  const now = isNew
    ? contents.add(`${plan.planId}.now`, file.path, '')
    : vscode.Uri.file(path.join(plan.root, file.path));
  return { now, then: contents.add(plan.planId, file.path, text) };
}

/** Returns a content that the daemon keeps as text, or undefined if it is not there, damaged or too large. */
async function keptContent(connection: Connection, sessionId: string, hash: string): Promise<string | undefined> {
  const parts: string[] = [];
  let cursor: string | undefined;
  try {
    do {
      const params = { sessionId, hash, cursor };
      const part: TextPart = await connection.call('session.getFileContent', params);
      if (part.total > MAX_BYTES) return undefined;
      parts.push(part.data);
      cursor = part.nextCursor;
    } while (cursor !== undefined);
  } catch {
    return undefined;
  }
  const bytes = Buffer.from(parts.join(''), 'base64');
  return bytes.includes(0) ? `(a binary content of ${bytes.length} bytes)\n` : bytes.toString('utf8');
}
