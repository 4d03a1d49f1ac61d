// The chat as the page shows it: one session, its running turn, the window bar and notices.
//
// Knows the daemon through a `Connection`, and the page through messages. A message that was not accepted stays in the
// page; a message whose fate is unknown is looked up by its key when the daemon is back.

import { randomUUID } from 'node:crypto';
import type { Bar, Item, ToPage } from '../viewMessages';
import type { Connection } from './connection';
import { Failure, toFailure } from './failure';
import type { ChatEvent, ContextStatus, DaemonEvent, RecordPage, Session, SessionRecord } from './protocol';
import { titleOf } from './sessionsModel';
import { modelName } from './text';
import { canRetry, itemsOf } from './transcript';
import { Turn, TurnChange, noticeOf, problemItem } from './turn';

/** The records that are read at first, and further ones with each "earlier". */
const PAGE = 80;
/** The items that a page has at least. A long answer leaves a record for each of its seconds, which is no item. */
const MIN_ITEMS = 12;
/** The records up to which one that was searched is looked for from the end. */
const MAX_RECORDS = 20_000;
/** The wait for a daemon that is about to listen, before a message is refused. */
const READY_MS = 3_000;
/** The wait for the daemon to come back, after which the fate of a message counts as unknown. */
const FATE_MS = 10_000;
/** The pause between two messages with pieces of an answer: about 60 a second. */
const PIECE_MS = 16;
/** The pause in which events are collected before the records are read again. */
const SETTLE_MS = 80;

const OPENING = 'opening the session';

const CHANGES = new Set([
  'message-recorded',
  'tool-call-recorded',
  'branch-changed',
  'compressed',
  'files-put-back',
  'session-updated',
  'snapshot-restored',
  'goal-updated',
  'turn-ended',
  'resync',
  'lagged',
]);

export interface ChatOptions {
  connection: Connection;
  projectPath: string | undefined;
  /** Returns the model of new sessions; undefined for the default of the daemon. */
  model: () => string | undefined;
  /** Receives what the page should show. */
  post: (message: ToPage) => void;
  /** Is called when another session is shown; undefined for a new one. */
  onSession: (session: Session | undefined) => void;
}

export class ChatModel {
  session?: Session;
  private records: SessionRecord[] = [];
  private wanted = PAGE;
  /** The records that were read last. */
  private nShown = PAGE;
  private hasEarlier = false;
  private turn?: Turn;
  private problem?: Item;
  /** The items of the turn that ended, until its records are read. */
  private kept: Item[] = [];
  private notice: { text: string; hint?: string } | null = null;
  /** A message is on its way to its acceptance. */
  private isSending = false;
  private bar: Bar = emptyBar('');
  private pieces?: { key: string; text?: string; thinking?: string };
  private pieceTimer?: NodeJS.Timeout;
  private timer?: NodeJS.Timeout;
  private nLoads = 0;
  /** The number of loads that a person asked for and that are under way; a reload in the background waits for them. */
  private nOpening = 0;
  /** The message whose fate is not known, to be sent with the same key again. */
  private unsettled?: { text: string; key: string };

  constructor(private readonly options: ChatOptions) {}

  /** Posts everything that the page shows, for a page that was just made. */
  show(): void {
    this.flush();
    this.postConversation();
    this.options.post({ type: 'bar', bar: this.bar });
    this.options.post({ type: 'notice', notice: this.notice });
  }

  private get isConnected(): boolean {
    return this.options.connection.state === 'connected';
  }

  get isRunning(): boolean {
    return this.turn !== undefined;
  }

  /** Shows a session, from its end or at a record. */
  async open(sessionId: string, revealSeq?: number): Promise<void> {
    if (this.session?.sessionId !== sessionId) {
      this.reset();
      this.wanted = PAGE;
    }
    try {
      if (!(await this.loadFirst(sessionId, revealSeq))) return;
    } catch (error) {
      // The session before stays the one of the chat.
      this.reloadSoon(0);
      throw error;
    }
    this.options.onSession(this.session);
    void this.rememberCurrent();
    void this.readWindow();
    void this.join();
  }

