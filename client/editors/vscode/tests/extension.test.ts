// The extension as VS Code runs it, with a stand-in for VS Code and the real daemon: every command, the tree, the page.

import assert from 'node:assert/strict';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { after, before, describe, it } from 'node:test';
import type { ToPage } from '../src/viewMessages';
import { FakePage, Scratch, until } from './harness';
import { Window, activate } from './vscodeStub';

const root = path.resolve(__dirname, '../..');
const manifest = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8'));

describe('extension', () => {
  const window = new Window();
  const page = new FakePage();
  let scratch: Scratch;
  let running: ReturnType<typeof activate>;
  let toExtension: (message: object) => void;
  let html = '';

  before(async () => {
    scratch = await Scratch.begin();
    window.folder = scratch.project;
    window.settings = { home: scratch.home, ollmctl: scratch.ollmctl };
    running = activate(window);
    const webview = {
      cspSource: 'https://cdn.example',
      options: {},
      asWebviewUri: (uri: { path: string }) => `https://cdn.example${uri.path}`,
      onDidReceiveMessage: (handler: (message: object) => void) => {
        toExtension = handler;
      },
      postMessage: async (message: ToPage) => {
        page.receive(message);
        return true;
      },
      set html(text: string) {
        html = text;
      },
    };
    window.providers
      .get('ollm.chat')
      .resolveWebviewView({ webview, visible: true, onDidDispose() {}, onDidChangeVisibility() {} });
    toExtension({ type: 'ready' });
  });
  after(() => {
    running.dispose();
    scratch.end();
  });

  async function ask(text: string): Promise<void> {
    const before = page.texts('assistant').length;
    toExtension({ type: 'send', requestId: 1, text });
    await until(`the answer to ${text}`, () => page.texts('assistant').length > before && !page.isRunning);
  }

  async function newChat(text: string): Promise<string> {
    await window.run('ollm.newChat');
    await ask(text);
    return until('the session', () => page.last('conversation')?.sessionId);
  }

  it('registers every command of the manifest, and the manifest lists all that are for people', () => {
    const listed: string[] = manifest.contributes.commands.map((one: { command: string }) => one.command);
    for (const name of listed) assert.ok(window.commands.has(name), name);
    const internal = ['ollm.moreSessions', 'ollm.openRecord'];
    for (const name of window.commands.keys()) assert.ok(listed.includes(name) || internal.includes(name), name);
    for (const one of manifest.contributes.commands) assert.equal(one.category, 'ollm');
    const used = JSON.stringify([manifest.contributes.menus, manifest.contributes.keybindings]).matchAll(
      /"command":"([^"]+)"/g,
    );
    for (const [, name] of used) assert.ok(listed.includes(name), name);
    assert.deepEqual(manifest.activationEvents, []);
    assert.deepEqual(manifest.extensionKind, ['workspace']);
  });

  it('serves a page whose files exist', () => {
    assert.match(html, /script-src 'nonce-[\w-]{32}'/);
    for (const [, file] of html.matchAll(/https:\/\/cdn\.example(\/[^"]+)"/g)) assert.ok(fs.existsSync(file), file);
  });

  it('chats through the page', async () => {
    await newChat('hello from the page');
    assert.match(page.texts('assistant')[0], /hello from the page/);
    toExtension({ type: 'copy', text: 'x' });
    await until('the clipboard', () => window.clipboard === 'x');
    toExtension({ type: 'command', name: 'workbench.action.terminal.new' });
    assert.ok(!window.executed.some((one) => one.name.includes('terminal')), 'the page runs no other command');
  });

  it('inserts code at the cursor without control characters', async () => {
    const edits: string[] = [];
    const editor = {
      selection: 'here',
      document: {},
      viewColumn: 1,
      edit: async (change: (edit: object) => void) =>
        change({ replace: (_where: unknown, text: string) => edits.push(text) }),
    };
    window.editor = editor;
    toExtension({ type: 'insert', text: 'let a;\u001b[31m\n' });
    await until('the edit', () => edits.length === 1);
    assert.deepEqual(edits, ['let a;[31m\n']);
    window.editor = undefined;
  });

  it('sends a selection with its path, lines and language, and a whole file', async () => {
    const text = 'one\ntwo ```\nthree\n';
    const document = {
      uri: { path: path.join(scratch.project, 'src/a.py') },
      languageId: 'python',
      getText: (selection?: unknown) => (selection ? 'two ```\n' : text),
    };
    window.editor = {
      document,
      selection: { isEmpty: false, start: { line: 1, character: 0 }, end: { line: 2, character: 0 } },
    };
    window.answers.push(() => 'What is this?');
    await window.run('ollm.sendSelection');
    const sent = await until('the message', () => page.texts('user').find((one) => one.startsWith('What is this?')));
    assert.equal(sent, 'What is this?\n\nsrc/a.py, line 2:\n\n````python\ntwo ```\n````\n');
    await until('the answer', () => !page.isRunning);
    window.answers.push(() => '');
    await window.run('ollm.sendFile');
    await until('the file', () =>
      page.texts('user').some((one) => one === `src/a.py:\n\n\`\`\`\`python\n${text}\`\`\`\`\n`),
    );
    await until('the answer', () => !page.isRunning);
    window.editor = undefined;
    await window.run('ollm.sendFile');
    assert.match(window.messages.at(-1)!, /open a file first/);
  });

  it('lists sessions with the newest first, in pages, without control characters', async () => {
    const sessionId = await newChat('for the tree');
    const title = 'evil\u001b]0;x\u0007 title\n$(zap)';
    scratch.ctl('call', 'session.update', JSON.stringify({ sessionId, title }));
    for (let number = 0; number < 27; number += 1) scratch.ctl('record', `note ${number}`, '--new');
    const tree = window.trees.get('ollm.sessions');
    const [scope] = await tree.getChildren();
    assert.equal(tree.getTreeItem(scope).label, 'This project');
    const rows = await until('the first page', async () => {
      const nodes = await tree.getChildren(scope);
      return nodes.length === 26 && nodes[0].row.label === 'note 26' && nodes;
    });
    const more = tree.getTreeItem(rows.at(-1));
    assert.equal(more.label, 'More…');
    await window.run(more.command.command, ...more.command.arguments);
    const all = await tree.getChildren(scope);
    assert.ok(all.length > 28);
    const evil = all.find((node: any) => node.row?.session.sessionId === sessionId);
    assert.equal(tree.getTreeItem(evil).label, 'evil]0;x title $(zap)');
    assert.equal(tree.getTreeItem(evil).contextValue, 'session');
  });

  it('renames, forks, exports, archives and deletes a session, and asks before the last', async () => {
    const sessionId = await newChat('short life');
    const node = {
      kind: 'session',
      scope: 'all',
      row: { session: { sessionId, title: 'short life', messageCount: 2 } },
    };
    window.answers.push(() => 'Renamed');
    await window.run('ollm.renameSession', node);
    await until('the title', () => page.last('conversation')?.title === 'Renamed');
    const file = path.join(scratch.root, 'page.html');
    window.answers.push(() => ({ fsPath: file }));
    await window.run('ollm.exportSession', node);
    assert.match(fs.readFileSync(file, 'utf8'), /short life/);
    assert.deepEqual(
      fs.readdirSync(scratch.root).filter((name) => name.endsWith('.part')),
      [],
    );
    await window.run('ollm.forkSession', node);
    await until('the fork', () => page.last('conversation')?.title === 'Renamed (fork 2)');
    await window.run('ollm.archiveSession', node);
    assert.match(window.messages.at(-1)!, /archived/);
    window.answers.push(() => undefined);
    await window.run('ollm.deleteSession', node);
    assert.equal(
      JSON.parse(scratch.ctl('call', 'session.get', JSON.stringify({ sessionId }))).session.status,
      'archived',
    );
    window.answers.push(([action]) => action);
    await window.run('ollm.deleteSession', node);
    assert.match(window.modals.at(-1)!.detail, /cannot be undone/);
    assert.throws(() => scratch.ctl('call', 'session.get', JSON.stringify({ sessionId })));
  });

  it('undoes and redoes a turn', async () => {
    await newChat('to be undone');
    await window.run('ollm.undo');
    await until('the undo', () => page.texts('user').length === 0);
    assert.match(window.messages.at(-1)!, /Undone: to be undone/);
    await window.run('ollm.redo');
    await until('the redo', () => page.texts('user').includes('to be undone'));
    await window.run('ollm.redo');
    assert.match(window.messages.at(-1)!, /ollm: .*redo/i);
  });

  it('shows the plan of an undo with files as comparisons, asks, and puts them back', async () => {
    const sessionId = await newChat('files');
    const file = path.join(scratch.project, 'a.txt');
    fs.writeFileSync(file, 'before\n');
    scratch.ctl('exec', '--session', sessionId, '--track', '--', 'sh', '-c', 'echo after > a.txt; echo new > b.txt');
    await until('the tool call', () => page.texts('tool').length === 1);
    const undo = async (direction: string, isConfirmed: boolean) => {
      const known = window.picks.length;
      const done = window.run(`ollm.${direction}Files`);
      const pick = await until(
        'the plan',
        () => window.picks.length > known && window.picks.at(-1)!.shown && window.picks.at(-1),
      );
      window.executed.length = 0;
      pick.moveTo(pick.items.find((item) => item.label === 'a.txt'));
      const diff = await until('the comparison', () => window.executed.find((one) => one.name === 'vscode.diff'));
      const then = window.providers.get('ollm-plan').provideTextDocumentContent(diff.args[1]);
      assert.equal(diff.args[0].fsPath, file);
      window.answers.push(([action]) => (isConfirmed ? action : undefined));
      pick.choose(pick.items[0]);
      await done;
      return { then, pick };
    };
    const refused = await undo('undo', false);
    assert.equal(refused.then, 'before\n');
    assert.deepEqual(
      refused.pick.items.slice(1).map((item) => `${item.label} ${item.description}`),
      ['a.txt gets another content', 'b.txt is removed'],
    );
    assert.equal(fs.readFileSync(file, 'utf8'), 'after\n');
    await undo('undo', true);
    assert.equal(window.modals.at(-1)!.text, 'Undo and put back 2 files?');
    assert.equal(fs.readFileSync(file, 'utf8'), 'before\n');
    assert.ok(!fs.existsSync(path.join(scratch.project, 'b.txt')));
    const redo = await undo('redo', true);
    assert.equal(redo.then, 'after\n');
    assert.equal(fs.readFileSync(file, 'utf8'), 'after\n');
    fs.writeFileSync(file, 'mine\n');
    const done = window.run('ollm.undoFiles');
    const pick = await until(
      'the conflict',
      () =>
        window.picks.at(-1)!.items.some((item) => /not as the session left it/.test(item.description)) &&
        window.picks.at(-1),
    );
    pick.hide();
    await done;
    assert.equal(fs.readFileSync(file, 'utf8'), 'mine\n');
  });

  it('recalls what was said while a person types, and opens it in its conversation', async () => {
    const sessionId = await newChat('the staging port is 48213 for zanzibar');
    await newChat('something else');
    await window.run('ollm.recall');
    const pick = window.picks.at(-1)!;
    await until('the index', async () => JSON.parse(scratch.ctl('recall', 'zanzibar', '--json')).data.length);
    pick.type('zan');
    pick.type('which port has zanzibar?');
    await until('the hit', () => pick.items.some((item) => /48213/.test(item.label)));
    assert.ok(pick.items.every((item) => item.alwaysShow));
    pick.choose(pick.items.find((item) => /48213/.test(item.label)));
    await until('the conversation', () =>
      page.log.some((one) => one.type === 'conversation' && one.reveal && one.sessionId === sessionId),
    );
    await window.run('ollm.recall');
    const other = window.picks.at(-1)!;
    other.type('xyzzyplugh');
    await until('the empty list', () => other.items[0]?.label === 'Nothing was said about this.');
    other.hide();
  });

  it('adds, shows and completes goals', async () => {
    await newChat('goals');
    window.answers.push(() => 'Port the $(zap) parser');
    await window.run('ollm.goalAdd');
    window.answers.push(
      (items) => items[0],
      (items) => items.find((item: any) => item.value === 'paused'),
    );
    await window.run('ollm.goals');
    assert.equal(window.lists.at(-2)![0].label, 'Port the $ (zap) parser');
    await window.run('ollm.goalComplete');
    assert.match(window.messages.at(-1)!, /completed: Port the/);
    await window.run('ollm.goalComplete');
    assert.match(window.messages.at(-1)!, /no open goal/);
  });

  it('remembers and forgets texts and facts', async () => {
    await newChat('My name is Ottilie and the port is 48213.');
    window.answers.push(
      () => 'Use tabs.',
      (items) => items[0],
    );
    await window.run('ollm.remember');
    assert.match(window.messages.at(-1)!, /remembered/);
    window.answers.push(
      () => 'Never touch legacy/.',
      (items) => items.find((item: any) => item.label === 'In this project'),
    );
    await window.run('ollm.remember');
    for (const text of ['Use tabs.', 'Never touch legacy/.']) {
      window.answers.push((items) => items.find((item: any) => item.label === text));
      await window.run('ollm.forget');
      assert.match(window.messages.at(-1)!, new RegExp(`forgotten: ${text.slice(0, 8)}`));
    }
    await window.run('ollm.forget');
    assert.match(window.messages.at(-1)!, /nothing is remembered/);
    window.answers.push(
      (items) => items[0],
      ([action]) => action,
    );
    await window.run('ollm.facts');
    assert.match(window.messages.at(-1)!, /forgotten: .*48213/);
  });

  it('chooses the model of a session, and shows its context', async () => {
    const sessionId = await newChat('which model?');
    window.answers.push((items) => items.find((item: any) => item.label === 'parrot:latest'));
    await window.run('ollm.chooseModel');
    await until('the bar', () => page.last('bar')?.bar.model === 'parrot:latest');
    assert.equal(
      JSON.parse(scratch.ctl('call', 'session.get', JSON.stringify({ sessionId }))).session.model,
      'parrot:latest',
    );
    await window.run('ollm.contextStatus');
    assert.match((window.state.get('document') as { text: string }).text, /# The context of “which model\?”/);
  });

  it('says what is missing when there is no session yet', async () => {
    await window.run('ollm.newChat');
    for (const name of ['undo', 'undoFiles', 'goals', 'facts', 'contextStatus']) {
      await window.run(`ollm.${name}`);
      assert.match(window.messages.at(-1)!, /the chat has no session yet/, name);
    }
  });

  it('offers to start a daemon that was stopped, and does not start it by itself', async () => {
    const tree = window.trees.get('ollm.sessions');
    scratch.ctl('daemon', 'stop');
    await until('the loss', () => page.last('notice')?.notice?.text.startsWith('No connection'));
    assert.deepEqual(await tree.getChildren(), []);
    assert.ok(window.executed.some((one) => one.name === 'setContext' && one.args[1] === true));
    assert.throws(() => scratch.ctl('--no-spawn', 'daemon', 'status'));
    await window.run('ollm.startDaemon');
    await until('the connection', () => page.last('notice')?.notice === null);
    assert.equal((await tree.getChildren()).length, 2);
  });
});
