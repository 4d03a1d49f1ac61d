// Sends a selection or a file of the editor to the chat, with its path and lines.

import * as vscode from 'vscode';
import { Failure } from '../core/failure';
import { EXCERPT_LIMIT, Excerpt, fenced, place, selectedLines } from '../core/fence';
import { grouped, inert } from '../core/text';
import { App, command } from './app';

export function registerSendCommands(app: App): vscode.Disposable[] {
  return [
    command('ollm.sendSelection', (question?: unknown) => send(app, true, question)),
    command('ollm.sendFile', (question?: unknown) => send(app, false, question)),
  ];
}

async function send(app: App, isSelection: boolean, given: unknown): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  if (!editor) throw new Failure('noEditor', 'open a file first');
  const excerpt = excerptOf(editor, isSelection);
  if (excerpt.text.length > EXCERPT_LIMIT) {
    throw new Failure(
      'tooLarge',
      `${place(excerpt)} has ${grouped(excerpt.text.length)} characters; select at most ${grouped(EXCERPT_LIMIT)}`,
    );
  }
  const question =
    typeof given === 'string'
      ? given
      : await vscode.window.showInputBox({
          title: `Send ${inert(place(excerpt))}`,
          prompt: 'A question about it; empty sends only the text',
        });
  if (question === undefined) return;
  await app.showChat();
  // A message that is refused becomes the draft of the page, so it is not lost.
  await app.chat.send(fenced(excerpt, question), 0);
}

function excerptOf(editor: vscode.TextEditor, isSelection: boolean): Excerpt {
  const { document, selection } = editor;
  const path = vscode.workspace.asRelativePath(document.uri, false);
  const language = document.languageId === 'plaintext' ? '' : document.languageId;
  if (!isSelection) return { path, language, text: document.getText() };
  if (selection.isEmpty) throw new Failure('noSelection', 'select some lines first');
  return { path, language, text: document.getText(selection), lines: selectedLines(selection.start, selection.end) };
}