  /** Shows an empty chat; its session is created with the first message. */
  newChat(): void {
    this.reset();
    this.session = undefined;
    this.options.onSession(undefined);
    this.bar = emptyBar(modelName(this.options.model() ?? ''));
    this.show();
  }

  /** Sends a message. The page keeps its text until `accepted`, and gets `refused` with the reason otherwise. */
  async send(text: string, requestId: number): Promise<void> {
    const refuse = (failure: Failure) =>
      this.options.post({ type: 'refused', requestId, text, notice: noticeOf(failure, 'The message was not sent') });
    if (!text.trim()) return refuse(new Failure('empty', 'it has no text'));
    if (this.isRunning || this.isSending)
      return refuse(new Failure('busy', 'the model is answering; stop the answer, or wait for its end'));
    // The session of the chat is still the one before; the message is not meant for it.
    if (this.nOpening) return refuse(new Failure('busy', 'a session is being opened; send the message again then'));
    this.isSending = true;
    try {
      await this.sendNow(text, requestId, refuse);
    } finally {
      this.isSending = false;
    }
  }

  private async sendNow(text: string, requestId: number, refuse: (failure: Failure) => void): Promise<void> {
    const shown = this.session?.sessionId;
    try {
      await this.options.connection.ready(READY_MS);
      if (this.nOpening || this.session?.sessionId !== shown) throw new Failure('busy', 'another session was opened');
      await this.ensureSession();
    } catch (error) {
      return refuse(toFailure(error));
    }
    const known = this.unsettled?.text === text ? this.unsettled.key : undefined;
    const key = known ?? randomUUID();
    const accepted = () => {
      this.unsettled = undefined;
      this.options.post({ type: 'accepted', requestId });
    };
    try {
      await this.run(new Turn(text, this.bar.model), { message: { role: 'user', content: text }, key }, accepted);
    } catch (error) {
      const failure = toFailure(error);
      const isUnknown = failure.kind === 'disconnected' || failure.kind === 'deadline';
      if (isUnknown && (await this.isRecorded(key))) {
        // A session with a record is no draft; without this, the next message would begin another one.
        if (this.session) this.session.draft = false;
        this.reloadSoon(0);
        void this.join();
        return accepted();
      }
      this.unsettled = isUnknown ? { text, key } : undefined;
      refuse(failure);
    }
  }

  /** Asks the model again: after a failure, or instead of an answer that is not complete. */
  async retry(): Promise<void> {
    if (this.isRunning || !this.session) return;
    try {
      await this.options.connection.ready(READY_MS);
      await this.run(new Turn(undefined, this.bar.model), {}, () => {});
    } catch (error) {
      this.setNotice(noticeOf(toFailure(error)));
      this.postConversation();
    }
  }

  /** Stops the running answer, also one of another client. The text that arrived stays. */
  async stop(): Promise<void> {
    if (!this.session || !this.isRunning) return;
    try {
      await this.options.connection.call('chat.cancel', { sessionId: this.session.sessionId });
    } catch (error) {
      this.setNotice(noticeOf(toFailure(error)));
    }
  }

  /** Reads earlier records. */
  async earlier(): Promise<void> {
    if (!this.session || !this.hasEarlier) return;
    this.wanted = Math.max(this.wanted, this.nShown) + PAGE;
    await this.loadFirst(this.session.sessionId);
  }

  /** Reads the records again, as after an undo. Never starts a daemon. */
  async reload(): Promise<void> {
    if (!this.session || this.session.draft || !this.isConnected) return;
    if (this.nOpening) return this.reloadSoon(SETTLE_MS);
    await this.load(this.session.sessionId);
    await this.readWindow();
  }

