// Commands for what the model keeps in mind: goals, remembered texts, facts, the model and its context.

import { randomUUID } from 'node:crypto';
import * as vscode from 'vscode';
import { Failure } from '../core/failure';
import { contextText, entryKey, entryLine, factLine, goalLine, modelLine } from '../core/memory';
import type { ContextEntry, ContextStatus, Fact, Goal, ModelInfo, Page } from '../core/protocol';
import { titleOf } from '../core/sessionsModel';
import { clip, inert, oneLine } from '../core/text';
import { App, Choice, choice, command, confirm, currentSession, say } from './app';

const SCHEME = 'ollm-context';

export function registerMemoryCommands(app: App): vscode.Disposable[] {
  const context = new ContextDocument(app);
  return [
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, context),
    command('ollm.contextStatus', () => context.show()),
    command('ollm.goals', () => showGoals(app)),
    command('ollm.goalAdd', () => addGoal(app)),
    command('ollm.goalComplete', () => completeGoal(app)),
    command('ollm.remember', () => remember(app)),
    command('ollm.forget', () => forgetEntry(app)),
    command('ollm.facts', () => showFacts(app)),
    command('ollm.chooseModel', () => chooseModel(app)),
  ];
}

/** A document that describes the context of the chat's session. */
class ContextDocument implements vscode.TextDocumentContentProvider {
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event;

  constructor(private readonly app: App) {}

  async provideTextDocumentContent(uri: vscode.Uri): Promise<string> {
    const sessionId = uri.query;
    const status = await this.app.connection.call<ContextStatus>('context.status', { sessionId });
    return contextText(uri.fragment, status);
  }

  async show(): Promise<void> {
    const session = currentSession(this.app);
    const uri = vscode.Uri.from({
      scheme: SCHEME,
      path: '/Context.md',
      query: session.sessionId,
      fragment: titleOf(session),
    });
    this.changed.fire(uri);
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(uri), { preview: true });
  }
}

async function goals(app: App): Promise<Goal[]> {
  const { sessionId } = currentSession(app);
  return (await app.connection.call<Page<Goal>>('goal.list', { sessionId, limit: 100 })).data;
}

async function showGoals(app: App): Promise<void> {
  const add: Choice<Goal | undefined> = choice(undefined, { label: 'Add a goal…', description: '' });
  const items = (await goals(app)).map((goal) => choice<Goal | undefined>(goal, goalLine(goal)));
  const options = {
    title: 'Goals',
    placeHolder: 'Choose a goal to make it active or to complete it',
    matchOnDetail: true,
  };
  const chosen = await vscode.window.showQuickPick([...items, add], options);
  if (!chosen) return;
  if (!chosen.value) return addGoal(app);
  const goal = chosen.value;
  const states = goal.status === 'active' ? ['completed', 'paused'] : ['active', 'completed'];
  const labels: Record<string, string> = { active: 'Make it active', completed: 'Complete it', paused: 'Pause it' };
  const status = await vscode.window.showQuickPick(
    states.map((state) => choice(state, { label: labels[state], description: '' })),
    {
      title: clip(oneLine(goal.description), 100),
    },
  );
  if (status) await updateGoal(app, goal, status.value);
}

async function addGoal(app: App): Promise<void> {
  const { sessionId } = currentSession(app);
  const prompt = 'The goal stays in every prompt of this session until it is completed';
  const description = await vscode.window.showInputBox({ title: 'Add a goal', prompt });
  if (!description?.trim()) return;
  await app.connection.call('goal.change', {
    sessionId,
    steps: [{ action: 'create', description }],
    key: randomUUID(),
  });
  say(`the goal is set: ${clip(oneLine(description), 80)}`);
}

async function completeGoal(app: App): Promise<void> {
  const open = (await goals(app)).filter((goal) => goal.status !== 'completed');
  if (!open.length) throw new Failure('noGoal', 'the session has no open goal; add one with “ollm: Add a Goal”');
  const items = open.map((goal) => choice(goal, goalLine(goal)));
  const chosen = open.length === 1 ? items[0] : await vscode.window.showQuickPick(items, { title: 'Complete a goal' });
  if (chosen) await updateGoal(app, chosen.value, 'completed');
}

