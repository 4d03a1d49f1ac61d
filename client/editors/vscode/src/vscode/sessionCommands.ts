// Commands for sessions: open, rename, archive, delete, fork, export.

import { randomUUID } from 'node:crypto';
import * as fs from 'node:fs/promises';
import * as path from 'node:path';
import * as vscode from 'vscode';
import type { Page, Session } from '../core/protocol';
import { Scope, titleOf } from '../core/sessionsModel';
import { ago, counted, oneLine } from '../core/text';
import { App, choice, command, confirm, say } from './app';
import type { Node } from './sessionsView';

/** The longest wait for a part of an export; the first one can need a pass over the whole session. */
const EXPORT_MS = 120_000;
const MAX_LISTED = 200;

export function registerSessionCommands(app: App): vscode.Disposable[] {
  return [
    command('ollm.openSession', (target?: string | Node) => openSession(app, target)),
    command('ollm.renameSession', (target?: Node) => renameSession(app, target)),
    command('ollm.archiveSession', (target?: Node) => archiveSession(app, target)),
    command('ollm.deleteSession', (target?: Node) => deleteSession(app, target)),
    command('ollm.forkSession', (target?: Node) => forkSession(app, target)),
    command('ollm.exportSession', (target?: Node) => exportSession(app, target)),
    command('ollm.refreshSessions', async () => {
      await app.sessions.refresh();
      app.drawSessions();
    }),
    command('ollm.moreSessions', (scope: Scope) => app.sessions.more(scope)),
  ];
}

async function openSession(app: App, target?: string | Node): Promise<void> {
  const sessionId = typeof target === 'string' ? target : (await sessionOf(app, target, 'Open a session'))?.sessionId;
  if (!sessionId) return;
  await app.showChat();
  await app.chat.open(sessionId);
}

async function renameSession(app: App, target?: Node): Promise<void> {
  const session = await sessionOf(app, target, 'Rename a session');
  if (!session) return;
  const title = await vscode.window.showInputBox({
    title: 'Rename the session',
    value: oneLine(session.title),
    prompt: 'An empty title is the beginning of the first message again',
  });
  if (title === undefined) return;
  await app.connection.call('session.update', { sessionId: session.sessionId, title });
}

async function archiveSession(app: App, target?: Node): Promise<void> {
  const session = await sessionOf(app, target, 'Archive a session');
  if (!session) return;
  await app.connection.call('session.archive', { sessionId: session.sessionId });
  say(`“${titleOf(session)}” is archived. A message in it brings it back to the lists.`);
}

async function deleteSession(app: App, target?: Node): Promise<void> {
  const session = await sessionOf(app, target, 'Delete a session');
  if (!session) return;
  const detail =
    `${counted(session.messageCount, 'message')}. The session is removed from the disk and from the search. ` +
    'This cannot be undone; archiving only hides it from lists.';
  if (!(await confirm(`Delete “${titleOf(session)}”?`, detail, 'Delete'))) return;
  await app.connection.call('session.delete', { sessionId: session.sessionId });
}

async function forkSession(app: App, target?: Node): Promise<void> {
  const session = await sessionOf(app, target, 'Fork a session');
  if (!session) return;
  const params = { sessionId: session.sessionId };
  const result = await app.connection.call<{ session: Session }>('session.fork', params);
  await openSession(app, result.session.sessionId);
}

async function exportSession(app: App, target?: Node): Promise<void> {
  const session = await sessionOf(app, target, 'Export a session as a page');
  if (!session) return;
  const name =
    titleOf(session)
      .replace(/[^\p{L}\p{N} _-]+/gu, '')
      .trim()
      .slice(0, 60) || 'session';
  const folder = session.projectPath ?? app.projectPath;
  const file = await vscode.window.showSaveDialog({
    title: 'Export the session as a page',
    filters: { 'HTML page': ['html'] },
    ...(folder ? { defaultUri: vscode.Uri.file(path.join(folder, `${name}.html`)) } : {}),
  });
  if (!file) return;
  await vscode.window.withProgress(
    { location: vscode.ProgressLocation.Notification, title: 'ollm: exporting' },
    (progress) => writeExport(app, session.sessionId, file.fsPath, (message) => progress.report({ message })),
  );
  const chosen = await vscode.window.showInformationMessage(`ollm: the page is written.`, 'Open in Browser');
  if (chosen) await vscode.env.openExternal(file);
}

/** Writes all parts of an export to a new file, which takes the place of an older one when it is complete. */
async function writeExport(app: App, sessionId: string, file: string, report: (text: string) => void): Promise<void> {
  // A name that nobody can guess, and never a file that is there: in a shared directory that could be a link.
  const partial = `${file}.${randomUUID()}.part`;
  const out = await fs.open(partial, 'wx', 0o600);
  try {
    let cursor: string | undefined;
    do {
      const params = { sessionId, format: 'html', cursor };
      const part = await app.connection.call<{ data: string; nextCursor?: string; done: number; total: number }>(
        'session.export',
        params,
        EXPORT_MS,
      );
      // Unlike `write`, this writes all of it.
      await out.writeFile(part.data);
      report(`record ${part.done} of ${part.total}`);
      cursor = part.nextCursor;
    } while (cursor !== undefined);
    await out.sync();
    await out.close();
    await fs.rename(partial, file);
  } catch (error) {
    await out.close().catch(() => {});
    await fs.rm(partial, { force: true });
    throw error;
  }
}

/** Returns the session of a tree item, else one that the person chooses. */
async function sessionOf(app: App, target: Node | string | undefined, title: string): Promise<Session | undefined> {
  if (typeof target === 'object' && target.kind === 'session') return target.row.session;
  const { data } = await app.connection.call<Page<Session>>('session.list', { limit: MAX_LISTED });
  const current = app.chat.session?.sessionId;
  const sorted = [
    ...data.filter((one) => one.sessionId === current),
    ...data.filter((one) => one.sessionId !== current),
  ];
  const items = sorted.map((session) =>
    choice(session, {
      label: titleOf(session),
      description: ago(session.lastActivity, Date.now()),
      detail: session.projectPath,
    }),
  );
  const chosen = await vscode.window.showQuickPick(items, {
    title,
    placeHolder: 'A title or a path',
    matchOnDetail: true,
  });
  return chosen?.value;
}