  /** Follows an event of the daemon. */
  follow(event: DaemonEvent): void {
    const isGap = event.kind === 'resync' || event.kind === 'lagged';
    if (!this.session || (!isGap && event.sessionId !== this.session.sessionId)) return;
    if (event.kind === 'session-deleted') {
      this.newChat();
      this.setNotice({ text: 'The session was deleted.' });
    } else if (event.kind === 'turn-started') {
      void this.join();
    }
    if (CHANGES.has(event.kind) && (!this.turn || this.turn.isJoined)) this.reloadSoon(SETTLE_MS);
  }

  /** Says whether the daemon answers. After a reconnect, what was missed is read. */
  connectionChanged(): void {
    const { state, problem } = this.options.connection;
    if (state === 'connected') {
      this.setNotice(null);
      if (!this.turn) this.reloadSoon(0);
      void this.join();
    } else if (state === 'waiting') {
      this.setNotice(problem ? noticeOf(problem, 'No connection') : { text: 'No connection' });
    }
  }

  setNotice(notice: { text: string; hint?: string } | null): void {
    this.notice = notice;
    this.options.post({ type: 'notice', notice });
  }

  dispose(): void {
    clearTimeout(this.pieceTimer);
    clearTimeout(this.timer);
  }

  /** Creates the session of a new chat, or again one whose draft a restart of the daemon lost. */
  private async ensureSession(): Promise<void> {
    if (this.session && !this.session.draft) return;
    const { connection, projectPath } = this.options;
    const model = this.session?.model ?? this.options.model();
    const { session } = await connection.call<{ session: Session }>('session.create', { projectPath, model });
    this.session = session;
    this.options.onSession(session);
  }

  /** Begins a turn and returns when the daemon has accepted it. */
  private async run(turn: Turn, params: object, accepted: () => void): Promise<void> {
    const session = this.session!;
    this.problem = undefined;
    this.turn = turn;
    this.setBar({ phase: 'sending', running: true });
    const stream = {
      onItem: (event: ChatEvent) => {
        this.turnEvent(turn, event);
        return event.kind === 'done' || event.kind === 'error';
      },
      onLost: (failure: Failure) => this.turnEnded(turn, turn.fail(failure)),
    };
    try {
      await this.options.connection.open(
        'chat.send',
        { sessionId: session.sessionId, detach: true, ...params },
        'chat',
        stream,
      );
    } catch (error) {
      if (this.turn === turn) {
        this.turn = undefined;
        this.setBar({ phase: '', running: false });
      }
      throw error;
    }
    // The number of the subscription comes when the message is on the disk (PROTOCOL.md, section 8.6).
    accepted();
    session.draft = false;
    void this.rememberCurrent();
  }

  /** Joins the turn of the session, if one runs that this chat does not show. */
  private async join(): Promise<void> {
    const { session } = this;
    if (!session || session.draft || this.turn || !this.isConnected) return;
    const turn = new Turn(undefined, this.bar.model, true);
    let leave: (() => void) | undefined;
    const stream = {
      onItem: (event: ChatEvent) => {
        // Only now it is known that the turn runs; meanwhile this chat may have got another session or turn.
        if (event.kind === 'running' && !this.turn && session.sessionId === this.session?.sessionId) {
          this.problem = undefined;
          this.turn = turn;
          this.setBar({ phase: 'answering', running: true });
        }
        this.turnEvent(turn, event);
        const isLast = event.kind === 'done' || event.kind === 'error';
        // Nobody looks at this turn any more, and a connection has a few dozen subscriptions.
        if (!isLast && this.turn !== turn) leave?.();
        return isLast;
      },
      onLost: () => this.turnEnded(turn, {}),
    };
    const { sessionId } = session;
    try {
      leave = await this.options.connection.open('chat.follow', { sessionId }, 'chat', stream);
    } catch {
      // Refused if no turn runs: its answer is in the records then.
    }
  }

