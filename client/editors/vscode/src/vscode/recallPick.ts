// Recall: finds what was said, in the words of a question, while a person types.

import * as vscode from 'vscode';
import { describe, toFailure } from '../core/failure';
import { hitLine } from '../core/memory';
import type { RecallHit } from '../core/protocol';
import { inert } from '../core/text';
import { App, Choice, choice, command } from './app';

/** The pause after a key before a search begins. */
const SETTLE_MS = 150;
const LIMIT = 30;

type Item = Choice<RecallHit | undefined>;

export function registerRecall(app: App): vscode.Disposable[] {
  return [command('ollm.recall', () => recall(app))];
}

function recall(app: App): void {
  const pick = vscode.window.createQuickPick<Item>();
  let isAll = !app.projectPath;
  let timer: NodeJS.Timeout | undefined;
  let serial = 0;
  const showScope = () => {
    pick.title = isAll ? 'Recall from all sessions' : 'Recall from this project';
    pick.buttons = app.projectPath
      ? [
          {
            iconPath: new vscode.ThemeIcon(isAll ? 'folder' : 'globe'),
            tooltip: isAll ? 'Only this project' : 'All sessions',
          },
        ]
      : [];
  };
  const search = async () => {
    const mine = ++serial;
    const query = pick.value.trim();
    if (!query) return void (pick.items = []);
    pick.busy = true;
    const items = await found(app, query, isAll);
    if (mine !== serial) return;
    pick.busy = false;
    pick.items = items;
  };
  const searchSoon = () => {
    clearTimeout(timer);
    timer = setTimeout(() => void search(), SETTLE_MS);
  };
  pick.placeholder = 'Which port does staging use?';
  pick.matchOnDescription = true;
  pick.matchOnDetail = true;
  showScope();
  pick.onDidChangeValue(searchSoon);
  pick.onDidTriggerButton(() => {
    isAll = !isAll;
    showScope();
    searchSoon();
  });
  pick.onDidAccept(() => {
    const hit = pick.selectedItems[0]?.value;
    if (!hit) return;
    pick.hide();
    void vscode.commands.executeCommand('ollm.openRecord', hit.sessionId, hit.seq);
  });
  pick.onDidHide(() => {
    clearTimeout(timer);
    serial += 1;
    pick.dispose();
  });
  pick.show();
}

async function found(app: App, query: string, isAll: boolean): Promise<Item[]> {
  const where = isAll ? { scope: 'all' } : { projectPath: app.projectPath, scope: 'project' };
  const message = (label: string): Item => ({ value: undefined, label: inert(label), alwaysShow: true });
  try {
    const { data } = await app.connection.call<{ data: RecallHit[] }>('context.recall', {
      query,
      limit: LIMIT,
      ...where,
    });
    if (!data.length) return [message('Nothing was said about this.')];
    // The daemon decides what fits; the list must not filter it again by the letters of the question.
    return data.map((hit) => choice<RecallHit | undefined>(hit, hitLine(hit, Date.now()), { alwaysShow: true }));
  } catch (error) {
    return [message(describe(toFailure(error)))];
  }
}
