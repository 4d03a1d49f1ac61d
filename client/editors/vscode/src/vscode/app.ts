// The things that all commands share: the connection, the chat, the sessions, and how a person is told and asked.

import * as vscode from 'vscode';
import type { ChatModel } from '../core/chatModel';
import type { Connection } from '../core/connection';
import { Failure, describe, toFailure } from '../core/failure';
import type { Line } from '../core/memory';
import type { Session } from '../core/protocol';
import type { SessionsModel } from '../core/sessionsModel';
import { inert, oneLine } from '../core/text';

export interface App {
  connection: Connection;
  chat: ChatModel;
  sessions: SessionsModel;
  projectPath: string | undefined;
  /** The model that a person chose for the next chat. */
  nextModel: string | undefined;
  /** Draws the tree of sessions again. */
  drawSessions: () => void;
  /** Shows the chat view. */
  showChat: () => Promise<void>;
}

/** An item of a list that stands for a value. */
export interface Choice<T> extends vscode.QuickPickItem {
  value: T;
}

/** Returns a list item for a value; its texts make no icons. */
export function choice<T>(value: T, line: Line, more: Partial<vscode.QuickPickItem> = {}): Choice<T> {
  const detail = line.detail === undefined ? {} : { detail: inert(line.detail) };
  return { value, label: inert(line.label), description: inert(line.description), ...detail, ...more };
}

/** Registers a command whose errors are shown to the person. */
export function command<A extends unknown[]>(
  name: string,
  run: (...args: A) => Promise<void> | void,
): vscode.Disposable {
  return vscode.commands.registerCommand(name, async (...args: unknown[]) => {
    try {
      await run(...(args as A));
    } catch (error) {
      await report(toFailure(error));
    }
  });
}

/** Shows an error; offers to type the command that helps into a terminal, without running it. */
export async function report(failure: Failure): Promise<void> {
  const action = 'Type Command in Terminal';
  const chosen = await vscode.window.showErrorMessage(
    `ollm: ${inert(describe(failure))}`,
    ...(failure.hint ? [action] : []),
  );
  if (chosen !== action || !failure.hint) return;
  const terminal = vscode.window.createTerminal('ollm');
  terminal.show();
  terminal.sendText(oneLine(failure.hint), false);
}

export function say(text: string): void {
  void vscode.window.showInformationMessage(`ollm: ${inert(text)}`);
}

/** Asks before something that cannot simply be taken back. */
export async function confirm(text: string, detail: string, action: string): Promise<boolean> {
  return (await vscode.window.showWarningMessage(text, { modal: true, detail }, action)) === action;
}

/** Returns the session of the chat, which has messages. */
export function currentSession(app: App): Session {
  const { session } = app.chat;
  if (!session || session.draft)
    throw new Failure('noSession', 'the chat has no session yet; send a message, or open a session');
  return session;
}