  private turnEvent(turn: Turn, event: ChatEvent): void {
    if (this.turn !== turn) return;
    const change = turn.apply(event);
    if (change.accepted) this.setBar({ model: turn.model });
    if (change.phase) this.setBar({ phase: change.phase.text, expectedMs: change.phase.expectedMs });
    if (event.usage) this.setUsage(event.usage);
    if (change.recorded) this.reloadSoon(0);
    if (change.ended) return this.turnEnded(turn, change);
    this.postChange(change);
  }

  private turnEnded(turn: Turn, change: TurnChange): void {
    if (this.turn !== turn) return;
    this.postChange(change);
    this.flush();
    this.problem = turn.problem && problemItem(turn.problem);
    if (this.problem) this.options.post({ type: 'item', item: this.problem });
    this.kept = turn.items;
    this.turn = undefined;
    this.setBar({ phase: '', expectedMs: undefined, running: false });
    this.reloadSoon(0);
  }

  private postChange(change: TurnChange): void {
    if (change.delta) return this.queuePiece(change.delta);
    if (!change.items?.length && !change.rekey) return;
    this.flush();
    if (change.rekey) this.options.post({ type: 'rekey', ...change.rekey });
    for (const item of change.items ?? []) this.options.post({ type: 'item', item: { ...item } });
  }

  /** Posts a piece at once if the last one is a while ago, else together with those that follow. */
  private queuePiece(piece: { key: string; text?: string; thinking?: string }): void {
    if (this.pieces && this.pieces.key !== piece.key) this.flush();
    const pieces = (this.pieces ??= { key: piece.key });
    if (piece.text) pieces.text = (pieces.text ?? '') + piece.text;
    if (piece.thinking) pieces.thinking = (pieces.thinking ?? '') + piece.thinking;
    if (this.pieceTimer) return;
    this.flush();
    this.pieceTimer = setTimeout(() => {
      this.pieceTimer = undefined;
      this.flush();
    }, PIECE_MS);
  }

  private flush(): void {
    const { pieces } = this;
    this.pieces = undefined;
    if (pieces) this.options.post({ type: 'delta', ...pieces });
  }

  /** Loads what a person asked for, before anything in the background. */
  private async loadFirst(sessionId: string, revealSeq?: number): Promise<boolean> {
    this.nOpening += 1;
    if (!this.isRunning) this.setBar({ phase: OPENING });
    try {
      return await this.load(sessionId, revealSeq);
    } finally {
      this.nOpening -= 1;
      if (this.bar.phase === OPENING) this.setBar({ phase: '' });
    }
  }

  /** Reads the end of a session, or all from a record on. Returns false if another session was opened meanwhile. */
  private async load(sessionId: string, revealSeq?: number): Promise<boolean> {
    const serial = ++this.nLoads;
    let wanted = this.wanted;
    let page = await this.readTail(sessionId, wanted);
    const isShort = () =>
      itemsOf(page.records).length < MIN_ITEMS || (revealSeq !== undefined && (page.records[0]?.seq ?? 0) > revealSeq);
    while (isShort() && page.records.length >= wanted && wanted < MAX_RECORDS) {
      wanted *= 2;
      page = await this.readTail(sessionId, wanted);
    }
    if (serial !== this.nLoads) return false;
    // A record that was revealed stays in what is read later; a page that was short may not be the next time.
    if (revealSeq !== undefined) this.wanted = wanted;
    this.nShown = wanted;
    this.session = page.session;
    this.records = page.records;
    this.kept = [];
    this.hasEarlier = page.records.length >= wanted;
    this.postConversation(revealSeq);
    const isMissing = revealSeq !== undefined && !page.records.some((record) => record.seq === revealSeq);
    if (isMissing) {
      const hint = `ollmctl sessions tree ${page.session.shortId ?? sessionId}`;
      this.setNotice({ text: `Record ${revealSeq} is on another branch of this session.`, hint });
    }
    return true;
  }

