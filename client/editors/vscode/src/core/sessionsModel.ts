// The lists of sessions: pages, running turns, and what changes with an event.

import type { Connection } from './connection';
import type { DaemonEvent, Page, Session } from './protocol';
import { ago, clip, counted, grouped, oneLine } from './text';

export type Scope = 'project' | 'all';

/** The sessions of a page, and the most that one request returns. */
const PAGE = 25;
const MAX_PAGE = 1_000;
/** The pause in which events are collected before the lists are read again. */
const SETTLE_MS = 120;
const TITLE_CHARACTERS = 80;

/** Events after which a list can look different. */
const CHANGES = new Set([
  'session-created',
  'session-updated',
  'session-closed',
  'session-archived',
  'session-deleted',
  'session-damaged',
  'session-healed',
  'message-recorded',
  'tool-call-recorded',
  'branch-changed',
  'resync',
  'lagged',
]);

export interface SessionRow {
  session: Session;
  label: string;
  description: string;
  tooltip: string;
  running: boolean;
}

export interface SessionList {
  rows: SessionRow[];
  hasMore: boolean;
}

interface Loaded {
  sessions: Session[];
  wanted: number;
  cursor?: string;
}

export class SessionsModel {
  private lists = new Map<Scope, Loaded>();
  private running = new Set<string>();
  private timer?: NodeJS.Timeout;
  private epoch = '';
  private shownLook = '';

  constructor(
    private readonly connection: Connection,
    readonly projectPath: string | undefined,
    private readonly onChange: () => void,
  ) {}

  /** Returns the rows of a list; reads its first page if there is none yet. */
  async list(scope: Scope): Promise<SessionList> {
    const loaded = this.lists.get(scope) ?? (await this.read(scope, PAGE));
    const now = Date.now();
    const rows = loaded.sessions.map((session) => rowOf(session, this.running.has(session.sessionId), scope, now));
    return { rows, hasMore: loaded.cursor !== undefined };
  }

  /** Reads the next page of a list. */
  async more(scope: Scope): Promise<void> {
    const loaded = this.lists.get(scope);
    if (!loaded?.cursor) return;
    const page = await this.request(scope, PAGE, loaded.cursor);
    const known = new Set(loaded.sessions.map((session) => session.sessionId));
    loaded.sessions.push(...page.data.filter((session) => !known.has(session.sessionId)));
    loaded.cursor = page.nextCursor;
    loaded.wanted = loaded.sessions.length;
    this.onChange();
  }

  /** Reads the lists again, as many sessions as were shown, and reports whether they look different now. */
  async refresh(): Promise<void> {
    for (const [scope, { wanted }] of this.lists) {
      // A list in the background never starts a daemon.
      if (this.connection.state === 'connected') await this.read(scope, wanted);
    }
    // A tree that is drawn again loses clicks that are on their way, so it is drawn only when it changes.
    const look = this.look();
    if (look !== this.shownLook || !this.lists.size) this.onChange();
    this.shownLook = look;
  }

  /** Follows an event of the daemon. */
  follow(event: DaemonEvent): void {
    // The end of a turn may be among the events that were missed.
    if (event.epoch !== this.epoch || event.kind === 'resync' || event.kind === 'lagged') {
      this.epoch = event.epoch;
      this.running.clear();
    }
    if (event.kind === 'turn-started' && event.sessionId) this.running.add(event.sessionId);
    else if (event.kind === 'turn-ended' && event.sessionId) this.running.delete(event.sessionId);
    else if (!CHANGES.has(event.kind)) return;
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      void this.refresh().catch(() => this.onChange());
    }, SETTLE_MS);
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  /** Returns what the rows of all lists show. */
  private look(): string {
    const now = Date.now();
    const lists = [...this.lists].map(([scope, { sessions, cursor }]) => {
      const rows = sessions.map((session) => rowOf(session, this.running.has(session.sessionId), scope, now));
      const shown = rows.map((row) => [row.session.sessionId, row.label, row.description, row.session.pinned]);
      return [scope, cursor !== undefined, shown];
    });
    return JSON.stringify(lists);
  }

  private async read(scope: Scope, wanted: number): Promise<Loaded> {
    const page = await this.request(scope, Math.min(Math.max(wanted, PAGE), MAX_PAGE));
    const loaded = { sessions: page.data, wanted, cursor: page.nextCursor };
    this.lists.set(scope, loaded);
    return loaded;
  }

  private request(scope: Scope, limit: number, cursor?: string): Promise<Page<Session>> {
    if (scope === 'project' && !this.projectPath) return Promise.resolve({ data: [] });
    const projectPath = scope === 'project' ? this.projectPath : undefined;
    return this.connection.call<Page<Session>>('session.list', { projectPath, limit, cursor });
  }
}

/** Returns the title of a session on one line. */
export function titleOf(session: Session): string {
  return clip(oneLine(session.title), TITLE_CHARACTERS) || '(no messages)';
}

function rowOf(session: Session, running: boolean, scope: Scope, now: number): SessionRow {
  const project = scope === 'all' && session.projectName ? `${oneLine(session.projectName)}, ` : '';
  const state = session.status === 'corrupted' ? ', damaged' : '';
  const description = `${project}${running ? 'answering' : ago(session.lastActivity, now)}${state}`;
  const tooltip = [
    titleOf(session),
    session.projectPath && oneLine(session.projectPath),
    session.model && oneLine(session.model),
    `${counted(session.messageCount, 'message')}, ${grouped(session.tokenCount)} tokens`,
    `id ${session.shortId ?? session.sessionId}`,
  ];
  return { session, label: titleOf(session), description, tooltip: tooltip.filter(Boolean).join('\n'), running };
}