async function updateGoal(app: App, goal: Goal, status: string): Promise<void> {
  const { sessionId } = currentSession(app);
  const steps = [{ action: 'update', goalId: goal.id, status }];
  await app.connection.call('goal.change', { sessionId, steps, key: randomUUID() });
  say(`${status}: ${clip(oneLine(goal.description), 80)}`);
}

async function remember(app: App): Promise<void> {
  const selected = vscode.window.activeTextEditor;
  const value =
    selected && !selected.selection.isEmpty ? clip(oneLine(selected.document.getText(selected.selection)), 500) : '';
  const typed = await vscode.window.showInputBox({
    title: 'Remember a text',
    value,
    prompt: 'The text stays in every prompt',
  });
  const content = typed?.trim();
  if (!content) return;
  const { session } = app.chat;
  const scopes: Choice<object>[] = [
    ...(session && !session.draft
      ? [choice({ sessionId: session.sessionId }, { label: 'In this session', description: titleOf(session) })]
      : []),
    ...(app.projectPath
      ? [choice({ projectPath: app.projectPath }, { label: 'In this project', description: app.projectPath })]
      : []),
    choice({ scope: 'global' }, { label: 'Everywhere', description: 'in all sessions' }),
  ];
  const scope = await vscode.window.showQuickPick(scopes, { title: 'Where is it remembered?' });
  if (!scope) return;
  const result = await app.connection.call<{ changed: boolean; tokens: number; tokenLimit: number }>(
    'context.addEntry',
    { ...scope.value, key: entryKey(content), content, source: 'user' },
  );
  say(`remembered (${result.tokens} of ${result.tokenLimit} tokens that such texts may have)`);
}

async function forgetEntry(app: App): Promise<void> {
  const { session } = app.chat;
  const of = session && !session.draft ? { sessionId: session.sessionId } : { projectPath: app.projectPath };
  const { data } = await app.connection.call<Page<ContextEntry>>('context.listEntries', of);
  if (!data.length) throw new Failure('nothing', 'nothing is remembered here');
  const items = data.map((entry) => choice(entry, entryLine(entry)));
  const chosen = await vscode.window.showQuickPick(items, { title: 'Forget a remembered text' });
  if (!chosen) return;
  const { scope, key } = chosen.value;
  const owner =
    scope === 'global'
      ? { scope }
      : scope === 'project'
        ? { projectPath: session?.projectPath ?? app.projectPath }
        : of;
  await app.connection.call('context.removeEntry', { ...owner, key });
  say(`forgotten: ${clip(oneLine(chosen.value.content), 80)}`);
}

async function showFacts(app: App): Promise<void> {
  const { sessionId } = currentSession(app);
  const { data } = await app.connection.call<Page<Fact>>('context.facts', { sessionId, limit: 200 });
  if (!data.length) throw new Failure('nothing', 'the session states no facts yet');
  const items = data.map((fact) => choice(fact, factLine(fact, Date.now())));
  const options = { title: 'Facts of this session', placeHolder: 'Choose a fact to forget it' };
  const chosen = await vscode.window.showQuickPick(items, options);
  if (!chosen) return;
  const { seq, index, text } = chosen.value;
  if (
    !(await confirm(
      'Forget this fact?',
      `${oneLine(text)}\n\nThe message stays; later contexts do not repeat the fact.`,
      'Forget',
    ))
  )
    return;
  await app.connection.call('context.forgetFact', { sessionId, seq, index, key: randomUUID() });
  say(`forgotten: ${clip(oneLine(text), 80)}`);
}

async function chooseModel(app: App): Promise<void> {
  const { data, ...rest } = await app.connection.call<{ data: ModelInfo[]; getSmallModel: string }>('model.list');
  if (!data.length) throw new Failure('noModel', 'the model server has no model', rest.getSmallModel);
  const { session } = app.chat;
  const current = session?.model ?? app.nextModel;
  const items = data.map((model) => choice(model, modelLine(model), model.model === current ? { picked: true } : {}));
  const title = session && !session.draft ? `The model of “${inert(titleOf(session))}”` : 'The model of the next chat';
  const chosen = await vscode.window.showQuickPick(items, {
    title,
    placeHolder: current ? `now ${inert(current)}` : '',
  });
  if (!chosen) return;
  app.nextModel = chosen.value.model;
  if (!session || session.draft) return app.chat.newChat();
  await app.connection.call('session.update', { sessionId: session.sessionId, model: chosen.value.model });
  await app.chat.reload();
}