  private async readTail(sessionId: string, wanted: number): Promise<RecordPage> {
    const call = (from: number, limit: number) =>
      this.options.connection.call<RecordPage>('session.get', { sessionId, from, limit, branch: 'active' });
    const page = await call(-wanted, Math.min(wanted, 1_000));
    while (page.nextFrom !== undefined) {
      const next = await call(page.nextFrom, 1_000);
      page.records.push(...next.records);
      page.nextFrom = next.nextFrom;
    }
    return page;
  }

  private postConversation(revealSeq?: number): void {
    const own = this.turn?.items ?? this.kept;
    const keys = new Set(own.map((item) => item.key));
    const recorded = itemsOf(this.records).filter((item) => !keys.has(item.key));
    const items = [...recorded, ...own, ...(this.problem ? [this.problem] : [])];
    this.options.post({
      type: 'conversation',
      sessionId: this.session?.sessionId ?? '',
      title: this.session ? titleOf(this.session) : 'New chat',
      items: items.map((item) => ({ ...item })),
      hasEarlier: this.hasEarlier,
      canRetry: !this.isRunning && canRetry(this.records),
      ...(revealSeq === undefined ? {} : { reveal: `r${revealSeq}` }),
    });
  }

  /** Reads the size of the context for the window bar. */
  private async readWindow(): Promise<void> {
    const { session } = this;
    if (!session || !this.isConnected) return;
    try {
      const status = await this.options.connection.call<ContextStatus>('context.status', {
        sessionId: session.sessionId,
      });
      if (session.sessionId !== this.session?.sessionId) return;
      this.setUsage(status);
      this.setBar({ model: modelName(status.model ?? session.model ?? '') });
    } catch {
      // The bar keeps its numbers; a daemon that does not answer is a notice already.
    }
  }

  /** Waits for the daemon, and returns whether a message with this key was recorded. */
  private async isRecorded(key: string): Promise<boolean> {
    try {
      await this.options.connection.ready(FATE_MS);
      const page = await this.readTail(this.session!.sessionId, PAGE);
      return page.records.some((record) => record.key === key);
    } catch {
      return false;
    }
  }

  /** Makes the session the current one of its project, as `ollmctl chat -c` continues it. */
  private async rememberCurrent(): Promise<void> {
    const { session } = this;
    if (!session?.projectPath || session.draft || !this.isConnected) return;
    const params = { projectPath: session.projectPath, sessionId: session.sessionId };
    await this.options.connection.call('session.setCurrent', params).catch(() => {});
  }

  private reloadSoon(pauseMs: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.reload().catch((error) => this.reloadFailed(toFailure(error))), pauseMs);
  }

  private reloadFailed(failure: Failure): void {
    if (failure.kind === 'sessionNotFound') {
      this.newChat();
      this.setNotice({ text: 'The session is not there any more.' });
    } else if (failure.kind !== 'disconnected') {
      this.setNotice(noticeOf(failure));
    }
  }

  private setUsage(usage: { contextTokens?: number; promptLimit?: number; countKind?: string }): void {
    const { contextTokens = this.bar.contextTokens, promptLimit = this.bar.promptLimit } = usage;
    this.setBar({ contextTokens, promptLimit, isEstimate: usage.countKind !== 'exact' });
  }

  private setBar(change: Partial<Bar>): void {
    const bar = { ...this.bar, ...change };
    const isSame = JSON.stringify(bar) === JSON.stringify(this.bar);
    this.bar = bar;
    if (!isSame) this.options.post({ type: 'bar', bar: this.bar });
  }

  private reset(): void {
    this.flush();
    clearTimeout(this.timer);
    this.nLoads += 1;
    this.turn = undefined;
    this.records = [];
    this.kept = [];
    this.hasEarlier = false;
    this.problem = undefined;
    this.unsettled = undefined;
    this.bar = emptyBar('');
  }
}

function emptyBar(model: string): Bar {
  return { model, contextTokens: 0, promptLimit: 0, isEstimate: true, phase: '', running: false };
}
