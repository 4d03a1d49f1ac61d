// A small stand-in for the module `vscode`: remembers what the extension shows, and answers as the test decides.

import * as fs from 'node:fs';
import Module from 'node:module';
import * as path from 'node:path';

type Handler = (...args: any[]) => any;

export class Emitter {
  private handlers: Handler[] = [];
  readonly event = (handler: Handler) => {
    this.handlers.push(handler);
    return { dispose() {} };
  };
  fire(value?: unknown): void {
    for (const handler of this.handlers) handler(value);
  }
}

class Uri {
  constructor(
    readonly scheme: string,
    readonly path: string,
    readonly query = '',
    readonly fragment = '',
  ) {}
  static file(file: string) {
    return new Uri('file', file);
  }
  static from(parts: { scheme: string; path: string; query?: string; fragment?: string }) {
    return new Uri(parts.scheme, parts.path, parts.query, parts.fragment);
  }
  static joinPath(base: Uri, ...parts: string[]) {
    return new Uri(base.scheme, path.posix.join(base.path, ...parts));
  }
  get fsPath() {
    return this.path;
  }
  toString() {
    return `${this.scheme}:${this.path}?${this.query}#${this.fragment}`;
  }
}

/** A list that the extension fills while a person types. */
export class StubPick {
  title = '';
  items: any[] = [];
  buttons: any[] = [];
  selectedItems: any[] = [];
  busy = false;
  value = '';
  shown = false;
  private readonly emitters = {
    value: new Emitter(),
    accept: new Emitter(),
    hide: new Emitter(),
    active: new Emitter(),
    button: new Emitter(),
  };
  onDidChangeValue = this.emitters.value.event;
  onDidAccept = this.emitters.accept.event;
  onDidHide = this.emitters.hide.event;
  onDidChangeActive = this.emitters.active.event;
  onDidTriggerButton = this.emitters.button.event;
  show() {
    this.shown = true;
  }
  hide() {
    this.shown = false;
    this.emitters.hide.fire();
  }
  dispose() {}
  type(value: string) {
    this.value = value;
    this.emitters.value.fire(value);
  }
  moveTo(item: any) {
    this.emitters.active.fire([item]);
  }
  choose(item: any) {
    this.selectedItems = [item];
    this.emitters.accept.fire();
  }
}

/** Everything that the extension did, and what the person answers next. */
export class Window {
  readonly commands = new Map<string, Handler>();
  readonly executed: { name: string; args: any[] }[] = [];
  readonly messages: string[] = [];
  readonly modals: { text: string; detail: string }[] = [];
  readonly picks: StubPick[] = [];
  readonly lists: any[][] = [];
  readonly providers = new Map<string, any>();
  readonly trees = new Map<string, any>();
  readonly state = new Map<string, unknown>();
  readonly terminals: { text: string; run: boolean }[] = [];
  settings: Record<string, unknown> = {};
  folder = '';
  editor: any;
  clipboard = '';
  /** The answers to lists, inputs, save dialogs and modal questions, in order. */
  readonly answers: ((choices: any) => any)[] = [];

  answer(choices: unknown): unknown {
    const next = this.answers.shift();
    if (!next) throw new Error(`nobody answers: ${JSON.stringify(choices)}`);
    return next(choices);
  }

  async run(name: string, ...args: unknown[]): Promise<unknown> {
    const handler = this.commands.get(name);
    if (!handler) throw new Error(`no command ${name}`);
    return handler(...args);
  }

  module(): object {
    const disposable = { dispose() {} };
    const message = async (text: string, ...rest: any[]) => {
      const isModal = typeof rest[0] === 'object' && rest[0]?.modal;
      if (isModal) {
        this.modals.push({ text, detail: rest[0].detail });
        return this.answer(rest.slice(1));
      }
      this.messages.push(text);
      return undefined;
    };
    return {
      Uri,
      EventEmitter: Emitter,
      TreeItem: class {
        constructor(
          public label: string,
          public collapsibleState = 0,
        ) {}
      },
      ThemeIcon: class {
        constructor(public id: string) {}
      },
      TreeItemCollapsibleState: { None: 0, Collapsed: 1, Expanded: 2 },
      ProgressLocation: { Notification: 15 },
      commands: {
        registerCommand: (name: string, handler: Handler) => {
          this.commands.set(name, handler);
          return disposable;
        },
        executeCommand: async (name: string, ...args: any[]) => {
          this.executed.push({ name, args });
          return this.commands.get(name)?.(...args);
        },
      },
      workspace: {
        get workspaceFolders() {
          return undefined;
        },
        getConfiguration: () => ({ get: (name: string, fallback: unknown) => this.settings[name] ?? fallback }),
        textDocuments: [],
        onDidChangeConfiguration: () => disposable,
        registerTextDocumentContentProvider: (scheme: string, provider: any) => {
          this.providers.set(scheme, provider);
          return disposable;
        },
        asRelativePath: (uri: Uri) => path.relative(this.folder, uri.path),
        openTextDocument: async (uri: Uri) => ({
          uri,
          text: await this.providers.get(uri.scheme).provideTextDocumentContent(uri),
        }),
        ...(this.folder ? { workspaceFolders: [{ uri: Uri.file(this.folder), name: 'project', index: 0 }] } : {}),
      },
      window: {
        activeTextEditor: undefined,
        visibleTextEditors: [],
        showInformationMessage: message,
        showWarningMessage: message,
        showErrorMessage: message,
        showQuickPick: async (items: any[]) => {
          this.lists.push(items);
          return this.answer(items);
        },
        showInputBox: async (options: any) => this.answer(options),
        showSaveDialog: async (options: any) => this.answer(options),
        showTextDocument: async (document: any) => {
          this.state.set('document', document);
        },
        createOutputChannel: () => ({ info() {}, dispose() {} }),
        createQuickPick: () => {
          const pick = new StubPick();
          this.picks.push(pick);
          return pick;
        },
        createTerminal: () => ({
          show() {},
          sendText: (text: string, run: boolean) => this.terminals.push({ text, run }),
        }),
        withProgress: (_options: unknown, task: Handler) => task({ report() {} }),
        registerWebviewViewProvider: (id: string, provider: any) => {
          this.providers.set(id, provider);
          return disposable;
        },
        registerTreeDataProvider: (id: string, provider: any) => {
          this.trees.set(id, provider);
          return disposable;
        },
      },
      env: {
        clipboard: {
          writeText: async (text: string) => {
            this.clipboard = text;
          },
        },
        openExternal: async () => true,
      },
    };
  }
}

/** Activates the extension with a stand-in for `vscode`. */
export function activate(window: Window): { context: any; dispose(): void; vscode: any } {
  const root = path.resolve(__dirname, '../..');
  const stub: any = window.module();
  Object.defineProperty(stub.window, 'activeTextEditor', { get: () => window.editor });
  const loader = Module as unknown as { _load: Handler };
  const original = loader._load;
  loader._load = (name: string, ...rest: unknown[]) => (name === 'vscode' ? stub : original(name, ...rest));
  const memory = new Map<string, unknown>();
  const context = {
    subscriptions: [] as { dispose(): void }[],
    extensionUri: Uri.file(root),
    extension: { packageJSON: JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8')) },
    workspaceState: {
      get: (key: string) => memory.get(key),
      update: async (key: string, value: unknown) => void memory.set(key, value),
    },
  };
  require('../src/extension').activate(context);
  return {
    context,
    vscode: stub,
    dispose: () => {
      for (const one of context.subscriptions) one.dispose();
      loader._load = original;
    },
  };
}
