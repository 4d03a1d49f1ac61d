// Puts the parts together: the connection, the chat, the sessions, and the commands.

import * as vscode from 'vscode';
import { resolveAddress } from './core/address';
import { ChatModel } from './core/chatModel';
import { Connection } from './core/connection';
import { toFailure } from './core/failure';
import type { DaemonEvent, Session } from './core/protocol';
import { SessionsModel } from './core/sessionsModel';
import { startDaemon } from './core/startDaemon';
import { noticeOf } from './core/turn';
import { App, command } from './vscode/app';
import { ChatView } from './vscode/chatView';
import { registerMemoryCommands } from './vscode/memoryCommands';
import { registerRecall } from './vscode/recallPick';
import { registerSendCommands } from './vscode/sendCommands';
import { registerSessionCommands } from './vscode/sessionCommands';
import { SessionsView } from './vscode/sessionsView';
import { registerUndoCommands } from './vscode/undoCommands';

/** The session that the chat of this workspace showed last. */
const LAST_SESSION = 'ollm.lastSession';

export function activate(context: vscode.ExtensionContext): void {
  // Names of sockets and errors of the connection; no text of a conversation.
  const log = vscode.window.createOutputChannel('ollm', { log: true });
  const connection = newConnection(String(context.extension.packageJSON.version));
  const folder = vscode.workspace.workspaceFolders?.find((one) => one.uri.scheme === 'file');
  const projectPath = folder?.uri.fsPath;
  let restoring: Promise<boolean> | undefined;
  let isWanted = false;
  // A chat that could not be restored without the daemon is restored when it answers.
  const restored = async () => {
    isWanted = true;
    restoring ??= restore(context, app);
    if (!(await restoring)) restoring = undefined;
  };
  const view = new ChatView(context.extensionUri, () => app.chat, restored);
  const tree = new SessionsView(connection, () => app.sessions);
  const app: App = {
    connection,
    projectPath,
    nextModel: undefined,
    showChat: () => view.reveal(),
    drawSessions: () => tree.refresh(),
    sessions: new SessionsModel(connection, projectPath, () => tree.refresh()),
    chat: new ChatModel({
      connection,
      projectPath,
      model: () => app.nextModel || setting('model') || undefined,
      post: (message) => view.post(message),
      onSession: (session) => void context.workspaceState.update(LAST_SESSION, session?.sessionId),
    }),
  };
  const endEvents = connection.subscribe({}, (event: DaemonEvent) => {
    app.sessions.follow(event);
    app.chat.follow(event);
  });
  // Behind a new connection the tree is drawn whether its lists could be read or not: it may have shown that there is none.
  const drawAgain = () => app.sessions.refresh().then(tree.refresh.bind(tree), tree.refresh.bind(tree));
  let wasConnected = false;
  const endStates = connection.onState((state) => {
    app.chat.connectionChanged();
    log.info(stateLine(connection));
    if (state === 'connected' && isWanted) void restored();
    if (state === 'connected') void drawAgain();
    if (state === 'waiting' && wasConnected) tree.refresh();
    if (state !== 'connecting') wasConnected = state === 'connected';
  });
  context.subscriptions.push(
    log,
    vscode.window.registerWebviewViewProvider('ollm.chat', view),
    vscode.window.registerTreeDataProvider('ollm.sessions', tree),
    ...registerChatCommands(app, tree),
    ...registerSessionCommands(app),
    ...registerSendCommands(app),
    ...registerUndoCommands(app),
    ...registerMemoryCommands(app),
    ...registerRecall(app),
    vscode.workspace.onDidChangeConfiguration((event) => {
      const isOther = ['ollm.home', 'ollm.socket'].some((key) => event.affectsConfiguration(key));
      if (isOther) void connection.restart().catch(() => {});
    }),
    {
      dispose: () => {
        endEvents();
        endStates();
        app.chat.dispose();
        app.sessions.dispose();
        connection.close();
      },
    },
  );
}

export function deactivate(): void {
  // The subscriptions of the context close the connection.
}

/** Opens a session; returns false if it was deleted. */
async function isOpened(app: App, sessionId: string): Promise<boolean> {
  try {
    await app.chat.open(sessionId);
    return true;
  } catch (error) {
    if (toFailure(error).kind === 'sessionNotFound') return false;
    throw error;
  }
}

function registerChatCommands(app: App, tree: SessionsView): vscode.Disposable[] {
  return [
    command('ollm.newChat', async () => {
      await app.showChat();
      app.chat.newChat();
    }),
    command('ollm.openChat', () => app.showChat()),
    command('ollm.stop', () => app.chat.stop()),
    command('ollm.retry', () => app.chat.retry()),
    command('ollm.openRecord', async (sessionId: string, seq: number) => {
      await app.showChat();
      await app.chat.open(sessionId, seq);
    }),
    command('ollm.startDaemon', async () => {
      await startDaemon(setting('ollmctl') || 'ollmctl', resolveAddress(addressSettings()).arguments);
      await app.connection.ready();
      tree.refresh();
    }),
  ];
}

/** Shows the session that this workspace used last, else the current one of its project. Returns whether that worked. */
async function restore(context: vscode.ExtensionContext, app: App): Promise<boolean> {
  if (app.chat.session) return true;
  try {
    await app.connection.ready();
    const last = context.workspaceState.get<string>(LAST_SESSION);
    if (last && (await isOpened(app, last))) return true;
    const { projectPath } = app;
    if (!projectPath) return true;
    const { session } = await app.connection.call<{ session?: Session }>('session.current', { projectPath });
    if (session && !app.chat.session) await app.chat.open(session.sessionId);
    return true;
  } catch (error) {
    app.chat.setNotice(noticeOf(toFailure(error)));
    return false;
  }
}

function stateLine({ state, path, hello, problem }: Connection): string {
  if (state === 'connected') return `connected to ollmd ${hello?.version} at ${path}`;
  return problem ? `${state}: ${problem.message}` : state;
}

function newConnection(version: string): Connection {
  return new Connection({
    version,
    address: () => resolveAddress(addressSettings()),
    start: async () => {
      const address = resolveAddress(addressSettings());
      const isForbidden =
        !vscode.workspace.getConfiguration('ollm').get('startDaemon', true) ||
        !['', '0', undefined].includes(process.env.OLLM_NO_SPAWN);
      if (!isForbidden) await startDaemon(setting('ollmctl') || 'ollmctl', address.arguments);
    },
  });
}

function addressSettings(): { home: string; socket: string } {
  return { home: setting('home'), socket: setting('socket') };
}

function setting(name: string): string {
  return vscode.workspace.getConfiguration('ollm').get<string>(name, '');
}
