// The chat view: hosts the page and carries messages between it and the chat.

import * as vscode from 'vscode';
import type { ChatModel } from '../core/chatModel';
import { toFailure } from '../core/failure';
import { chatPage, newNonce } from '../core/page';
import { clean } from '../core/text';
import { noticeOf } from '../core/turn';
import type { FromPage, ToPage } from '../viewMessages';

/** The commands that the page may run. */
const COMMANDS = new Set(['chooseModel', 'contextStatus']);

export class ChatView implements vscode.WebviewViewProvider {
  private view?: vscode.WebviewView;
  private isReady = false;
  /** Texts for a page that is not there yet; they must not be lost. */
  private waiting: ToPage[] = [];

  /** `restored` shows the session that was open last, once, and waits for it. */
  constructor(
    private readonly extension: vscode.Uri,
    private readonly chat: () => ChatModel,
    private readonly restored: () => Promise<void>,
  ) {}

  resolveWebviewView(view: vscode.WebviewView): void {
    this.view = view;
    this.isReady = false;
    const { webview } = view;
    const folders = ['out/webview', 'media'].map((folder) => vscode.Uri.joinPath(this.extension, folder));
    webview.options = { enableScripts: true, localResourceRoots: folders };
    const file = (path: string) => webview.asWebviewUri(vscode.Uri.joinPath(this.extension, path)).toString();
    const failed = (error: unknown) => this.chat().setNotice(noticeOf(toFailure(error)));
    webview.onDidReceiveMessage((message: FromPage) => void this.receive(message).catch(failed));
    view.onDidDispose(() => {
      if (this.view === view) this.view = undefined;
    });
    // A hidden page is gone; it says `ready` again when it is shown.
    view.onDidChangeVisibility(() => {
      if (!view.visible) this.isReady = false;
    });
    webview.html = chatPage({
      nonce: newNonce(),
      source: webview.cspSource,
      script: file('out/webview/main.js'),
      style: file('media/chat.css'),
    });
    void this.restored();
  }

  /** Posts to the page; a page that is made later shows the chat as it is then. */
  post(message: ToPage): void {
    const keep = () => {
      if (message.type === 'refused' || message.type === 'draft') this.waiting.push(message);
    };
    if (this.view && this.isReady)
      void this.view.webview.postMessage(message).then((isShown) => {
        if (!isShown) keep();
      }, keep);
    else keep();
    if (message.type === 'conversation' && this.view) this.view.description = message.title;
  }

  async reveal(): Promise<void> {
    await vscode.commands.executeCommand('ollm.chat.focus');
    await this.restored();
  }

  private async receive(message: FromPage): Promise<void> {
    const chat = this.chat();
    switch (message.type) {
      case 'ready':
        this.isReady = true;
        chat.show();
        for (const waiting of this.waiting.splice(0)) this.post(waiting);
        break;
      case 'send':
        await this.restored();
        await chat.send(message.text, message.requestId);
        break;
      case 'stop':
        await chat.stop();
        break;
      case 'retry':
        await chat.retry();
        break;
      case 'earlier':
        await vscode.window.withProgress({ location: { viewId: 'ollm.chat' } }, () => chat.earlier());
        break;
      case 'copy':
        await vscode.env.clipboard.writeText(message.text);
        break;
      case 'insert':
        await insertAtCursor(message.text);
        break;
      case 'command':
        if (COMMANDS.has(message.name)) await vscode.commands.executeCommand(`ollm.${message.name}`);
        break;
    }
  }
}

/** Replaces the selection of the editor that was used last. */
async function insertAtCursor(text: string): Promise<void> {
  const editor = vscode.window.activeTextEditor ?? vscode.window.visibleTextEditors[0];
  if (!editor) {
    void vscode.window.showInformationMessage('ollm: open a file, then insert the code at its cursor.');
    return;
  }
  const selection = editor.selection;
  await editor.edit((edit) => edit.replace(selection, clean(text)));
  await vscode.window.showTextDocument(editor.document, editor.viewColumn);
}
